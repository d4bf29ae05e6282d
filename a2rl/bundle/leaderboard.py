"""A leaderboard of bundles from anywhere, as a static site: the report over many runs, over those that pass the audit.

The site keeps what every bundle's audit found, in `audits/DIGEST.json`, and the page of its run, in `runs/DIGEST.html`,
so that the next build audits only what is new. All is audited again when the code that audits has changed.
"""

import os
import re
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError

import a2rl
from a2rl.bundle.archive import MAX_BYTES, MAX_INDEX_BYTES, SUFFIX
from a2rl.bundle.audit import DIFFERENT, UNSOUND, Audit
from a2rl.bundle.confined import NO_TEXT, Done, Shown, audit_bundle, is_text
from a2rl.core.errors import A2rlError, InfrastructureError, UsageError
from a2rl.core.files import (
    FrozenModel,
    digest_of,
    file_digest,
    folder_digest,
    read_model,
    write_atomically,
    write_model,
)
from a2rl.core.printable import printable
from a2rl.core.processes import STOP
from a2rl.core.settings import Settings
from a2rl.grading.outputs import OnProgress, Progress, ignore_progress
from a2rl.results.suite.files import write_site
from a2rl.results.suite.leaderboard import stack_names
from a2rl.results.suite.run_summary import RunSummary, Summaries
from a2rl.task_api.data import hidden_digest

FOLDERS, KINDS = ("agents", "tasks"), ("**/*.py", "**/*.html", "**/*.css", "**/*.yaml")
"""What decides what an audit finds, besides the package itself: folders of the project, and files in all of them."""
FEED = "feed.xml"
DIGEST = re.compile("[0-9a-f]{64}")
MOST_STACKS = 60
"""The most stacks that are ranked, those with the most runs: every pair of them is compared."""
MOST_SIGNERS = 3
"""The most keys that are named as a run's signer."""
MOST_NEWS = 100
"""The most entries of the feed, the newest ones."""
MAX_NUMBER, MAX_TEXT, MAX_VALUES = 1e12, 500, 200_000
"""The largest number and text, and the most values, that a leaderboard takes from a run."""
MAX_KEPT_CHARS = 2 << 20
"""The most that is kept of a bundle, besides its page: every build reads that of all."""
TOO_LARGE = "the run has a number or a text that is too large for a leaderboard, or too many of them"

OTHER_DATA = "its eval set is not that of this checkout: other items may be easier"


class KeptAudit(FrozenModel):
    """What is known of a bundle, in `audits/DIGEST.json`."""

    schema_version: Literal[1] = 1
    bundle: str
    """The SHA-256 of the file."""
    added_at: float
    """When the leaderboard first had it, in Unix seconds."""
    code: str
    """The digest of the code that audited it."""
    grades_anew: bool
    """Whether it was to be graded anew."""
    max_bytes: int = 0
    """The most bytes that it might unpack to."""
    problem: str = ""
    """Why it cannot be audited; empty if it was."""
    audit: Audit | None = None
    summary: RunSummary | None = None
    """The run's figures; None if it is not sound."""
    keys: tuple[str, ...] = ()
    """The public keys that signed the ledger."""
    data_digest: str = ""
    """That of the eval set; empty if it was drawn."""
    has_page: bool = False


class Built(NamedTuple):
    """A leaderboard that was built."""

    page: Path
    shown: int
    """The runs in the table."""
    refused: dict[str, str]
    """Why other bundles are not in it, by their files."""
    audited: int
    """The bundles that were audited now; of the others, the audit was known."""


