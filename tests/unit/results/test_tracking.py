"""Tests what MLflow has of a run: each figure once, whatever happens between two calls."""

import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from a2rl.core.settings import Settings
from a2rl.results.mlflow.store import TrackingError
from a2rl.results.mlflow.tracking import HEAD_TAG, Tracker
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, RunInterrupted
from a2rl.run.names import Stored, mark_stored
from a2rl.scoring.score import summarise
from tests.run_maker import item_results, prepare_mlflow
from tests.written_ledger import accepted, graded, tried


def submit(run: RunDir, count: int, first: int = 1) -> None:
    """Records this many graded submissions."""
    for number in range(first, first + count):
        for event in tried(number, number, summarise(item_results([str(each) for each in range(4)], number % 5))):
            run.ledger.append(event)


@pytest.fixture
def tracker(settings: Settings) -> Tracker:
    prepare_mlflow(settings)
    return Tracker(settings)


def parent_of(tracker: Tracker, run: RunDir) -> Any:
    return tracker.store.find("a2rl.run_id", run.id, run.spec.suite)


def points(tracker: Tracker, run: RunDir, metric: str = "public_score") -> list[int]:
    """Returns the steps of a metric, which are seconds, one for each point that MLflow plots."""
    history = tracker.store.client.get_metric_history(parent_of(tracker, run).info.run_id, metric)
    return [point.step for point in history]


def test_each_submission_is_one_point_however_often_mirrored(tracker: Tracker, run: RunDir, settings: Settings) -> None:
    submit(run, 2)
    for each in (tracker, tracker, Tracker(settings)):
        each.sync(run)
    assert points(tracker, run) == [0, 1, 2]


def test_the_best_score_rises_when_its_grade_becomes_known(tracker: Tracker, run: RunDir) -> None:
    (first, late), (second, early) = (tried(each, 100 * each, summarise([])) for each in (1, 5))
    score = summarise(item_results([str(each) for each in range(4)], 2))
    events = first, second, early.model_copy(update={"elapsed_s": 550, "result": score})
    for event in (*events, late.model_copy(update={"elapsed_s": 600, "result": score})):
        run.ledger.append(event)
    tracker.sync(run)
    assert points(tracker, run) == [0, 500, 100]
    assert points(tracker, run, "best_public_score") == [550, 600]


def test_a_crash_between_two_calls_doubles_nothing(
    tracker: Tracker, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(run, 2)
    for method in ("save", "create", "end", "log"):
        with monkeypatch.context() as patch:
            patch.setattr(tracker.store, method, lambda *_, **__: 1 / 0)
            with pytest.raises(TrackingError):
                tracker.sync(run)
    tracker.sync(run)
    children = tracker.store.children(run.spec.suite, parent_of(tracker, run).info.run_id)
    assert sorted(children) == ["baseline", "submission 1", "submission 2"]
    assert points(tracker, run) == [0, 1, 2]
    for child in children.values():
        assert len(tracker.store.client.get_metric_history(child.info.run_id, "score")) == 1


def test_a_sync_searches_only_once_after_another_tracker(
    tracker: Tracker, run: RunDir, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of submissions does not matter."""
    tracker.sync(run)
    submit(run, 6)
    searches: list[object] = []
    search = tracker.store.client.search_runs

    def counted(*arguments: Any, **options: Any) -> Any:
        searches.append(arguments)
        return search(*arguments, **options)

    monkeypatch.setattr(tracker.store.client, "search_runs", counted)
    tracker.sync(run)
    assert not searches  # the tracker remembers what MLflow has
    Tracker(settings).sync(run)  # another one looks
    tracker.sync(run)
    assert len(searches) == 2  # for the run itself and for all of its nested runs


def test_nested_runs_beyond_one_page_are_known(tracker: Tracker, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("a2rl.results.mlflow.store.PAGE_SIZE", 2)
    submit(run, 5)
    for _ in range(3):
        tracker.sync(run)
    monkeypatch.setattr("a2rl.results.mlflow.store.PAGE_SIZE", 1000)
    parent = parent_of(tracker, run)
    found = tracker.store.client.search_runs(
        [parent.info.experiment_id], f"tags.`mlflow.parentRunId` = '{parent.info.run_id}'"
    )
    assert len(found) == 6


def test_several_that_mirror_at_once_make_one_of_each(
    run: RunDir, new_run: Callable[..., RunDir], settings: Settings
) -> None:
    """Two runs of one new suite, each mirrored by two processes."""
    other = new_run(run_id="gsm8k-test-2")
    submit(run, 2)
    Tracker(settings).store.client  # noqa: B018 - the database is made once
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda each: Tracker(settings).sync(each), [run, other, run, other]))
    tracker = Tracker(settings)
    experiment = tracker.store.experiment(run.spec.suite)
    assert len(tracker.store.client.search_runs([experiment], f"tags.`a2rl.run_id` = '{run.id}'")) == 1
    assert set(tracker.mirrored(run)) == {"result", "baseline", "submission 1", "submission 2"}


def test_a_new_experiment_is_shown_as_the_training_of_models(tracker: Tracker, run: RunDir) -> None:
    tracker.sync(run)
    known = tracker.store.client.get_experiment(tracker.store.experiment(run.spec.suite))
    assert known.tags["mlflow.experimentKind"] == "custom_model_development"


def test_a_failed_run_is_shown_as_failed_and_gains_nothing(tracker: Tracker, run: RunDir) -> None:
    from a2rl.run.failure import record_failure

    record_failure(run, "execute", OSError(28, "No space left on device"))
    tracker.sync(run)
    parent = parent_of(tracker, run)
    assert parent.data.tags["verdict"] == "failed"
    assert "No space left" in parent.data.tags["a2rl.reason"]
    assert parent.data.metrics["gain"] == 0.0
    assert parent.info.status == "FAILED"


def test_a_store_that_lags_behind_looks_like_no_other_ledger(tracker: Tracker, run: RunDir) -> None:
    from a2rl.run.failure import record_failure

    record_failure(run, "execute", OSError(28, "No space left on device"))
    stored = run.ledger.rows()[-1]
    mark_stored(run, Stored(seq=stored.seq, epoch=1, manifest=""))
    run.ledger.append(RunInterrupted(stage="report"))
    for _ in range(2):
        tracker.sync(run)
        assert parent_of(tracker, run).data.tags[HEAD_TAG] == stored.hash
    mark_stored(run, Stored(seq=stored.seq + 1, epoch=1, manifest=""))
    tracker.sync(run)
    assert parent_of(tracker, run).data.tags[HEAD_TAG] == run.ledger.verify()


def test_long_and_odd_texts_are_taken(tracker: Tracker, run: RunDir) -> None:
    run.ledger.append(accepted(1, 1, "d" * 64, model_path="x" * 20_000))
    run.ledger.append(graded("d" * 64, 1, summarise([]).model_copy(update={"reason": "y" * 20_000})))
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=2, reason="finished", exit_code=0))
    tracker.sync(run)
    assert "submission 1" in tracker.mirrored(run)


def test_a_server_that_is_down_is_one_line_and_soon_known(run: RunDir, settings: Settings) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    gone = Settings(settings.root, {**settings.environ, "MLFLOW_TRACKING_URI": f"http://me:secret@127.0.0.1:{port}"})
    begun = time.monotonic()
    with pytest.raises(TrackingError) as problem:
        Tracker(gone).sync(run)
    assert time.monotonic() - begun < 30
    assert len(str(problem.value).splitlines()) == 1
    assert "secret" not in str(problem.value)
