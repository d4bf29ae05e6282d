"""Tests the leaderboard of bundles: what is shown, what is refused and why, and what is audited again."""

import csv
import io
import json
import shutil
import threading
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from a2rl.anchor.signatures import Head, HeadSignature, SigningKey, add_signature, load_public_key
from a2rl.anchor.signing import Signer, sign_heads
from a2rl.bundle import confined
from a2rl.bundle.archive import pack, unpack
from a2rl.bundle.audit import BASE_MODEL, NOT_DONE, RESULT, Audit
from a2rl.bundle.confined import Done, Shown, Work, shown_of
from a2rl.bundle.leaderboard import OTHER_DATA, Builder, Built, KeptAudit, is_tame
from a2rl.core import processes
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import read_model
from a2rl.core.settings import Settings
from a2rl.labels.records import LabelsRecord
from a2rl.results.report.page import write_report
from a2rl.results.suite.run_summary import summary_of
from a2rl.results.verify import CheckOutcome
from a2rl.validity.record import Finding, Validity, lower
from tests.bundles import audited_here, opened, rewritten, with_files
from tests.run_maker import checkout, finished_run, make_hidden
from tests.signing_key import make_key, public_path
from tests.simulated_runs import STACKS, TASKS, simulate_run
from tests.small_model import edit_json

MARKUP = "<img src=x onerror=alert(1)>"
ATOM = {"a": "http://www.w3.org/2005/Atom"}


