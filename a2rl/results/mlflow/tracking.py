"""Mirrors the ledger in MLflow: a run contains its baseline and its submissions.

The ledger is authoritative. `sync` brings MLflow up to date with it. It may be called at any time and repeatedly, also
by several processes: entries that exist are left unchanged, and repeated metrics have the time stored in the ledger, so
that a crash between two requests neither loses nor duplicates anything. A tracker remembers what MLflow has of a run,
so a submission costs the same few requests however many there were before.
"""

import json
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.errors import IntegrityError
from a2rl.core.files import write_atomically
from a2rl.core.locks import file_lock
from a2rl.core.settings import Settings
from a2rl.results.figures import (
    Scored,
    items_table,
    remarks_on,
    result_metrics,
    result_tags,
    run_params,
    run_tags,
    sample_tag,
    score_metrics,
    scored_submissions,
    submission_metrics,
)
from a2rl.results.manifest import changed_files, read_manifest
from a2rl.results.mlflow.store import CHILD_TAG, RUN_ID_TAG, MlflowStore, Point, millis, results_url
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown
from a2rl.run.ledger import Entry
from a2rl.run.names import stored_entries
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, SetupRecord

HEAD_TAG = "a2rl.ledger_head"
RESULT, BASELINE = "result", "baseline"
LOCK_TIMEOUT_S = 30
TABLE = "items.json"
SHOWN_TABLE = {"mlflow.loggedArtifacts": json.dumps([{"path": TABLE, "type": "table"}])}
RECORDS = "records/"
"""Of the manifest: what must be unchanged when a run that has ended is mirrored again."""


class Mirrored(NamedTuple):
    """What MLflow has of one of its runs."""

    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    params: Mapping[str, str]


class _Child(NamedTuple):
    """A nested run."""

    id: str
    artifacts: str
    is_complete: bool


@dataclass
class _Known:
    """What MLflow has of a run."""

    experiment: str
    id: str
    artifacts: str
    tags: dict[str, str]
    children: dict[str, _Child]
    is_described: bool
    points: int = 0
    """Graded submissions whose scores this tracker has logged."""
    result: object = None
    """What this tracker has last logged as the result."""
    files: dict[Path, int] = field(default_factory=dict)
    """The artifacts that this tracker has saved, with their times."""


