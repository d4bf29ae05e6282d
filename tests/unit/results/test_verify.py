"""Tests `a2rl verify`: a valid run passes, and the right check finds each kind of tampering."""

import itertools
import json
import shutil
import sqlite3
import time
from collections.abc import Callable, Collection
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from a2rl.anchor.signing import Signer, sign_heads
from a2rl.cli.results import run_object, sentence
from a2rl.core.errors import InfrastructureError
from a2rl.core.files import canonical_json, digest_of, file_digest, read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult, ids_of_run, selected_ids
from a2rl.results.figures import improvement_of
from a2rl.results.manifest import FILE as MANIFEST
from a2rl.results.manifest import manifest_of
from a2rl.results.mlflow.store import CHILD_TAG
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.results.suite.run_summary import summary_of
from a2rl.results.verify import Absent, CheckOutcome, Trust, commit_here, verify_run
from a2rl.results.verify.check import check_report, made
from a2rl.run import ledger
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, PrivateGraded
from a2rl.run.failure import record_failure
from a2rl.run.inputs import hidden_of
from a2rl.run.ledger import GENESIS
from a2rl.run.ranking import chosen_among, selection_note
from a2rl.run.records import SetupRecord
from a2rl.scoring.score import summarise
from a2rl.validity.record import Finding, lower
from stages.grade import grade
from tests import run_maker
from tests.run_maker import Finished, end_agent, finished_run, grade_result, item_results, judge_and_close, make_run
from tests.signing_key import make_key
from tests.small_model import edit_json

CHAIN = "the ledger's hash chain"
SPEC = "the settings are those the run was opened with"
GRADES = "every submission ends in exactly one way"
CHECKPOINTS = "checkpoints are the ones that were graded"
ITEMS = "scores follow from the per-item results"
RECORDS = "the records follow from the ledger"
ACCOUNT = "the judge was paid what the record says"
MLFLOW = "MLflow shows what the ledger says"
DRAW = "the eval set follows from the draw that the run committed to"
VALIDITY = "the validity only became worse, and its findings are unchanged"
SIGNED = "the ledger's heads are signed"
PUBLISHED = "the ledger has the heads that were published"
INPUTS = "the base model and the data are those the run began with"
BASELINE = "the baseline is that of this base model and these items"
FILES = "files are those with which the run ended"
CODE = "the agent's code is that of its history"
REPORT = "the report is that of the run"
EVERY = {
    CHAIN,
    SIGNED,
    PUBLISHED,
    SPEC,
    DRAW,
    VALIDITY,
    INPUTS,
    GRADES,
    CHECKPOINTS,
    BASELINE,
    ITEMS,
    RECORDS,
    ACCOUNT,
    FILES,
    CODE,
    REPORT,
    MLFLOW,
}


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A finished run, made once. Each test gets a copy of its folder at the same path."""
    return finished_run(tmp_path_factory.mktemp("verify") / "checkout")


@pytest.fixture
def finished(original: Finished, tmp_path: Path) -> Finished:
    kept = tmp_path / "kept"
    shutil.copytree(original.settings.root, kept, symlinks=True)
    settings = Settings(kept, original.settings.environ)
    return Finished(RunDir(settings.runs / original.run.id), settings)


def problems(finished: Finished) -> dict[str, str]:
    checks = verify_run(finished.run, Tracker(finished.settings))
    assert {check.what for check in checks} == EVERY
    return {check.what: check.problem for check in checks if check.problem}


def test_a_finished_run_is_sound(finished: Finished) -> None:
    assert problems(finished) == {}


def test_signatures_that_were_removed_are_missed(finished: Finished, tmp_path: Path) -> None:
    """No public key is given, but this checkout's own key remembers that it has signed the run."""
    make_key(tmp_path / "key")
    signer = Signer(tmp_path / "key")
    trust = Trust(history=signer.history)

    def signed() -> CheckOutcome:
        [found] = [check for check in verify_run(finished.run, None, trust) if check.what == SIGNED]
        return found

    assert signed().not_checked
    sign_heads(finished.run, signer)
    assert not signed().problem
    (finished.run.root / "signatures.jsonl").unlink()
    assert "its signatures were removed" in signed().problem


