"""Tests the metrics of a run's course: the reference's names, from the ledger."""

import csv
from collections.abc import Sequence
from typing import Any

from a2rl.cli.results import run_object
from a2rl.core.settings import Settings
from a2rl.results.figures import RunMetrics, result_metrics, run_metrics
from a2rl.results.suite.files import write_suite_report
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown, Event, SubmissionRefused
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord
from a2rl.scoring.score import TaskScore, summarise
from tests import written_ledger
from tests.run_maker import item_results
from tests.simulated_runs import simulate_run
from tests.written_ledger import write_ledger

NAMES = {
    "valid_submission_rate", "first_valid_idx", "first_valid_delay", "time_to_first_improvement", "time_to_best",
    "monotonic_ratio", "copy_model_count", "time_used_ratio", "last_submit_gap",
}  # fmt: skip
TEN = [str(place) for place in range(10)]


def score(right: int) -> TaskScore:
    return summarise(item_results(TEN, right), 1.0)


def tried(number: int, at: float, right: int | None, digest: str = "") -> list[Event]:
    """Returns the events of a submission whose grade is known ten seconds after it came."""
    result = score(right) if right is not None else score(0).model_copy(update={"score": None, "reason": "broken"})
    return written_ledger.tried(number, at, result, digest, grading_s=10)


def refused(at: float, receipt: int | None) -> Event:
    return SubmissionRefused(elapsed_s=at, model_path="output", reason="no weights", receipt=receipt)


def metrics_of(run: RunDir, events: Sequence[Event], end_s: float | None = 540.0) -> RunMetrics:
    known = BaselineKnown(key="k", public=score(2), private=None, items_digest="i")
    start: list[Event] = [known, AgentStarted(attempt=1, elapsed_s=0)]
    end = [AgentEnded(attempt=1, elapsed_s=end_s, reason="finished", exit_code=0)] if end_s is not None else []
    run.ledger.path.unlink()
    write_ledger(run.ledger.path, [*start, *events, *end])
    if end_s is not None:
        facts: dict[str, Any] = {
            "elapsed_s": end_s,
            "waited_s": 60,
            "refunded_s": 60,
            "attempts": 1,
            "submissions": 0,
            "refused": 0,
        }
        run.write("execute", ExecuteRecord(seconds=1, ended="finished", exit_code=0, **facts))
    return run_metrics(run, run.ledger.entries())


def test_each_metric_has_the_references_meaning(run: RunDir) -> None:
    events = [refused(5, 1), *tried(1, 100, 1), *tried(2, 200, None), *tried(3, 300, 5), *tried(4, 400, 4)]
    assert metrics_of(run, events) == RunMetrics(
        valid_submission_rate=3 / 5, first_valid_idx=2, first_valid_delay=110, time_to_first_improvement=310,
        time_to_best=310, monotonic_ratio=1 / 2, copy_model_count=0, time_used_ratio=0.8, last_submit_gap=130,
    )  # fmt: skip


def test_a_failure_is_no_score_and_zero_is_one(run: RunDir) -> None:
    found = metrics_of(run, [*tried(1, 100, None), *tried(2, 200, 0)])
    assert (found.valid_submission_rate, found.first_valid_idx) == (1 / 2, 2)
    assert (found.time_to_first_improvement, found.monotonic_ratio) == (None, None)


def test_a_request_that_was_never_received_is_no_submission(run: RunDir) -> None:
    assert metrics_of(run, [refused(5, None), *tried(1, 100, 3)]).valid_submission_rate == 1


def test_without_submissions_only_the_time_is_known(run: RunDir) -> None:
    assert metrics_of(run, [], end_s=None) == RunMetrics(copy_model_count=0)
    assert metrics_of(run, []) == RunMetrics(copy_model_count=0, time_used_ratio=0.8)


def test_the_base_models_weights_are_counted_as_copies(run: RunDir) -> None:
    ready = run.need("setup", SetupRecord)
    from a2rl.models.checkpoint import weights_digest

    base = weights_digest(ready.base_model)
    assert metrics_of(run, [*tried(1, 9, 2, base), *tried(2, 20, 3), *tried(3, 30, 2, base)]).copy_model_count == 2


def test_the_best_of_equals_is_the_earliest(run: RunDir) -> None:
    """A grade after the end leaves no gap."""
    found = metrics_of(run, [*tried(1, 100, 5), *tried(2, 535, 5)])
    assert (found.time_to_best, found.monotonic_ratio, found.last_submit_gap) == (110, 0, 0)


def test_of_grades_in_another_order_the_first_known_counts(run: RunDir) -> None:
    """Several devices grade at once."""
    [first, slow], [second, fast] = tried(1, 100, 5), tried(2, 110, 5)
    found = metrics_of(run, [first, second, fast, slow.model_copy(update={"elapsed_s": 500.0})])
    assert (found.time_to_first_improvement, found.time_to_best) == (120, 120)


def test_json_mlflow_and_csv_have_the_same_metrics(settings: Settings) -> None:
    run = simulate_run(settings, 1)
    expected = run_metrics(run, run.ledger.entries()).model_dump()
    assert set(expected) == NAMES
    assert run_object(run)["metrics"] == expected
    mirrored = result_metrics(run, run.need("grade", GradeRecord), None)
    known = {name: value for name, value in expected.items() if value is not None}
    assert {name: mirrored[name] for name in NAMES if name in mirrored} == known
    page = write_suite_report("sim", [run], settings)
    [row] = csv.DictReader((page.parent / "runs.csv").open())
    assert {name: float(row[name]) for name in NAMES if row[name]} == known