class Builder:
    """Builds the site of a leaderboard.

    Args:
        signers: The names of the signers that are known, by public key.
        grades_anew: Whether every checkpoint must be graded anew, with the same results.
        max_bytes: The most bytes that a bundle may unpack to.
        auditor: Audits a bundle, which may harm this process.
    """

    def __init__(
        self,
        site: Path,
        settings: Settings,
        signers: Mapping[str, str],
        grades_anew: bool = False,
        max_bytes: int = MAX_BYTES,
        auditor: Callable[..., Done] = audit_bundle,
    ) -> None:
        self._site, self._settings, self._signers, self._auditor = site, settings, signers, auditor
        self._grades_anew, self._max_bytes = grades_anew, max_bytes
        code = Path(a2rl.__file__).parent, *(settings.root / name for name in FOLDERS)
        self._code = digest_of([folder_digest(folder, KINDS) for folder in code])
        self._now, self._new = time.time(), list[str]()
        self._data: dict[tuple[str, str], str] = {}

    def build(self, bundles: Path, jobs: int = 1, on_progress: OnProgress = ignore_progress) -> Built:
        """Audits the bundles below a folder, and writes the site.

        Args:
            on_progress: Called with how many bundles are done.

        Raises:
            UsageError: There is no bundle.
            InfrastructureError: This machine cannot audit bundles of strangers, or the disk failed.
        """
        found = (path for path in sorted(bundles.rglob(f"*{SUFFIX}")) if path.is_file() and not path.is_symlink())
        files, unread = _digests(found, self._max_bytes)
        if not files and not unread:
            raise UsageError(f"{bundles} has no bundle, a file whose name ends with {SUFFIX}: `a2rl bundle` makes them")
        kept: list[KeptAudit] = []
        pool = ThreadPoolExecutor(jobs)
        try:
            for each in pool.map(self._audit, files, files.values()):
                kept.append(each)
                on_progress(Progress(len(kept), len(files), 0, 0))
        except KeyboardInterrupt:
            STOP.set()  # ends the audits that the other threads wait for
            raise
        finally:
            pool.shutdown(cancel_futures=True)
        if kept and not any(each.code for each in kept):
            raise InfrastructureError(kept[0].problem)
        refused = {each.bundle: problem for each in kept if (problem := self._problem(each))}
        refused |= self._claimed([each for each in kept if each.bundle not in refused])
        ranked = {each.bundle: self._summary(each) for each in kept if each.bundle not in refused}
        refused |= _too_many_stacks(ranked, {each.bundle for each in kept if self._is_known(each)})
        names = {digest: f"{_shown_path(files[digest], bundles)} ({digest[:12]})" for digest in files}
        shown = [each for each in kept if each.bundle not in refused]
        reasons = {names[digest]: printable(why, MAX_TEXT) for digest, why in refused.items()}
        reasons |= {_shown_path(path, bundles): printable(why, MAX_TEXT) for path, why in unread.items()}
        return Built(self._write(shown, reasons, set(files)), len(shown), reasons, len(self._new))

    def _audit(self, digest: str, bundle: Path) -> KeptAudit:
        """Returns what is known of a bundle, if that is of today's code, or else audits it."""
        file, page, added_at = self._site / "audits" / f"{digest}.json", self._site / _page_of(digest), self._now
        with suppress(OSError, A2rlError):
            known = read_model(file, KeptAudit)
            is_whole = page.exists() or not known.has_page
            has_room = known.audit is not None or known.max_bytes == self._max_bytes
            if known.code == self._code and is_whole and has_room and (known.grades_anew or not self._grades_anew):
                return known
            added_at = known.added_at
        self._new.append(digest)
        found = KeptAudit(
            bundle=digest, added_at=added_at, code=self._code, grades_anew=self._grades_anew, max_bytes=self._max_bytes
        )
        try:
            done = self._auditor(
                bundle, self._settings, frozenset(), None, self._grades_anew, self._max_bytes, shows=True
            )
            if _digests([bundle], self._max_bytes)[0].keys() != {digest}:  # so it is not known what was audited
                raise InfrastructureError("the file changed while it was audited")
        except InfrastructureError as error:  # of this machine perhaps, so it is tried again at the next build
            return found.model_copy(update={"code": "", "problem": printable(str(error), MAX_TEXT)})
        except (UsageError, ValidationError) as error:
            found = found.model_copy(update={"problem": printable(str(error), MAX_TEXT)})
        else:
            found = found.model_copy(update={"audit": done.audit, **_shown(done.shown, page)})
            if done.audit.failed_here:  # not kept, so that it is tried again at the next build
                return found
            if len(found.model_dump_json()) > MAX_KEPT_CHARS:
                found = found.model_copy(update={"audit": None, "summary": None, "keys": (), "problem": TOO_LARGE})
        write_model(file, found)
        return found

    def _problem(self, kept: KeptAudit) -> str:
        """Says why a bundle is not in the table; empty if it is."""
        if kept.audit is None or kept.problem:
            return kept.problem
        audit = kept.audit
        if audit.exit_code == UNSOUND:
            return next(f"{check.what}: {check.problem}" for check in audit.checks if check.problem)
        if audit.exit_code == DIFFERENT:
            return "an item has another result when it is graded anew"
        if self._grades_anew and audit.not_regraded:
            what, why = next(iter(audit.not_regraded.items()))
            return f"{what} cannot be graded anew: {why}"
        if kept.summary is None or not kept.summary.is_finished:
            return "the run is not finished"
        own = self._data_digest(kept.summary.task, kept.summary.variant)
        return OTHER_DATA if kept.data_digest and own and kept.data_digest != own else ""

    def _data_digest(self, task: str, variant: str) -> str:
        """Returns the digest of a task's eval set in this checkout; empty if it is not here."""
        if (task, variant) not in self._data:
            folder = self._settings.data(task, variant)
            self._data[task, variant] = hidden_digest(folder) if (folder / "hidden").is_dir() else ""
        return self._data[task, variant]

    def _signer(self, kept: KeptAudit) -> str:
        names = sorted(self._signers.get(key, f"unknown key {key[:12]}") for key in kept.keys)
        more = [f"{len(names) - MOST_SIGNERS:,} more keys"] if len(names) > MOST_SIGNERS else []
        return " and ".join([*names[:MOST_SIGNERS], *more]) or "nobody"

    def _is_known(self, kept: KeptAudit) -> bool:
        """Says whether only known keys have signed."""
        return bool(kept.keys) and set(kept.keys) <= self._signers.keys()

    def _claimed(self, kept: Sequence[KeptAudit]) -> dict[str, str]:
        """Returns the bundles whose run id is that of another one, with the reason.

        The run is that of the bundle that a known key signed: of several, of the one with the most files, since anybody
        can pack a signed run again. Without one, it is that of the bundle that came first. Of several that came
        together with different results, nobody can say which one is the run's.
        """
        of_run: dict[str, list[KeptAudit]] = {}
        for each in kept:
            of_run.setdefault(each.audit.run_id if each.audit else "", []).append(each)
        refused: dict[str, str] = {}
        for run_id, claims in of_run.items():
            known = [each for each in claims if self._is_known(each)]
            first = min(claims, key=lambda each: (each.added_at, each.bundle))
            if known:
                first = min(known, key=lambda each: (len(_left_out(each)), each.added_at, each.bundle))
            together = [each for each in claims if each.added_at == first.added_at]
            owner = first.bundle if known or all(_said(each) == _said(first) for each in together) else ""
            why = f"belongs to the bundle {owner[:12]}" if owner else "is also that of bundles with other results"
            refused |= {each.bundle: f"its run id {run_id} {why}" for each in claims if each.bundle != owner}
        return refused

    def _summary(self, kept: KeptAudit) -> RunSummary:
        assert kept.audit is not None
        assert kept.summary is not None
        known = {
            "bundle": kept.bundle,
            "signed_by": self._signer(kept),
            "validity": kept.audit.worth,
            "graded_anew": bool(kept.audit.regrades) and not kept.audit.not_regraded,
        }
        return kept.summary.model_copy(update=known)

    def _write(self, shown: Sequence[KeptAudit], refused: dict[str, str], present: set[str]) -> Path:
        for path in [*self._site.glob("audits/*.json"), *self._site.glob("runs/*.html")]:
            if DIGEST.fullmatch(path.stem) and path.stem not in present:  # others are files of the user's
                path.unlink()
        runs = [self._summary(each) for each in shown]
        links = {run.run_id: _page_of(run.bundle) for run, each in zip(runs, shown, strict=True) if each.has_page}
        newest = sorted(zip(shown, runs, strict=True), key=lambda pair: -pair[0].added_at)[:MOST_NEWS]
        write_atomically(self._site / FEED, _feed([(run, each.added_at) for each, run in newest], links))
        return write_site(self._site, "Leaderboard", Summaries(runs, refused), links, self._settings, FEED)