def test_a_finished_run_of_the_paper_protocol_is_sound(tmp_path: Path) -> None:
    assert problems(finished_run(tmp_path / "paper", protocol="paper")) == {}


def test_a_run_whose_clock_was_set_back_is_sound_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hours = itertools.count()
    monkeypatch.setattr(ledger, "time", SimpleNamespace(time=lambda: 1_800_000_000.0 - 3600 * next(hours)))
    finished = finished_run(tmp_path / "checkout", in_full=True)
    times = [entry.at for entry in finished.run.ledger.entries()]
    assert times == sorted(times, reverse=True)
    assert problems(finished) == {}
    assert summary_of(finished.run).is_finished


@pytest.mark.heavy
def test_the_best_of_several_on_all_items_is_held_to_more(tmp_path: Path) -> None:
    """Seven gains in eight items and no loss prove more for a single checkpoint than for the best of three."""
    strict, paper = (finished_run(tmp_path / name, protocol=name) for name in ("strict", "paper"))
    ids = [str(number) for number in range(8)]
    for each in (strict, paper):
        write_model(each.run.baseline_items, grade_result(item_results(ids, 0), 0.5))
    one, best = (improvement_of(each.run, item_results(ids, 7)) for each in (strict, paper))
    assert chosen_among(strict.run) == 1
    assert chosen_among(paper.run) == len({grade.weights_digest for grade in paper.run.ledger.events(Graded)}) == 3
    assert one is not None
    assert best is not None
    assert one.points == best.points == 87.5
    assert one.ci.low > 0
    assert best.ci.low < one.ci.low


@pytest.mark.heavy
def test_the_best_of_several_is_called_that_wherever_it_is_shown(tmp_path: Path) -> None:
    paper = finished_run(tmp_path / "paper", protocol="paper")
    note = "best of 3 submissions on the whole eval set; selection makes it optimistic (cross-fitted, the gain is +25.0"
    note += " points)"
    assert selection_note(paper.run) == note
    assert note in sentence(paper.run)
    assert run_object(paper.run)["selection"] == note
    write_report(paper.run, paper.settings)
    assert note in paper.run.report.read_text()
    parent = Tracker(paper.settings).store.find("a2rl.run_id", paper.run.id, paper.run.spec.suite)
    assert parent.data.tags["a2rl.selection"] == note
    mirrored = Tracker(paper.settings).mirrored(paper.run)["result"].metrics
    assert mirrored["chosen_among"] == 3
    assert mirrored["improvement_cross_fitted"] == run_object(paper.run)["cross_fitted"] == 25.0
    assert problems(paper) == {}


def test_an_only_submission_is_called_that_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paper = finished_run(tmp_path / "paper", protocol="paper")
    monkeypatch.setattr("a2rl.run.ranking.chosen_among", lambda _: 1)
    assert "This is the only submission, on the whole eval set." in sentence(paper.run)


def test_a_run_whose_final_items_could_not_be_judged_has_no_gain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def grade_nothing(run: RunDir) -> None:
        [best] = [each for each in run.ledger.events(Graded)][-1:]
        items = item_results(ids_of_run(run.spec, hidden_of(run), "private"), 3)
        lost = tuple(item.model_copy(update={"verdict": "errored", "reason": "the game failed"}) for item in items)
        write_model(run.items(best.weights_digest, "private"), grade_result(lost, 0.5))

    monkeypatch.setattr(run_maker, "grade_private", grade_nothing)
    done = finished_run(tmp_path / "lost")
    facts, counted = run_object(done.run), summary_of(done.run)
    assert (facts["verdict"], facts["improvement"], facts["gain"]) == ("failed", None, 0.0)
    assert (counted.gain, counted.final, counted.gains) == (0.0, None, ())
    assert "could not be judged" in done.run.report.read_text()
    assert problems(done) == {}


def test_a_forged_cross_fitted_gain_is_found(tmp_path: Path) -> None:
    paper = finished_run(tmp_path / "paper", protocol="paper")
    kept = json.loads(record(paper).read_text())
    record(paper).write_text(json.dumps({**kept, "cross_fitted": 80.0}))
    assert any("cross-fitted" in problem for problem in problems(paper).values())