class Given:
    """Bundles of strangers, and an auditor's checkout with the key of one of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "mine").mkdir()
        self.settings = checkout(folder / "mine")
        make_key(folder / "alice")
        self.signers = {load_public_key(public_path(folder / "alice")): "alice"}
        self.honest = self._bundle("honest", sign=True)
        self.marked = self._bundle("marked", driver=MARKUP, run_id="gsm8k-test-2")
        self.claiming = self._bundle("claiming", driver="mine")

    def _bundle(self, name: str, sign: bool = False, **changes: Any) -> Path:
        theirs = finished_run(self.folder / name, in_full=True, **changes)
        if sign:
            sign_heads(theirs.run, Signer(self.folder / "alice"))
        pack(theirs.run, target := self.folder / f"{name}.tar.gz", with_weights=False)
        shutil.rmtree(self.folder / name)
        return target

    def build(self, folder: Path, *bundles: Path, auditor: Callable[..., Done] = audited_here) -> Built:
        (folder / "bundles").mkdir(exist_ok=True)
        for bundle in bundles:
            shutil.copy(bundle, folder / "bundles")
        return Builder(folder / "site", self.settings, self.signers, auditor=auditor).build(folder / "bundles")


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Given:
    return Given(tmp_path_factory.mktemp("leaderboard"))


def _rows(built: Built) -> list[dict[str, str]]:
    with (built.page.parent / "runs.csv").open() as file:
        return list(csv.DictReader(file))


def _text(name: str, old: str, new: str) -> Callable[[Path, Path], Path]:
    """Replaces text in a file of the bundle, with a list that fits."""

    def forge(honest: Path, target: Path) -> Path:
        def edit(members: list[Any]) -> None:
            [content] = [content for entry, content in members if entry.name == name]
            assert old.encode() in content
            with_files({name: content.replace(old.encode(), new.encode(), 1)})(members)

        return rewritten(honest, target, edit)

    return forge


def _files(files: Mapping[str, bytes | None], **left_out: str) -> Callable[[Path, Path], Path]:
    return lambda honest, target: rewritten(honest, target, with_files(files, **left_out))


def _cut(honest: Path, target: Path) -> Path:
    target.write_bytes(honest.read_bytes()[:5000])
    return target


def _other(honest: Path, target: Path) -> Path:
    target.write_bytes(b"<script>alert(1)</script>")
    return target


FORGED: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "a better verdict": (_text("run/records/grade.json", "inconclusive", "improved"), "records"),
    "another seed": (_text("run/spec.json", '"seed": 0', '"seed": 1'), "settings"),
    "an entry of the ledger": (_text("run/ledger.jsonl", "elapsed_s", "elapsed_x"), ""),
    "no signature": (_files({"run/signatures.jsonl": b"{}\n"}), "signed"),
    "a page of their own": (_files({"run/report/index.html": b"<script>alert(1)</script>"}), "report"),
    "other items": (_text("run/grades/baseline.json", '"correct"', '"wrong"'), ""),
    "a log that is gone": (_files({"run/logs/agent.log": None}), "files"),
    "a validity that is gone": (_files({"run/records/validity.json": None}), "files"),
    "a file of no run": (_files({"run/.bashrc": b"x"}), "cannot have a file"),
    "a name that leads out": (_files({"run/logs/../../x": b"x"}), "cannot have a file"),
    "half a file": (_cut, "damaged"),
    "no bundle": (_other, "not a bundle"),
}  # fmt: skip


def test_every_forged_bundle_is_refused_with_the_reason(given: Given, tmp_path: Path) -> None:
    forged = [forge(given.honest, tmp_path / f"{name}.tar.gz") for name, (forge, _) in FORGED.items()]
    built = given.build(tmp_path, given.honest, *forged)
    assert (built.shown, len(built.refused)) == (1, len(FORGED))
    reasons = {name.partition(".tar.gz")[0]: why for name, why in built.refused.items()}
    assert [name for name, (_, part) in FORGED.items() if part not in reasons[name] or not reasons[name]] == []
    assert "<script>alert" not in built.page.read_text()


def test_the_table_says_who_signed_and_links_to_the_runs_page(given: Given, tmp_path: Path) -> None:
    built = given.build(tmp_path, given.honest, given.marked)
    assert {row["run_id"]: row["signed_by"] for row in _rows(built)} == {
        "gsm8k-test-1": "alice", "gsm8k-test-2": "nobody"
    }  # fmt: skip
    page = built.page.read_text()
    for row in _rows(built):
        assert f'href="runs/{row["bundle"]}.html"' in page
        assert "Score over time" in (built.page.parent / "runs" / f"{row['bundle']}.html").read_text()


def test_names_are_text_on_every_page_and_in_the_feed(given: Given, tmp_path: Path) -> None:
    built = given.build(tmp_path, given.marked)
    pages = [built.page, *(built.page.parent / "runs").iterdir()]
    assert len(pages) == 2
    assert not [page for page in pages if "<img" in page.read_text()]
    [entry] = ET.parse(built.page.parent / "feed.xml").findall("a:entry", ATOM)
    assert MARKUP in entry.findtext("a:title", "", ATOM)


def test_a_run_id_is_that_of_the_bundle_that_a_known_key_signed(given: Given, tmp_path: Path) -> None:
    first = given.build(tmp_path, given.claiming)
    assert [row["signed_by"] for row in _rows(first)] == ["nobody"]
    both = given.build(tmp_path, given.honest)
    assert [row["signed_by"] for row in _rows(both)] == ["alice"]
    [why] = both.refused.values()
    assert why.startswith("its run id gsm8k-test-1 belongs to the bundle")


def test_of_two_unsigned_claims_only_an_earlier_one_counts(given: Given, tmp_path: Path) -> None:
    other = _files({"run/logs/agent.log": None}, **{"logs__agent.log": "too large"})(
        given.claiming, tmp_path / "other.tar.gz"
    )
    together = given.build(tmp_path, given.claiming, other)
    assert together.shown == 0
    assert len(together.refused) == 2
    (tmp_path / "second").mkdir()
    given.build(tmp_path / "second", given.claiming)
    built = given.build(tmp_path / "second", other)
    assert (built.shown, next(iter(built.refused)).split()[0]) == (1, "other.tar.gz")


def test_anybody_may_hand_in_a_signed_run_again(given: Given, tmp_path: Path) -> None:
    """Neither a copy with other bytes nor one with fewer files takes the run from who signed it."""
    again = rewritten(given.honest, tmp_path / "again.tar.gz", lambda members: None)
    partial = _files({"run/logs/agent.log": None}, **{"logs__agent.log": "too large"})
    fewer = partial(given.honest, tmp_path / "fewer.tar.gz")
    built = given.build(tmp_path, fewer)
    assert [row["validity"] for row in _rows(built)] == ["flagged"]
    built = given.build(tmp_path, again, given.honest, fewer)
    assert [(row["signed_by"], row["validity"]) for row in _rows(built)] == [("alice", "valid")]
    assert len(built.refused) == 2


def test_a_signer_is_whose_key_signed_the_end(given: Given, tmp_path: Path) -> None:
    with opened(given.claiming, given.settings) as theirs:
        make_key(tmp_path / "mallory")
        rows = theirs.run.ledger.rows()
        for row, key in ((rows[3], given.folder / "alice"), (rows[-1], tmp_path / "mallory")):
            head = Head(seq=row.seq, hash=row.hash)
            add_signature(theirs.run.root, HeadSignature.make(theirs.run.id, head, row.at, SigningKey.load(key)))
        mallory = load_public_key(public_path(tmp_path / "mallory"))
        assert shown_of(theirs.run, theirs.settings).keys == {mallory}


def test_a_task_that_nobody_has_is_no_column(given: Given) -> None:
    with opened(given.honest, given.settings) as theirs:
        edit_json(theirs.run.root / "spec.json", task="invented\x1b[2J")
        with pytest.raises(UsageError, match="invented"):
            shown_of(theirs.run, theirs.settings)


def test_other_items_than_those_of_the_task_are_refused(given: Given, tmp_path: Path) -> None:
    """Here, the items of all bundles are those of the tests."""
    (tmp_path / "mine").mkdir()
    settings = checkout(tmp_path / "mine")
    (tmp_path / "bundles").mkdir()
    shutil.copy(given.honest, tmp_path / "bundles")
    for items, shown in ((8, 1), (9, 0)):
        shutil.rmtree(settings.data("gsm8k", "mini"), ignore_errors=True)
        make_hidden(settings.data("gsm8k", "mini") / "hidden", items)
        built = Builder(tmp_path / "site", settings, {}, auditor=audited_here).build(tmp_path / "bundles")
        assert (built.shown, list(built.refused.values())) == (shown, [OTHER_DATA] * (1 - shown))


def test_odd_files_do_not_keep_others_from_the_site(given: Given, tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    folder.mkdir()
    shutil.copy(given.marked, folder)
    shutil.copy(given.claiming, folder / "no text\udcff\n.tar.gz")
    with (folder / "holes.tar.gz").open("wb") as file:
        file.truncate(1 << 40)
    shutil.copy(given.honest, folder / "changes.tar.gz")

    def changed(bundle: Path, *more: Any, **given: Any) -> Done:
        done = audited_here(bundle, *more, **given)
        if bundle.name == "changes.tar.gz":
            bundle.write_bytes(bundle.read_bytes() + b"\0")
        return done

    built = given.build(tmp_path, auditor=changed)
    assert [row["run_id"] for row in _rows(built)] == ["gsm8k-test-2"]
    assert {name[:5]: why.partition(":")[0] for name, why in built.refused.items()} == {
        "chang": "the file changed while it was audited",
        "holes": "it has more than 68,719,476,736 bytes",
        "no te": "its path is not in UTF-8",
    }


def test_findings_that_are_too_many_are_not_kept(given: Given, tmp_path: Path) -> None:
    found = Audit(run_id="x", checks=(), validity=None, left_out=("a name",) * 500_000)
    built = given.build(tmp_path, given.honest, auditor=lambda *_, **__: Done(audit=found))
    assert "too large" in next(iter(built.refused.values()))
    [kept] = (tmp_path / "site" / "audits").iterdir()
    assert kept.stat().st_size < 1000


def test_what_was_left_out_is_flagged(given: Given, tmp_path: Path) -> None:
    partial = _files({"run/logs/agent.log": None}, **{"logs__agent.log": "too large"})
    built = given.build(tmp_path, partial(given.honest, tmp_path / "partial.tar.gz"))
    assert [row["validity"] for row in _rows(built)] == ["flagged"]


def test_a_void_run_stays_void_without_its_record(given: Given, tmp_path: Path) -> None:
    theirs = finished_run(tmp_path / "void", in_full=True)
    lower(theirs.run, [Finding.of("test", "void", "A test found something.")])
    write_report(theirs.run, theirs.settings)
    pack(theirs.run, whole := tmp_path / "void.tar.gz", with_weights=False)
    pages = {f"run/report/{path.name}": None for path in theirs.run.report.parent.iterdir()}
    without = _files({"run/records/validity.json": None, **pages}, **{"records__validity.json": "too large"})
    built = given.build(tmp_path, without(whole, tmp_path / "without.tar.gz"))
    assert [(row["validity"], float(row["gain"])) for row in _rows(built)] == [("void", 0.0)]


def test_labels_that_were_added_are_not_shown(given: Given, tmp_path: Path) -> None:
    label = {"route": "GRPO", "confidence": 1.0, "evidence": []}
    record = LabelsRecord.model_validate({"seconds": 0, "chain": [label], "training_type": "GRPO"})
    added = _files({"run/records/labels.json": record.model_dump_json().encode()})
    built = given.build(tmp_path, added(given.honest, tmp_path / "labelled.tar.gz"))
    assert built.shown == 1
    [kept] = (tmp_path / "site" / "audits").iterdir()
    assert read_model(kept, KeptAudit).summary.route == ()  # type: ignore[union-attr]


def test_what_was_left_out_is_flagged_whatever_was_tried(given: Given, tmp_path: Path) -> None:
    """The audit is kept from a build that graded anew, or tried to."""

    def tries_to_grade(bundle: Path, *more: Any, **given: Any) -> Done:
        done = audited_here(bundle, *more, **given)
        return done.model_copy(update={"audit": done.audit.model_copy(update={"not_regraded": {RESULT: "no weights"}})})

    partial = _files({"run/logs/agent.log": None}, **{"logs__agent.log": "too large"})
    (tmp_path / "bundles").mkdir()
    partial(given.honest, tmp_path / "bundles" / "partial.tar.gz")
    site = tmp_path / "site"
    tried = Builder(site, given.settings, given.signers, grades_anew=True, auditor=tries_to_grade)
    assert tried.build(tmp_path / "bundles").shown == 0
    built = given.build(tmp_path)
    assert (built.audited, [row["validity"] for row in _rows(built)]) == (0, ["flagged"])


def test_a_reason_is_as_short_as_a_page_needs(given: Given, tmp_path: Path) -> None:
    long = CheckOutcome("a check", problem="x" * 10**6)
    found = Done(audit=Audit(run_id="x", checks=(long,), validity=None))
    built = given.build(tmp_path, given.honest, auditor=lambda *_, **__: found)
    assert built.shown == 0
    assert all(len(why) < 1000 for why in built.refused.values())


def test_what_this_machine_could_not_grade_is_tried_again(given: Given, tmp_path: Path) -> None:
    failed = Audit(
        run_id="x", checks=(), validity=None, not_regraded={BASE_MODEL: "no memory is left"}, failed_here=True
    )
    asked: list[Path] = []

    def auditor(bundle: Path, *_: object, **__: object) -> Done:
        asked.append(bundle)
        return Done(audit=failed)

    for _ in range(2):
        built = given.build(tmp_path, given.honest, auditor=auditor)
        assert built.shown == 0
    assert len(asked) == 2
    assert failed.exit_code == NOT_DONE


def test_a_bundle_above_the_limit_is_tried_again_under_another(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits: list[int] = []

    def auditor(bundle: Path, settings: Settings, *more: Any, **_: object) -> Done:
        limits.append(more[3])
        unpack(bundle, tmp_path / f"unpacked-{len(limits)}", more[3] - 10**9)
        raise UsageError("it is damaged")

    builds = [Builder(tmp_path / "site", given.settings, {}, False, 10**9 + size, auditor) for size in (10, 10, 10**9)]
    shutil.copy(given.honest, tmp_path)
    reasons = [*builds[0].build(tmp_path).refused.values(), *builds[1].build(tmp_path).refused.values()]
    assert ["--max-gb" in reason for reason in reasons] == [True, True]
    assert list(builds[2].build(tmp_path).refused.values()) == ["it is damaged"]
    assert limits == [10**9 + 10, 2 * 10**9]


def test_a_bundle_that_the_disk_has_no_room_for_is_tried_again(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.bundle.archive.FREE_DISK_MARGIN", 1 << 60)
    with pytest.raises(InfrastructureError, match="free some space"):
        given.build(tmp_path, given.honest)
    assert not (tmp_path / "site").exists()


def test_a_page_that_cannot_be_drawn_is_not_shown(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.bundle.confined.report_files", lambda *_: {})
    built = given.build(tmp_path, given.honest)
    assert (built.shown, built.refused) == (1, {})
    assert list((built.page.parent / "runs").glob("*")) == []


def test_an_audit_says_no_more_than_a_reader_can_keep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(bundle=tmp_path, scratch=tmp_path, max_bytes=1, keys=frozenset(), published=None, gpu_locks=tmp_path)
    found = Done(audit=Audit(run_id="x", checks=(), validity=None, left_out=("a name",) * 1000))
    monkeypatch.setattr(confined, "_confine", lambda *_: None)
    monkeypatch.setattr(confined, "_do", lambda *_: found)
    monkeypatch.setattr(confined, "MAX_SAID_CHARS", 5000)
    confined.main(io.StringIO(f'{{"use": {{}}, "hide": {{}}}}\n{work.model_dump_json()}'), said := io.StringIO())
    assert json.loads(said.getvalue()) == {
        "problem": "the bundle has more findings, names or figures than any run has", "usage": True
    }  # fmt: skip


def test_an_audit_ends_when_the_user_stops_it(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    stop = threading.Event()
    stop.set()
    monkeypatch.setattr(processes, "STOP", stop)
    monkeypatch.setattr(confined, "module_command", lambda _: ["sleep", "600"])
    with pytest.raises(InfrastructureError, match="ended without a result"):
        confined.audit_bundle(given.honest, given.settings, frozenset(), None, False, 1)


def test_a_bundle_whose_audit_takes_too_long_is_refused(given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confined, "module_command", lambda _: ["bash", "-c", "kill -XCPU $$"])
    with pytest.raises(UsageError, match="processor time"):
        confined.audit_bundle(given.honest, given.settings, frozenset(), None, False, 1)


def test_ctrl_c_stops_the_audits_that_others_make(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object, **__: object) -> Done:
        raise KeyboardInterrupt

    monkeypatch.setattr("a2rl.bundle.leaderboard.STOP", stop := threading.Event())
    with pytest.raises(KeyboardInterrupt):
        given.build(tmp_path, given.honest, auditor=interrupted)
    assert stop.is_set()


@pytest.mark.heavy
def test_a_bundle_is_audited_once_until_the_code_changes(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert given.build(tmp_path, given.honest).audited == 1
    again = given.build(tmp_path, given.marked)
    assert (again.shown, again.audited) == (2, 1)
    [page, _] = (tmp_path / "site" / "runs").iterdir()
    page.unlink()
    assert given.build(tmp_path).audited == 1
    monkeypatch.setattr("a2rl.bundle.leaderboard.FOLDERS", ("agents",))
    assert given.build(tmp_path).audited == 2


def test_what_leaves_the_folder_leaves_the_site(given: Given, tmp_path: Path) -> None:
    given.build(tmp_path, given.honest, given.marked)
    (tmp_path / "bundles" / given.marked.name).unlink()
    (tmp_path / "site" / "runs" / "my own.html").write_text("written by hand")
    built = given.build(tmp_path)
    kept = {path.stem for name in ("runs", "audits") for path in (built.page.parent / name).iterdir()}
    assert kept == {row["bundle"] for row in _rows(built)} | {"my own"}
    assert len(kept) == 2


def test_a_bundle_is_audited_in_the_sandbox(given: Given, tmp_path: Path) -> None:
    folder = tmp_path / "bundles"
    folder.mkdir()
    shutil.copy(given.honest, folder)
    built = Builder(tmp_path / "site", given.settings, given.signers).build(folder)
    assert (built.shown, built.refused) == (1, {})
    [kept] = (tmp_path / "site" / "audits").iterdir()
    assert KeptAudit.model_validate_json(kept.read_text()).has_page


def test_a_machine_that_cannot_audit_writes_no_site(given: Given, tmp_path: Path) -> None:
    def fails(*_: object, **__: object) -> Done:
        raise InfrastructureError("no Landlock")

    with pytest.raises(InfrastructureError, match="no Landlock"):
        given.build(tmp_path, given.honest, auditor=fails)
    assert not (tmp_path / "site").exists()


def test_a_folder_without_bundles_is_an_error(given: Given, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no bundle"):
        given.build(tmp_path)


@pytest.mark.parametrize(
    "value",
    [1e13, -1e13, float("inf"), float("nan"), 10**5000, "x" * 3000, {"a": [(1e300,)]}, {"x" * 3000: 1}],
    ids=range(8),
)
def test_figures_that_would_break_a_page_are_refused(value: object) -> None:
    assert not is_tame(value)
    assert is_tame({"a": [1, 2.5, None, True, "b"]})


class Simulated:
    """An auditor of files that each name a simulated run."""

    def __init__(self, folder: Path) -> None:
        self.settings = checkout(folder)

    def __call__(self, bundle: Path, *_: object, **__: object) -> Done:
        number, agent, driver, changes = json.loads(bundle.read_text())
        task = TASKS[number % len(TASKS)]
        run = simulate_run(self.settings, number, task=task, agent=agent, driver=driver, seed=number, submissions=2)
        summary = summary_of(run).model_copy(update={"validity": "valid", **changes})
        found = Audit(run_id=run.id, checks=(), validity=Validity(word="valid"))
        return Done(audit=found, shown=Shown(summary=summary, keys=frozenset(), page="<!doctype html>"))

    @staticmethod
    def bundles(folder: Path, runs: int, stacks: int = len(STACKS), **changes: object) -> Path:
        """Writes the files."""
        folder.mkdir()
        for number in range(runs):
            agent, driver = STACKS[number % len(STACKS)] if stacks == len(STACKS) else (f"agent-{number % stacks}", "x")
            (folder / f"{number}.tar.gz").write_text(json.dumps([number, agent, driver, changes]))
        return folder


@pytest.mark.heavy
def test_hundreds_of_runs_are_ranked_compared_and_announced(tmp_path: Path) -> None:
    (tmp_path / "checkout").mkdir()
    auditor = Simulated(tmp_path / "checkout")
    bundles = auditor.bundles(tmp_path / "bundles", 200)
    built = Builder(tmp_path / "site", auditor.settings, {}, auditor=auditor).build(bundles, jobs=2)
    assert (built.shown, len(_rows(built))) == (200, 200)
    page = built.page.read_text()
    assert page.count('href="runs/') == 200
    assert 'id="comparisons-mini"' in page
    entries = ET.parse(tmp_path / "site" / "feed.xml").findall("a:entry", ATOM)
    assert len(entries) == 100
    report = json.loads((tmp_path / "site" / "report.json").read_text())
    assert {each["stack"] for each in report["standings"]} == {" · ".join(stack) for stack in STACKS}


def test_extreme_figures_and_too_many_stacks_break_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("a2rl.bundle.leaderboard.MOST_STACKS", 6)
    (tmp_path / "checkout").mkdir()
    auditor = Simulated(tmp_path / "checkout")
    large = {"cost_usd": 1e12, "agent_s": 1e-320, "tokens": 0, "parameters": 1, "reason": "$x_{" * 1000}
    bundles = auditor.bundles(tmp_path / "bundles", 9, 9, **large)
    built = Builder(tmp_path / "site", auditor.settings, {}, auditor=auditor).build(bundles)
    assert built.shown == 6
    assert set(built.refused.values()) == {"the leaderboard ranks the 6 stacks with the most runs"}


@pytest.mark.parametrize("budget_s", [1e-320, 1e-6])
def test_a_forged_budget_stretches_no_axis(tmp_path: Path, budget_s: float) -> None:
    for name in ("checkout", "forger"):
        (tmp_path / name).mkdir()
    auditor = Simulated(tmp_path / "checkout")
    bundles = auditor.bundles(tmp_path / "bundles", 2)
    forged = bundles / "0.tar.gz"
    shown = Simulated(tmp_path / "forger")(forged).shown
    assert shown is not None
    changes = {"settings": shown.summary.settings | {"budget_s": budget_s}}
    forged.write_text(json.dumps([*json.loads(forged.read_text())[:3], changes]))
    built = Builder(tmp_path / "site", auditor.settings, {}, auditor=auditor).build(bundles)
    assert built.shown == 2
    with (tmp_path / "site/figures/mini/best-over-time.csv").open() as file:
        assert max(float(row["at"]) for row in csv.DictReader(file)) <= 105
