"""Tests that a result is final: no later stage, retry or resume replaces it, wherever it fails."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import stages.report
import stages.validity
from a2rl.cli import stored_runs
from a2rl.core.errors import InfrastructureError, IntegrityError, RunFailedError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import Reading
from a2rl.core.settings import Settings
from a2rl.grading.pool import GradingError
from a2rl.labels import records as label_records
from a2rl.labels.records import labels_of
from a2rl.labels.run_labels import label_run
from a2rl.recording.code_history import snapshot_code
from a2rl.results.manifest import changed_files, read_manifest
from a2rl.results.mlflow import tracking
from a2rl.results.report import page
from a2rl.results.report.page import write_report
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.events import RunClosed, RunFailed, RunInterrupted
from a2rl.run.failure import forget_failure, is_unfinished, record_failure
from a2rl.run.records import GradeRecord
from a2rl.validity import checks
from a2rl.validity.checks import FINDINGS, RunEvidence
from a2rl.validity.record import Finding, read_validity
from flows import pipeline
from tests.run_maker import Finished, checkout
from tests.simulated_runs import simulate_run

Place = tuple[str, int]
STAGES = ("stages.validity", "stages.report")
SHOWING = ("stages.report", "a2rl.labels.records", "a2rl.results.manifest", "a2rl.results.report.page")
DRAWING = (
    *(f"a2rl.results.report.{name}" for name in ("data", "tables", "work")),
    *(f"a2rl.labels.{name}" for name in ("code_walk", "run_labels")),
)  # fmt: skip
JUDGING = ("stages.validity", "a2rl.validity.checks", "a2rl.validity.record")


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Finished:
    """A run with a result that is neither judged nor shown. What runs in limited processes runs here, and so does every
    stage without Prefect."""
    settings, folder = checkout(tmp_path), tmp_path / "code"
    folder.mkdir()
    (folder / "train.py").write_text("import trl\ntrl.SFTTrainer('models/base').train()\n")
    revision = snapshot_code(folder, settings.runs / "gsm8k-sim-00001" / "code", "state")
    assert revision is not None
    run = simulate_run(settings, 1, skill=0.9, submissions=1, revisions=[revision])
    run.training_log.write_text(
        '{"event": "work", "t": 1e9, "process": "1", "steps": [{"file": "/w/code/train.py", "line": 2, "count": 1}]}\n'
    )
    for name in ("setup", "baseline", "execute", "grade"):
        monkeypatch.setitem(pipeline.STAGE_TASKS, name, lambda *_: None)
    monkeypatch.setitem(pipeline.STAGE_TASKS, "validity", stages.validity.validity)
    monkeypatch.setitem(pipeline.STAGE_TASKS, "report", stages.report.report)
    for module in (label_records, page, checks):
        monkeypatch.setattr(module, "read_apart", here)
    monkeypatch.setattr(tracking.Tracker, "sync", lambda *_: None)
    monkeypatch.setenv("A2RL_ROOT", str(settings.root))
    return Finished(run, settings)


def here(module: str, arguments: Sequence[str], settings: Settings, *_: object) -> Reading:
    """Does the work of a limited process in this one, and fails as that would."""
    run, output = RunDir(Path(arguments[0])), b""
    try:
        if module == "a2rl.labels.run_labels":
            output = label_run(run).model_dump_json().encode()
        elif module == "a2rl.results.report.page":
            write_report(run, settings)
        for name in arguments[1:]:
            check = getattr(import_module(name.partition(":")[0]), name.partition(":")[2])
            output += FINDINGS.dump_json(checks.run_checks(RunEvidence(run, settings), [check])) + b"\n"
    except Exception as error:  # noqa: BLE001 - a process that fails says why
        return Reading(output, repr(error))
    return Reading(output, "")


def go_on(found: Finished) -> None:
    """Runs the stages that are left."""
    pipeline.benchmark_run.fn(found.run, found.settings, [], os.sched_getaffinity(0))


@contextmanager
def traced(modules: Sequence[str], on_line: Callable[[Place], None]) -> Iterator[None]:
    """Calls `on_line` before each line of these modules."""
    files = {str(import_module(name).__file__) for name in modules}

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            on_line((frame.f_code.co_filename, frame.f_lineno))
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


def copy_of(found: Finished, name: str) -> Finished:
    """Returns a copy of a run in a checkout of its own."""
    root = found.settings.root.with_name(f"{found.settings.root.name}-{name}")
    shutil.copytree(found.settings.root, root, symlinks=True)
    return Finished(RunDir(root / "runs" / found.run.id), Settings(root, found.settings.environ))


def places_in(found: Finished, modules: Sequence[str]) -> list[Place]:
    """Returns the lines of these modules that run when a run is judged and shown."""
    places: dict[Place, None] = {}
    with traced(modules, places.setdefault):
        go_on(copy_of(found, "whole"))
    return list(places)


def assert_final_wherever_it_fails(found: Finished, modules: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    places = places_in(found, modules)
    result = found.run.record_path("grade").read_bytes()
    assert len(places) > 10, places
    for number, at in enumerate(places):
        broken = copy_of(found, str(number))

        def fail(place: Place, at: Place = at) -> None:
            if place == at:
                raise RecursionError(f"at {at}")

        with traced(modules, fail), suppress(RunFailedError):
            go_on(broken)
        run = broken.run
        assert run.record_path("grade").read_bytes() == result, at
        assert run.ledger.events(RunFailed) == [], at
        monkeypatch.setenv("A2RL_ROOT", str(broken.settings.root))
        stored_runs._report_on_run(run.id)
        assert run.record_path("grade").read_bytes() == result, at
        assert run.report.is_file(), at
        assert read_validity(run) is not None, at
        assert labels_of(run) is not None, at
        assert len(run.ledger.events(RunClosed)) == 1, at
        assert read_manifest(run) is not None, at
        shutil.rmtree(broken.settings.root)


@pytest.mark.heavy
def test_a_result_stands_wherever_its_last_stages_fail(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    assert_final_wherever_it_fails(finished, STAGES, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("modules", [SHOWING, DRAWING, JUDGING], ids=["showing", "drawing", "judging"])
def test_a_result_stands_wherever_it_cannot_be_judged_or_shown(
    finished: Finished, modules: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_final_wherever_it_fails(finished, modules, monkeypatch)


def test_nothing_writes_another_result(finished: Finished) -> None:
    run = finished.run
    result = run.need("grade", GradeRecord)
    assert run.write("grade", result) == result
    with pytest.raises(IntegrityError, match="has its result already"):
        run.write("grade", result.model_copy(update={"verdict": "failed", "failed_stage": "report"}))
    for stage in ("grade", "validity", "report"):
        assert record_failure(run, stage, RecursionError("x")) == result
    forget_failure(run)
    assert run.need("grade", GradeRecord) == result


def test_an_unreadable_result_is_not_replaced_by_a_failure(finished: Finished) -> None:
    finished.run.record_path("grade").write_text("{")
    with pytest.raises(IntegrityError):
        record_failure(finished.run, "report", InfrastructureError("x"))
    assert finished.run.record_path("grade").read_text() == "{"


def test_a_result_whose_checks_do_not_finish_is_flagged_with_why(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(stages.validity, "run_checks_apart", fail)
    result = finished.run.need("grade", GradeRecord)
    go_on(finished)
    assert finished.run.need("grade", GradeRecord) == result
    validity = read_validity(finished.run)
    assert validity is not None
    assert (validity.word, validity.findings[0].kind) == ("flagged", "not-checked")
    assert "too deep" in finished.run.report.read_text()


def test_a_result_that_a_machine_could_not_judge_is_not_closed(
    finished: Finished, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is it if an earlier attempt of the run has failed, and was closed with that."""

    def fail(_: RunEvidence) -> list[Finding]:
        raise GradingError("no GPU answers", 0.0, is_of_machine=True)

    run, earlier = finished.run, RunClosed(verdict="failed", failed_stage="execute", manifest_digest="m")
    run.ledger.append(earlier)
    run.ledger.append(RunInterrupted(stage="execute"))
    with monkeypatch.context() as broken:
        broken.setattr(stages.validity, "GRADING", (fail,))
        with pytest.raises(RunFailedError, match=f"the result stands, and `a2rl resume {run.id}`"):
            go_on(finished)
    assert run.report.is_file()
    assert run.ledger.events(RunClosed) == [earlier]
    assert is_unfinished(run)
    go_on(finished)
    manifest = read_manifest(run)
    assert manifest is not None
    assert changed_files(run, manifest) == []
    assert not is_unfinished(run)