def test_nothing_of_the_kind_is_said_of_held_out_items(finished: Finished) -> None:
    assert selection_note(finished.run) == run_object(finished.run)["selection"] == ""
    write_report(finished.run, finished.settings)
    assert "optimistic" not in finished.run.report.read_text()


@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_a_run_on_a_sample_is_sound_and_always_called_a_sample(tmp_path: Path, protocol: str) -> None:
    sampled = finished_run(tmp_path / "sampled", items=20, limit=8, protocol=protocol)
    run, settings = sampled
    assert problems(sampled) == {}
    graded = read_model(next(run.grades.glob("*-[ap]*.json")), GradeResult).items
    assert len(graded) == (4 if protocol == "strict" else 8)
    note = "sample of 8 of 20"
    assert f"a {note} items" in sentence(run)
    assert (run_object(run)["sample"], run_object(run)["limit"]) == (note, 8)
    write_report(run, settings)
    assert run.report.read_text().count(note) >= 3
    tracker = Tracker(settings)
    parent = tracker.store.find("a2rl.run_id", run.id, run.spec.suite)
    assert parent.data.tags["a2rl.sample"] == note
    assert parent.data.params["limit"] == "8"
    children = tracker.store.children(run.spec.suite, parent.info.run_id)
    assert {child.data.tags["a2rl.sample"] for child in children.values()} == {note}


def test_nothing_of_a_sample_is_said_of_a_whole_eval_set(finished: Finished) -> None:
    write_report(finished.run, finished.settings)
    assert "sample of" not in finished.run.report.read_text() + sentence(finished.run)
    run = finished.run
    found = Tracker(finished.settings).store.find("a2rl.run_id", run.id, run.spec.suite)
    assert "a2rl.sample" not in found.data.tags


def test_a_run_without_submissions_is_sound(settings: Settings, base_model: Path) -> None:
    run = make_run(settings, base_model)
    end_agent(run)
    assert grade(run, settings).verdict == "no submission"
    Tracker(settings).sync(run)
    assert problems(Finished(run, settings)) == {}


def test_a_failed_run_whose_clock_runs_on_is_sound(settings: Settings, base_model: Path) -> None:
    """Its pipeline was killed while the agent worked, and it could not be resumed."""
    run = make_run(settings, base_model, git_commit=commit_here())
    record_failure(run, "execute", InfrastructureError("the GPUs do not become free"))
    judge_and_close(run, settings)
    assert run.clock.read_state().running_since is not None
    assert problems(Finished(run, settings)) == {}
    assert of_report(Finished(run, settings)) == CheckOutcome(REPORT)


def test_a_damaged_mlflow_says_nothing_about_the_run(finished: Finished, tmp_path: Path) -> None:
    (tmp_path / "damaged.db").write_text("no database")
    uri = {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path / 'damaged.db'}"}
    settings = Settings(finished.settings.root, {**finished.settings.environ, **uri})
    found = {check.what: check for check in verify_run(finished.run, Tracker(settings))}[MLFLOW]
    assert found.problem == ""
    assert "not a database; move that file away" in found.not_checked


def test_mirroring_again_changes_nothing(finished: Finished) -> None:
    before = Tracker(finished.settings).mirrored(finished.run)
    assert set(before) == {"result", "baseline", "submission 1", "submission 2", "submission 3"}
    Tracker(finished.settings).sync(finished.run)
    assert Tracker(finished.settings).mirrored(finished.run) == before
    assert problems(finished) == {}


@pytest.mark.parametrize("name", ["submission 99", "submission 1", "baseline", "result"])
def test_a_nested_run_that_was_added_in_mlflow_is_found(finished: Finished, name: str) -> None:
    store, run = Tracker(finished.settings).store, finished.run
    parent = store.find("a2rl.run_id", run.id, run.spec.suite).info.run_id
    store.create(run.spec.suite, name, time.time(), {"mlflow.parentRunId": parent, CHILD_TAG: name})
    assert "which is no part of the run" in problems(finished)[MLFLOW]