def _digests(paths: Iterable[Path], most_bytes: int) -> tuple[dict[str, Path], dict[Path, str]]:
    """Returns files by their digests, and why others cannot be read. One with holes may be larger than any disk."""
    found, unread = dict[str, Path](), dict[Path, str]()
    for path in paths:
        try:
            if path.stat().st_size > most_bytes + MAX_INDEX_BYTES:
                unread[path] = f"it has more than {most_bytes:,} bytes: allow more with --max-gb"
            elif not is_text(path):
                unread[path] = NO_TEXT
            else:
                found[file_digest(path)] = path
        except OSError as error:
            unread[path] = f"it cannot be read: {error.strerror}"
    return found, unread


def _shown_path(path: Path, folder: Path) -> str:
    """Returns the path of a bundle, whose name may be no text at all."""
    return printable(os.fsencode(path.relative_to(folder)).decode(errors="backslashreplace"), MAX_TEXT)


def _said(kept: KeptAudit) -> tuple[object, ...]:
    """Returns what a bundle says of its run, without what differs whenever it is audited."""
    summary = kept.summary.model_copy(update={"state": ""}) if kept.summary else None
    return summary, kept.keys, kept.audit.worth if kept.audit else "", _left_out(kept)


def _left_out(kept: KeptAudit) -> tuple[str, ...]:
    return kept.audit.left_out if kept.audit else ()