def test_a_check_that_ends_its_process_costs_only_itself(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies_in_one(module: str, arguments: Sequence[str], settings: Settings, *_: object) -> Reading:
        names = list(arguments)
        place = next((place for place, name in enumerate(names) if name.endswith(":leaked_keys")), None)
        done = here(module, names[:place], settings)
        return done if place is None else Reading(done.output, "its process ended with status -11")

    monkeypatch.setattr(checks, "read_apart", dies_in_one)
    evidence = RunEvidence(finished.run, finished.settings)
    made = checks.run_checks(evidence, [each for each in stages.validity.READING if each.__name__ != "leaked_keys"])
    found = checks.run_checks_apart(evidence, stages.validity.READING)
    lost = [each for each in found if "leaked_keys" in each.text]
    assert [each.text for each in lost] == ["The check leaked_keys could not be made: InfrastructureError."]
    assert {each.id for each in found} == {each.id for each in (*made, *lost)}


def test_a_page_that_cannot_be_drawn_is_named_and_the_run_closed(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from a2rl.cli.results import show_run

    monkeypatch.setattr(page, "read_apart", lambda *_: Reading(b"", "it took longer than 30 s"))
    go_on(finished)
    assert len(finished.run.ledger.events(RunClosed)) == 1
    assert "it took longer than 30 s" in (finished.run.logs / "aside.jsonl").read_text()
    show_run(finished.run, as_json=False)
    assert f"see logs/aside.jsonl: `a2rl report {finished.run.id}`" in " ".join(capsys.readouterr().out.split())
    with pytest.raises(InfrastructureError, match="longer than 30 s"):
        stored_runs._report_on_run(finished.run.id)


def test_what_fails_after_the_end_changes_no_listed_file(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    run, settings = finished
    run.logs.mkdir(exist_ok=True)
    log_failure(pipeline_log(run), "the relay", InfrastructureError("while it went on"))
    go_on(finished)
    for module in (label_records, page):
        monkeypatch.setattr(module, "read_apart", lambda *_: Reading(b"", "it took too long"))
    label_records.write_labels(run, settings)
    stages.report.report(run, settings)
    record_failure(run, "report", InfrastructureError("Prefect has gone"))
    manifest = read_manifest(run)
    assert manifest is not None
    assert "logs/pipeline.jsonl" in manifest.files
    assert changed_files(run, manifest) == []
    assert (run.logs / "aside.jsonl").read_text().count("it took too long") == 3