@pytest.mark.parametrize("kind", ["graded", "submission_received"])
def test_a_chain_of_a_submission_that_lacks_an_event_is_found(finished: Finished, kind: str) -> None:
    forge(finished.run, lambda kind, event: None, without={kind})
    assert GRADES in problems(finished)


def of_report(finished: Finished) -> CheckOutcome:
    return next(check for check in verify_run(finished.run, None) if check.what == REPORT)


def with_its_digests(finished: Finished) -> Finished:
    """Makes the manifest and its digest in the ledger those of the files, as whoever makes a bundle can."""
    run = finished.run
    write_model(run.root / MANIFEST, manifest_of(run))

    def matching(kind: str, event: dict[str, Any]) -> None:
        if kind == "run_closed":
            event["manifest_digest"] = file_digest(run.root / MANIFEST)

    forge(run, matching)
    return finished


def with_a_forged_page(finished: Finished) -> Finished:
    page = finished.run.report.read_text()
    finished.run.report.write_text(page.replace("<footer>", "<script>alert(1)</script><footer>"))
    return with_its_digests(finished)


def test_a_page_of_the_runs_end_and_one_drawn_later_pass(tmp_path: Path) -> None:
    finished = finished_run(tmp_path / "checkout", in_full=True)
    assert of_report(finished) == CheckOutcome(REPORT)
    write_report(finished.run, finished.settings)
    assert of_report(finished) == CheckOutcome(REPORT)


def test_a_forged_page_with_all_digests_is_found(tmp_path: Path) -> None:
    finished = with_a_forged_page(finished_run(tmp_path / "checkout", git_commit=commit_here()))
    assert "is not that of this run" in of_report(finished).problem


def test_a_page_of_another_version_is_not_vouched_for(tmp_path: Path) -> None:
    finished = with_a_forged_page(finished_run(tmp_path / "checkout", git_commit="ab" * 20))
    found = of_report(finished)
    assert found.problem == ""
    assert f"by this version instead of a2rl {'ab' * 6}, the page differs; the figures" in found.not_checked
    assert "are those of the run (not compared: texts, comparable)" in found.not_checked


def test_without_git_a_page_of_this_version_is_vouched_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("a2rl.results.verify.check.commit_here", lambda: "")
    finished = with_a_forged_page(finished_run(tmp_path / "checkout"))
    assert "is not that of this run" in of_report(finished).problem
    other = with_a_forged_page(finished_run(tmp_path / "other", versions={"a2rl": "0"}))
    assert "by this version instead of a2rl 0, the page differs" in of_report(other).not_checked


def test_a_page_is_not_vouched_for_if_files_are_left_out(tmp_path: Path) -> None:
    finished = with_a_forged_page(finished_run(tmp_path / "checkout", git_commit=commit_here()))
    found = made(REPORT, lambda: check_report(finished.run, Absent(files=frozenset({"trajectory.json"}))))
    assert "drawn without trajectory.json, the page differs" in found.not_checked


def test_without_git_no_page_is_a_forgery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = finished_run(tmp_path / "checkout", in_full=True)
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    assert "git is not installed" in of_report(finished).not_checked


def of_forged_figures(finished: Finished, change: Callable[[dict[str, Any]], None]) -> CheckOutcome:
    path = finished.run.report.with_name("report.json")
    report = json.loads(path.read_text())
    change(report)
    path.write_text(json.dumps(report))
    with_its_digests(finished)
    return made(REPORT, lambda: check_report(finished.run, Absent()))


@pytest.mark.parametrize(
    ("place", "forged"),
    [
        ("improvement", 99.9), ("improvement", {}), ("verdict", "worse"), ("validity", "void"), ("submissions", []),
        ("submissions.0.score", 99.9), ("submissions.0.elapsed_s", 1.0), ("metrics.time_to_best", 1.0),
        ("elapsed_s", 1.0), ("budget_s", 1.0), ("cross_fitted", 99.9),
        ("settings.model", "another"), ("agent", "another"), ("task", "another"),
        ("seen", {"requests": 1}), ("baseline", []), ("final.score", "99.9"),
    ],
)  # fmt: skip
def test_other_figures_in_a_report_of_any_version_are_found(finished: Finished, place: str, forged: Any) -> None:
    def forge_figure(report: Any) -> None:
        *outer, name = [int(each) if each.isdigit() else each for each in place.split(".")]
        for each in outer:
            report = report[each]
        assert report[name] != forged
        report[name] = forged

    assert f"report.json has another {place} than the run" in of_forged_figures(finished, forge_figure).problem