class Tracker:
    """Mirrors runs into one MLflow store."""

    def __init__(self, settings: Settings) -> None:
        self.store = MlflowStore(settings)
        self._name = secrets.token_hex(8)
        self._known: dict[str, _Known] = {}

    def sync(self, run: RunDir) -> None:
        """Brings MLflow up to date with the run's ledger and records.

        Raises:
            TrackingError: A request to MLflow failed; calling this again catches up.
            IntegrityError: The run is not the one that MLflow has; nothing was changed there.
        """
        with self.store.errors(), self._locked(run):
            entries = stored_entries(run)
            _require_unchanged(run)
            known = self._known.pop(run.id, None) or self._find(run)  # after a failure, it is looked for again
            _require_grown(run, known.tags.get(HEAD_TAG) if known else None, entries)
            known = known or self._create(run, entries)
            self._describe(run, known)
            self._sync_baseline(run, known, entries)
            self._sync_submissions(run, known, entries)
            self._sync_result(run, known, entries)
            self._known[run.id] = known

    def mirrored(self, run: RunDir) -> dict[str, Mirrored]:
        """Returns what MLflow has for a run, by the name of the nested run; the parent is `RESULT`."""
        with self.store.errors():
            parent = self.store.find(RUN_ID_TAG, run.id, run.spec.suite)
            if parent is None:
                return {}
            nested = self.store.children(run.spec.suite, parent.info.run_id)
            found = {each.info.run_id if name == RESULT else name: each for name, each in nested.items()}
            found[RESULT] = parent
            return {name: Mirrored(each.data.metrics, each.data.tags, each.data.params) for name, each in found.items()}

    def results_page(self, run: RunDir) -> str:
        """Returns the URL of all runs of its suite; empty if this tracker has not mirrored it. No request."""
        known = self._known.get(run.id)
        return results_url(self.store.server, known.experiment) if known else ""

    @contextmanager
    def _locked(self, run: RunDir) -> Iterator[None]:
        """Lets one process at a time mirror a run, since `a2rl report` may be called while the run is in progress.

        What another one has mirrored since, this one has to look for.
        """
        by = run.root / ".mirrored-by"
        meanwhile = f"another process is mirroring run {run.id}"
        with file_lock(run.root / ".mirror.lock", meanwhile, LOCK_TIMEOUT_S, heeds_stop=False):
            if not by.exists() or by.read_text(encoding="utf-8") != self._name:
                self._known.pop(run.id, None)
                write_atomically(by, self._name)
            yield

    def _find(self, run: RunDir) -> _Known | None:
        found, suite = self.store.find(RUN_ID_TAG, run.id, run.spec.suite), run.spec.suite
        if found is None:
            return None
        children = {name: _child(each) for name, each in self.store.children(suite, found.info.run_id).items()}
        return self._new(run, found, children)

    def _create(self, run: RunDir, entries: Sequence[Entry]) -> _Known:
        tags = {RUN_ID_TAG: run.id, "a2rl.directory": str(run.root), "a2rl.launch": run.spec.launch}
        begun = entries[0].at if entries else (run.root / "spec.json").stat().st_mtime
        found = self.store.create(run.spec.suite, run.id, begun, tags)
        return self._new(run, found, {})

    def _new(self, run: RunDir, found: Any, children: dict[str, _Child]) -> _Known:
        return _Known(
            self.store.experiment(run.spec.suite), found.info.run_id, found.info.artifact_uri,
            dict(found.data.tags), children, is_described="task" in found.data.params,
        )  # fmt: skip

    def _describe(self, run: RunDir, known: _Known) -> None:
        ready = run.read("setup", SetupRecord)
        if ready is None or known.is_described:
            return
        self.store.save(known.artifacts, run.root / "spec.json")
        self.store.log(known.id, params=run_params(run, ready), tags=run_tags(run, ready))
        known.is_described = True

    def _sync_baseline(self, run: RunDir, known: _Known, entries: list[Entry]) -> None:
        found = _baseline(run, entries)
        if found is None or self._is_complete(known, BASELINE):
            return
        record, at = found.record, found.at
        metrics, tags = score_metrics(record.total), {"a2rl.key": record.key, **sample_tag(run)}
        self.store.log(known.id, found.points)
        begun = at - record.total.seconds
        self._child(run, known, BASELINE, metrics, (begun, at), tags, run.baseline_items)

    def _sync_submissions(self, run: RunDir, known: _Known, entries: list[Entry]) -> None:
        times = {id(entry.event): entry.at for entry in entries}
        scored = list(scored_submissions(entries))
        for each in scored[known.points :]:
            if not self._is_complete(known, _name(each)):
                self._submission(run, known, each, times[id(each.submission)])
        # A new tracker repeats the points of its predecessor; MLflow keeps each once.
        self.store.log(known.id, [point for each in scored[known.points :] for point in _points(each)])
        known.points = len(scored)

    def _submission(self, run: RunDir, known: _Known, scored: Scored, begun: float) -> None:
        metrics, tags = submission_metrics(scored), _submission_tags(run, scored)
        items = run.items(scored.submission.weights_digest, run.spec.public_split)
        self._child(run, known, _name(scored), metrics, (begun, scored.at), tags, items)

    def _sync_result(self, run: RunDir, known: _Known, entries: list[Entry]) -> None:
        result, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
        if result is None or (executed is None and result.failed_stage is None):
            return
        at, head = (entries[-1].at, entries[-1].hash) if entries else (0.0, "")
        if entries:
            run.ledger.verify()
        for file in (run.report, run.trajectory):
            if file.exists() and known.files.get(file) != (changed := file.stat().st_mtime_ns):
                self.store.save(known.artifacts, file)
                known.files[file] = changed
        tags = result_tags(run, result) | {"a2rl.told": "\n".join(remarks_on(run)), HEAD_TAG: head}
        metrics = result_metrics(run, result, executed)
        if known.result == (metrics, tags):
            return
        self.store.log(known.id, [Point(name, value, at) for name, value in metrics.items()], tags=tags)
        self.store.end(known.id, at, failed=result.verdict == "failed")
        known.tags |= tags
        known.result = (metrics, tags)

    @staticmethod
    def _is_complete(known: _Known, name: str) -> bool:
        child = known.children.get(name)
        return child is not None and child.is_complete

    def _child(
        self,
        run: RunDir,
        known: _Known,
        name: str,
        metrics: Mapping[str, float],
        period: tuple[float, float],
        tags: Mapping[str, str],
        items: Path,
    ) -> None:
        """Writes a nested run. Four requests; its end is the last of them, and marks it as complete."""
        begun, ended = period
        child = known.children.get(name)
        if child is None:
            every = {"mlflow.parentRunId": known.id, RUN_ID_TAG + "_of_child": run.id, CHILD_TAG: name, **tags}
            child = _child(self.store.create(run.spec.suite, name, begun, every | SHOWN_TABLE))
            known.children[name] = child
        if items.exists():  # log_table would append to an existing table
            self.store.save_text(child.artifacts, TABLE, items_table(items))
        self.store.log(child.id, [Point(each, value, ended) for each, value in metrics.items()])
        self.store.end(child.id, ended, failed="score" not in metrics)
        known.children[name] = child._replace(is_complete=True)