def _page_of(digest: str) -> str:
    return f"runs/{digest}.html"


def _shown(shown: Shown | None, page: Path) -> dict[str, Any]:
    """Writes the page of a run, and returns what is kept of the rest."""
    if shown is None:
        return {}
    summary = shown.summary.model_copy(update={"reason": shown.summary.reason[:MAX_TEXT]})
    if not is_tame(summary.model_dump()):
        return {"problem": TOO_LARGE}
    if shown.page:
        write_atomically(page, shown.page)
    kept = {"keys": tuple(sorted(shown.keys)), "data_digest": shown.data_digest, "has_page": bool(shown.page)}
    return {"summary": summary, **kept}


def is_tame(value: Any) -> bool:
    """Says whether figures cannot break the pages of all others: by their size, by their number, or as no numbers."""
    if isinstance(value, dict | list | tuple):
        inner = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        return len(value) <= MAX_VALUES and all(map(is_tame, inner))
    if isinstance(value, str):
        return len(value) <= MAX_TEXT
    return not isinstance(value, int | float) or abs(value) <= MAX_NUMBER


def _too_many_stacks(runs: Mapping[str, RunSummary], vouched: Collection[str]) -> dict[str, str]:
    """Returns the bundles whose stacks are not ranked; a stack with a run that a known key signed is, before others."""
    names, counts = stack_names(list(runs.values())), Counter[str]()
    for bundle, run in runs.items():
        counts[names[run.run_id]] += 1 + len(runs) * (bundle in vouched)
    ranked = {stack for stack, _ in counts.most_common(MOST_STACKS)}
    why = f"the leaderboard ranks the {MOST_STACKS} stacks with the most runs"
    return {bundle: why for bundle, run in runs.items() if names[run.run_id] not in ranked}


def _feed(news: Iterable[tuple[RunSummary, float]], links: Mapping[str, str]) -> str:
    """Returns an Atom feed (RFC 4287) of runs, the newest first."""
    news = list(news)
    feed = ET.Element("feed", xmlns="http://www.w3.org/2005/Atom")
    _add(feed, "title", "Leaderboard of a2rl")
    _add(feed, "id", "urn:a2rl:leaderboard")
    _add(feed, "updated", _date(max((at for _, at in news), default=0.0)))
    for run, at in news:
        entry = ET.SubElement(feed, "entry")
        who = " with ".join(str(run.settings[name]) for name in ("agent", "driver") if run.settings[name])
        _add(entry, "title", f"{run.task}: {who}, {run.gain:+.1f} points, {run.validity or 'not decided'}")
        _add(entry, "id", f"urn:sha256:{run.bundle}")
        _add(entry, "updated", _date(at))
        ET.SubElement(ET.SubElement(entry, "author"), "name").text = printable(run.signed_by)
        _add(entry, "summary", f"Run {run.run_id}")
        ET.SubElement(entry, "link", href=links.get(run.run_id, "index.html"))
    return ET.tostring(feed, encoding="unicode", xml_declaration=True) + "\n"


def _add(parent: ET.Element, name: str, text: str) -> None:
    ET.SubElement(parent, name).text = printable(text)


def _date(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds")