def test_figures_that_a_report_lacks_are_named(finished: Finished) -> None:
    def forge_figures(report: dict[str, Any]) -> None:
        report |= {"more": 1, "baseline": {}, "story": ["Nothing."]}
        del report["gain"]

    found = of_forged_figures(finished, forge_figures)
    assert "(not compared: texts, comparable, baseline.ci, baseline.correct, baseline.errored and " in found.not_checked


def test_a_page_drawn_before_the_validity_fell_is_no_forgery(tmp_path: Path) -> None:
    finished = finished_run(tmp_path / "checkout", git_commit=commit_here())
    lower(finished.run, [Finding.of("test", "void", "A test found something.")])
    found = of_report(finished)
    assert found.problem == ""
    assert "drawn with a newer records/validity.json, the page differs" in found.not_checked


def test_a_page_that_cannot_be_drawn_here_is_not_checked(tmp_path: Path) -> None:
    finished = finished_run(tmp_path / "checkout", git_commit=commit_here())
    (finished.settings.root / "agents").unlink()
    assert "cannot be drawn here" in of_report(finished).not_checked


def test_the_page_of_an_agent_whose_script_is_gone_is_checked(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.touch()
    finished = finished_run(tmp_path / "checkout", agent=str(script), git_commit=commit_here())
    script.unlink()
    found = of_report(finished)
    assert (found.problem, found.not_checked) == ("", "")


# The ways of tampering, and the checks that must find each.
def ledger_sql(run: RunDir, *statements: str) -> None:
    with closing(sqlite3.connect(run.root / "ledger.db")) as database:
        for statement in ("DROP TRIGGER no_update", "DROP TRIGGER no_delete", *statements):
            database.execute(statement)
        database.commit()


def mlflow_sql(finished: Finished, statement: str) -> None:
    with closing(sqlite3.connect(finished.settings.mlruns / "mlflow.db")) as database:
        assert database.execute(statement).rowcount > 0
        database.commit()


def forge(
    run: RunDir, edit: Callable[[str, dict[str, Any]], None], drop_last: int = 0, without: Collection[str] = ()
) -> None:
    """Rewrites the ledger with a chain that is valid."""
    with closing(sqlite3.connect(run.root / "ledger.db")) as database:
        kept = database.execute("SELECT at, kind, body FROM events ORDER BY seq").fetchall()
        rows = [(seq, *row) for seq, row in enumerate((row for row in kept if row[1] not in without), start=1)]
        database.execute("DROP TRIGGER no_delete")
        database.execute("DELETE FROM events")
        previous = GENESIS
        for seq, at, kind, body in rows[: len(rows) - drop_last]:
            value = json.loads(body)
            edit(kind, value)
            forged = canonical_json(value)
            entry_hash = digest_of([seq, at, kind, forged, previous])
            database.execute(
                "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", (seq, at, kind, forged, previous, entry_hash)
            )
            previous = entry_hash
        database.commit()


def longer_budget(finished: Finished) -> None:
    edit_json(finished.run.root / "spec.json", budget_s=86400.0)


def other_split(finished: Finished) -> None:
    edit_json(finished.run.root / "spec.json", split_seed=8)


def edited_entry(finished: Finished) -> None:
    ledger_sql(
        finished.run, "UPDATE events SET body = replace(body, '\"correct\":', '\"correct\": ') WHERE kind = 'graded'"
    )


def unreadable_entry(finished: Finished) -> None:
    ledger_sql(finished.run, "UPDATE events SET body = '{' WHERE kind = 'graded'")


def removed_entry(finished: Finished) -> None:
    ledger_sql(finished.run, "DELETE FROM events WHERE seq = (SELECT min(seq) FROM events WHERE kind = 'graded')")


def no_ledger(finished: Finished) -> None:
    for path in finished.run.root.glob("ledger.db*"):
        path.unlink()


def garbage_ledger(finished: Finished) -> None:
    for path in finished.run.root.glob("ledger.db-*"):
        path.unlink()
    (finished.run.root / "ledger.db").write_bytes(b"garbage " * 1000)


def forged_score(finished: Finished) -> None:
    def better(kind: str, event: dict[str, Any]) -> None:
        if kind in {"graded", "private_graded"}:
            event["result"]["score"] = 100.0

    forge(finished.run, better)


def graded_on_other_items(finished: Finished) -> None:
    """Replaces the public items by the private ones, with the same values and a matching digest in the ledger."""
    run, hidden = finished.run, finished.run.need("setup", SetupRecord).hidden
    digest = run.ledger.events(Graded)[0].weights_digest
    path = run.items(digest, "public")
    items = read_model(path, GradeResult).items
    others = ids_of_run(run.spec, hidden, "private")
    renamed = [item.model_copy(update={"id": other}) for item, other in zip(items, others, strict=True)]
    write_model(path, GradeResult(score=summarise(renamed), items=tuple(renamed)))

    def matching(kind: str, event: dict[str, Any]) -> None:
        if kind == "graded" and event["weights_digest"] == digest:
            event["items_digest"] = file_digest(path)

    forge(run, matching)


def forged_private_score_everywhere_but_mlflow(finished: Finished) -> None:
    """Forges the private score, with a matching grade file, record and chain."""
    run = finished.run
    ids = selected_ids("gsm8k", run.need("setup", SetupRecord).hidden, "private", run.spec.split_seed)
    result = grade_result(item_results(ids, len(ids)), 0.5)
    [private] = run.ledger.events(PrivateGraded)
    path = run.items(private.weights_digest, "private")
    write_model(path, result)

    def better(kind: str, event: dict[str, Any]) -> None:
        if kind == "private_graded":
            event.update(result=result.score.model_dump(mode="json"), items_digest=file_digest(path))

    forge(run, better)
    edit_json(run.record_path("grade"), final=result.score.model_dump(mode="json"))


def last_entries_cut_off(finished: Finished) -> None:
    forge(finished.run, lambda kind, event: None, drop_last=1)


def edited_checkpoint(finished: Finished) -> None:
    path = next(finished.run.checkpoints.glob("*/model.safetensors"))
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")


def truncated_checkpoint(finished: Finished) -> None:
    path = next(finished.run.checkpoints.glob("*/model.safetensors"))
    path.write_bytes(path.read_bytes()[:-1])


def removed_checkpoint(finished: Finished) -> None:
    shutil.rmtree(next(finished.run.checkpoints.iterdir()))


def edited_grade_file(finished: Finished) -> None:
    path = next(finished.run.grades.glob("*-public.json"))
    path.write_text(path.read_text().replace('"wrong"', '"correct"', 1))


def edited_private_grade_file(finished: Finished) -> None:
    path = next(finished.run.grades.glob("*-private.json"))
    path.write_text(path.read_text() + " ")


def removed_grade_file(finished: Finished) -> None:
    next(finished.run.grades.glob("*-public.json")).unlink()


def edited_baseline_items(finished: Finished) -> None:
    path = finished.run.baseline_items
    ids = [item["id"] for item in json.loads(path.read_text())["items"]]
    write_model(path, grade_result(item_results(ids, 0), 0.5))


def record(finished: Finished) -> Path:
    return finished.run.record_path("grade")


def record_scores(finished: Finished) -> dict[str, Any]:
    return cast(dict[str, Any], json.loads(record(finished).read_text()))


def other_public_score(finished: Finished) -> None:
    edit_json(record(finished), public={**record_scores(finished)["public"], "score": 99.0})


def other_final_score(finished: Finished) -> None:
    edit_json(record(finished), final={**record_scores(finished)["final"], "score": 99.0})


def other_baseline(finished: Finished) -> None:
    edit_json(record(finished), baseline={**record_scores(finished)["baseline"], "score": 0.0})


def other_improvement(finished: Finished) -> None:
    edit_json(record(finished), improvement=50.0)


def other_interval(finished: Finished) -> None:
    edit_json(record(finished), improvement_ci=[10.0, 60.0])


def other_verdict(finished: Finished) -> None:
    edit_json(record(finished), verdict="worse")


def fewer_submissions_to_choose_among(finished: Finished) -> None:
    edit_json(record(finished), chosen_among=2)


def other_best(finished: Finished) -> None:
    edit_json(record(finished), submission_id=record_scores(finished)["submission_id"] % 3 + 1)


def unreadable_record(finished: Finished) -> None:
    record(finished).write_text("{")


def other_metric_of_a_submission(finished: Finished) -> None:
    mlflow_sql(finished, "UPDATE latest_metrics SET value = 99 WHERE key = 'score'")


def other_final_metric(finished: Finished) -> None:
    mlflow_sql(finished, "UPDATE latest_metrics SET value = 99 WHERE key = 'baseline'")


def other_score_of_the_baseline_in_mlflow(finished: Finished) -> None:
    of_baseline = "run_uuid IN (SELECT run_uuid FROM tags WHERE key = 'a2rl.child' AND value = 'baseline')"
    mlflow_sql(finished, f"UPDATE latest_metrics SET value = 99 WHERE key = 'score' AND {of_baseline}")


def other_count_of_a_submission_in_mlflow(finished: Finished) -> None:
    mlflow_sql(finished, "UPDATE latest_metrics SET value = 99 WHERE key = 'correct'")


def other_metric_in_mlflow_than_there_was(finished: Finished) -> None:
    mlflow_sql(finished, "UPDATE latest_metrics SET key = 'measure.wins' WHERE key = 'truncated'")


def other_end_of_a_curve_in_mlflow(finished: Finished) -> None:
    mlflow_sql(finished, "UPDATE latest_metrics SET value = 99 WHERE key = 'best_public_score'")


def other_improvement_metric(finished: Finished) -> None:
    mlflow_sql(finished, "UPDATE latest_metrics SET value = 99 WHERE key = 'improvement'")


def more_tokens_at_a_submission_than_in_all(finished: Finished) -> None:
    edit_json(finished.run.record_path("execute"), tokens_at={"1": 99})


def removed_from_mlflow(finished: Finished) -> None:
    (finished.settings.mlruns / "mlflow.db").unlink()


TAMPERING = {
    longer_budget: SPEC,
    other_split: SPEC,
    edited_entry: CHAIN,
    unreadable_entry: CHAIN,
    removed_entry: CHAIN,
    no_ledger: CHAIN,
    garbage_ledger: CHAIN,
    forged_score: ITEMS,
    graded_on_other_items: ITEMS,
    forged_private_score_everywhere_but_mlflow: MLFLOW,
    last_entries_cut_off: MLFLOW,
    edited_checkpoint: CHECKPOINTS,
    truncated_checkpoint: CHECKPOINTS,
    removed_checkpoint: CHECKPOINTS,
    edited_grade_file: ITEMS,
    edited_private_grade_file: ITEMS,
    removed_grade_file: ITEMS,
    edited_baseline_items: BASELINE,
    other_public_score: RECORDS,
    other_final_score: RECORDS,
    other_baseline: RECORDS,
    other_improvement: RECORDS,
    other_interval: RECORDS,
    other_verdict: RECORDS,
    fewer_submissions_to_choose_among: RECORDS,
    other_best: RECORDS,
    unreadable_record: RECORDS,
    more_tokens_at_a_submission_than_in_all: RECORDS,
    other_metric_of_a_submission: MLFLOW,
    other_final_metric: MLFLOW,
    other_score_of_the_baseline_in_mlflow: MLFLOW,
    other_count_of_a_submission_in_mlflow: MLFLOW,
    other_metric_in_mlflow_than_there_was: MLFLOW,
    other_end_of_a_curve_in_mlflow: MLFLOW,
    other_improvement_metric: MLFLOW,
    removed_from_mlflow: MLFLOW,
}


@pytest.mark.parametrize(("tamper", "found_by"), TAMPERING.items(), ids=[each.__name__ for each in TAMPERING])
def test_tampering_is_found(finished: Finished, tamper: Callable[[Finished], None], found_by: str) -> None:
    tamper(finished)
    found = problems(finished)
    assert found_by in found
    assert all("\n" not in problem for problem in found.values())