class _Baseline(NamedTuple):
    """The grade of the base model."""

    record: BaselineRecord
    at: float
    """When it was known, in Unix seconds."""
    points: list[Point]
    """Where the curve of the public score begins."""


def _baseline(run: RunDir, entries: Sequence[Entry]) -> _Baseline | None:
    record = run.read("baseline", BaselineRecord)
    for entry in entries:
        if record is not None and isinstance(entry.event, BaselineKnown):
            score = entry.event.public.score
            return _Baseline(record, entry.at, [] if score is None else [Point("public_score", score, entry.at)])
    return None


def nested_metrics(run: RunDir, entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """Returns what MLflow has of a run whose ledger is mirrored: the metrics of each nested run, by its name."""
    base = _baseline(run, entries)
    found = {BASELINE: score_metrics(base.record.total)} if base else {}
    return found | {_name(scored): submission_metrics(scored) for scored in scored_submissions(entries)}


def last_points(run: RunDir, entries: Sequence[Entry]) -> dict[str, float]:
    """Returns the last value of each curve of a run whose ledger is mirrored, which MLflow shows in its lists."""
    base = _baseline(run, entries)
    points = [each for scored in scored_submissions(entries) for each in _points(scored)]
    points += base.points if base else []
    return {each.name: each.value for each in sorted(points, key=lambda each: (each.step, millis(each.at), each.value))}


def _name(scored: Scored) -> str:
    return f"submission {scored.submission.submission_id}"


def _points(scored: Scored) -> Iterator[Point]:
    """Returns what the charts of a run draw, over the seconds of its budget: a score where its submission arrived, and
    the best one where it became known."""
    arrived_s = scored.submission.elapsed_s
    if (score := scored.grade.result.score) is not None:
        yield Point("public_score", score, scored.at, round(arrived_s))
    if scored.best is not None:
        yield Point("best_public_score", scored.best, scored.at, round(max(arrived_s, scored.grade.elapsed_s)))


def _submission_tags(run: RunDir, scored: Scored) -> dict[str, str]:
    event = scored.submission
    return {
        "a2rl.weights_digest": event.weights_digest,
        "a2rl.checkpoint": str(run.checkpoint(event.weights_digest)),
        "a2rl.code_revision": event.code_revision or "",
        "a2rl.model_path": event.model_path,
        "a2rl.adapter": event.adapter,
        "a2rl.reason": scored.grade.result.reason,
        **sample_tag(run),
    }


def _require_grown(run: RunDir, head: str | None, entries: list[Entry]) -> None:
    """Refuses a ledger that does not contain the head that MLflow has: mirroring it would hide that it was replaced.

    Raises:
        IntegrityError: The head is not in the ledger.
    """
    if head and head not in {entry.hash for entry in entries}:
        raise IntegrityError(
            f"MLflow has another ledger of run {run.id}, with the head {head[:16]}: this one was rewritten or cut off. "
            f"Nothing was changed in MLflow; `a2rl verify {run.id}` says more"
        )


def _require_unchanged(run: RunDir) -> None:
    """Refuses records that are not those with which the run ended.

    Raises:
        IntegrityError: A record was changed.
    """
    manifest = read_manifest(run)
    if manifest is not None and (changed := changed_files(run, manifest, RECORDS)):
        raise IntegrityError(f"{changed[0]}, so nothing was changed in MLflow; `a2rl verify {run.id}` says more")


def _child(found: Any) -> _Child:
    return _Child(found.info.run_id, found.info.artifact_uri, found.info.status in ("FINISHED", "FAILED"))
