"""Tests the grading service over HTTP, as agents use it: what it answers, what it refuses and what it must not lose."""

import contextlib
import json
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.files import write_model
from a2rl.core.settings import Settings
from a2rl.grading.app import create_app
from a2rl.grading.devices import DeviceLostError
from a2rl.grading.grades import grade_job
from a2rl.grading.http_limits import MAX_BODY_BYTES
from a2rl.grading.job import GradeJob, GradeResult, selected_ids
from a2rl.grading.pool import GraderPool, GradingError
from a2rl.grading.service import GradingService
from a2rl.grading.service_process import ServiceProcess
from a2rl.grading.submission_states import ungraded
from a2rl.judge.params import JudgeParams
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, GradingFailed, PrivateGraded, SubmissionAccepted, SubmissionRefused
from a2rl.run.inputs import hidden_of
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.run.rules import DEFAULT_SUBMISSIONS
from a2rl.scoring.score import ItemResult
from stages.grade import grade
from tests.run_maker import (
    WAIT_S,
    FakePool,
    end_agent,
    grade_result,
    item_results,
    kill,
    right_answers,
    submit_checkpoint,
    wait_for,
)
from tests.small_model import trained_copy

# autorl_bench's answer to POST /submit, and four keys that we added
ENTRY_KEYS = {
    "submission_id", "timestamp", "model_path", "score", "baseline_score", "improvement", "elapsed_seconds",
}  # fmt: skip
ANSWER_KEYS = ENTRY_KEYS | {"best", "total_submissions", "ci", "quota_left", "grading_seconds_left", "id"}
TIME_KEYS = {"start_time", "timeout_s", "last_submit_time", "end_time", "now", "remaining"}


def client_of(run: RunDir, settings: Settings, pool: FakePool | None = None) -> TestClient:
    service = GradingService(run, cast(GraderPool, pool or FakePool()))
    return TestClient(create_app(service, run.spec.task, ["0"]), raise_server_exceptions=False)


def submit(client: TestClient, model_path: str) -> Response:
    return client.post("/submit", json={"model_path": model_path})


def checkpoints(run: RunDir, base_model: Path, count: int) -> list[str]:
    """Makes distinct submissions in the workspace; returns their paths as an agent gives them."""
    for number in range(1, count + 1):
        trained_copy(base_model, run.workspace / "output" / f"v{number}", seed=number)
    return [f"output/v{number}" for number in range(1, count + 1)]


@pytest.fixture
def v1(run: RunDir, base_model: Path) -> str:
    return checkpoints(run, base_model, 1)[0]


def test_the_answer_has_the_references_keys_and_an_interval(
    run: RunDir, settings: Settings, base_model: Path, v1: str
) -> None:
    answer = submit(client_of(run, settings), v1)
    assert answer.status_code == 200
    body = answer.json()
    score = 100 * right_answers(run.workspace / v1, 4) / 4
    assert body.keys() == ANSWER_KEYS
    assert (body["submission_id"], body["score"], body["baseline_score"]) == (1, score, 50.0)
    assert body["improvement"] == score - 50.0
    assert body["best"] == {key: body[key] for key in ENTRY_KEYS}
    assert (body["model_path"], body["id"]) == (v1, 1)
    assert abs(datetime.fromisoformat(body["timestamp"]).timestamp() - time.time()) < WAIT_S
    assert 0 <= body["elapsed_seconds"] < WAIT_S
    assert (body["total_submissions"], body["quota_left"]) == (1, DEFAULT_SUBMISSIONS - 1)
    assert body["ci"][0] <= score <= body["ci"][1]


@pytest.mark.heavy
def test_the_best_so_far_is_the_earliest_of_the_highest_scores(
    run: RunDir, settings: Settings, base_model: Path
) -> None:
    client, paths = client_of(run, settings), checkpoints(run, base_model, 4)
    answers = [submit(client, path).json() for path in [*paths, paths[0]]]
    scores = [answer["score"] for answer in answers]
    assert scores[-1] == scores[0]
    assert len(set(scores)) > 1
    for place, answer in enumerate(answers, start=1):
        best = max(scores[:place])
        first = answers[scores.index(best)]
        assert answer["best"] == {key: first[key] for key in ENTRY_KEYS}
        assert answer["best"]["score"] == best


@pytest.mark.heavy
def test_many_submissions_at_once_lose_nothing_and_share_no_id(
    run: RunDir, settings: Settings, base_model: Path
) -> None:
    paths, pool = checkpoints(run, base_model, 5), FakePool()
    client = client_of(run, settings, pool)
    begin = threading.Barrier(20)

    def one(number: int) -> tuple[str, Response]:
        path = paths[number % 5]
        begin.wait()
        return path, submit(client, path)

    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(one, range(20)))
    assert {answer.status_code for _, answer in answers} == {200}
    assert sorted(answer.json()["submission_id"] for _, answer in answers) == list(range(1, 21))
    for path in paths:
        assert len({answer.json()["score"] for name, answer in answers if name == path}) == 1
    accepted, graded = run.ledger.events(SubmissionAccepted), run.ledger.events(Graded)
    assert [event.submission_id for event in accepted] == list(range(1, 21))
    assert Counter(event.model_path for event in accepted) == dict.fromkeys(paths, 4)
    assert len(graded) == len({event.weights_digest for event in graded}) == 5
    assert len(pool.jobs) == 5
    assert len(list(run.checkpoints.iterdir())) == 5
    run.ledger.verify()


def test_every_submission_waits_for_its_own_grade(run: RunDir, settings: Settings, base_model: Path) -> None:
    paths, pool = checkpoints(run, base_model, 3), FakePool(at_once=False)
    client = client_of(run, settings, pool)
    with ThreadPoolExecutor(3) as threads:
        waiting: list[Future[Response]] = [threads.submit(submit, client, path) for path in paths]
        wait_for(lambda: len(pool.jobs) == 3)
        assert not any(each.done() for each in waiting)
        assert run.ledger.events(Graded) == []
        pool.grade_all()
        assert {each.result().status_code for each in waiting} == {200}


@pytest.mark.parametrize(
    ("model_path", "status", "says"),
    [
        ("output/absent", 422, "save the checkpoint first"),
        ("", 422, "empty"),
        ("../../..", 422, "outside the workspace"),
        ("/etc/passwd", 422, "outside the workspace"),
        ("code", 422, "no weights"),
        ("output/linked", 422, "link"),
        ("out\0put", 422, "empty"),
        ("\N{GRINNING FACE}/v1", 422, "no folder"),
    ],
)
def test_a_bad_submission_is_refused_with_the_reason(
    run: RunDir, settings: Settings, v1: str, model_path: str, status: int, says: str
) -> None:
    """It does not count as a zero."""
    (run.workspace / "output" / "linked").symlink_to("v1")
    client = client_of(run, settings)
    answer = submit(client, model_path)
    assert answer.status_code == status
    assert says in answer.json()["detail"] == answer.json()["error"]
    [refused] = run.ledger.events(SubmissionRefused)
    assert refused.reason == answer.json()["detail"]
    assert run.ledger.events(SubmissionAccepted) == []
    assert run.ledger.events(Graded) == []
    assert list(run.checkpoints.iterdir()) == []
    assert submit(client, v1).json()["submission_id"] == 1


@pytest.mark.parametrize(
    "body",
    ["", "{", "[]", '"output/v1"', "{}", '{"model_path": 5}', '{"model_path": null}', '{"path": "output/v1"}',
     '{"model_path": "' + "x" * 5000 + '"}', r'{"model_path": "\ud800"}', "\xff\xfe", "[" * 10_000],
)  # fmt: skip
def test_a_request_that_is_not_understood_gets_the_usage(run: RunDir, settings: Settings, body: str) -> None:
    answer = client_of(run, settings).post(
        "/submit", content=body.encode("latin-1"), headers={"Content-Type": "application/json"}
    )
    assert answer.status_code == 400
    assert '{"model_path": "output/v1"}' in answer.json()["detail"]
    assert run.ledger.events(SubmissionAccepted) == []


def test_an_oversized_body_is_refused_before_it_is_read(run: RunDir, settings: Settings) -> None:
    client = client_of(run, settings)
    body = json.dumps({"model_path": "x", "padding": "x" * MAX_BODY_BYTES})
    answer = client.post("/submit", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert "too large" in answer.json()["detail"]
    assert client.get("/health").status_code == 200


def test_the_references_own_fields_are_taken_and_change_nothing(run: RunDir, settings: Settings, v1: str) -> None:
    answer = client_of(run, settings).post("/submit", json={"model_path": v1, "gpu": "0", "score": 100, "task": "x"})
    assert answer.status_code == 200
    assert answer.json()["score"] == 100 * right_answers(run.workspace / v1, 4) / 4


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("path", ["/set_baseline", "/docs", "/redoc", "/openapi.json", "/score", "/shutdown", "/"])
def test_there_is_no_other_door(run: RunDir, settings: Settings, method: str, path: str) -> None:
    assert client_of(run, settings).request(method, path).status_code in {404, 405}


@pytest.mark.parametrize(
    ("method", "path"), [("GET", "/submit"), ("POST", "/time"), ("PUT", "/time"), ("POST", "/health")]
)
def test_nothing_can_be_set_through_the_doors_there_are(
    run: RunDir, settings: Settings, method: str, path: str
) -> None:
    assert client_of(run, settings).request(method, path).status_code == 405


def spend(run: RunDir, seconds: float) -> None:
    """Moves the clock forward."""
    state = run.clock.read_state()
    run.clock.path.write_text(state.model_copy(update={"consumed_s": state.consumed_s + seconds}).model_dump_json())


def test_after_the_deadline_nothing_is_taken(run: RunDir, settings: Settings, v1: str) -> None:
    client = client_of(run, settings)
    spend(run, run.spec.budget_s)
    answer = submit(client, v1)
    assert answer.status_code == 403
    assert "budget" in answer.json()["detail"]
    assert run.ledger.events(SubmissionAccepted) == []
    assert len(run.ledger.events(SubmissionRefused)) == 1


def test_while_the_clock_stands_still_nothing_is_taken(run: RunDir, settings: Settings, v1: str) -> None:
    run.clock.stop()
    assert submit(client_of(run, settings), v1).status_code == 403


def test_before_the_agent_was_started_nothing_is_taken(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    run = new_run(started=False)
    [path] = checkpoints(run, base_model, 1)
    assert submit(client_of(run, settings), path).status_code == 403


def test_what_was_accepted_in_time_is_graded_after_the_deadline(run: RunDir, settings: Settings, v1: str) -> None:
    pool = FakePool(at_once=False)
    client = client_of(run, settings, pool)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(submit, client, v1)
        wait_for(lambda: pool.jobs)
        spend(run, 10 * run.spec.budget_s)
        pool.grade_all()
        assert waiting.result().status_code == 200
    assert len(run.ledger.events(Graded)) == 1


def test_the_quota_counts_accepted_submissions_only(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    run = new_run(max_submissions=2)
    client, paths = client_of(run, settings), checkpoints(run, base_model, 3)
    assert submit(client, "output/absent").status_code == 422
    assert [submit(client, path).json().get("quota_left") for path in paths[:2]] == [1, 0]
    last = submit(client, paths[2])
    assert last.status_code == 403
    assert "quota of 2" in last.json()["detail"]


def test_a_quota_cannot_be_overrun_by_submitting_at_once(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    run = new_run(max_submissions=3)
    client, paths = client_of(run, settings), checkpoints(run, base_model, 2)
    with ThreadPoolExecutor(8) as threads:
        statuses = Counter(threads.map(lambda number: submit(client, paths[number % 2]).status_code, range(8)))
    assert statuses == {200: 3, 403: 5}
    assert len(run.ledger.events(SubmissionAccepted)) == 3


def test_a_grader_that_fails_is_503_and_no_zero(run: RunDir, settings: Settings, v1: str) -> None:
    answer = submit(client_of(run, settings, FakePool(failure="the GPU is on fire")), v1)
    assert answer.status_code == 503
    assert "the GPU is on fire" in answer.json()["detail"]
    assert run.ledger.events(Graded) == []
    assert [event.reason for event in run.ledger.events(GradingFailed)] == ["the GPU is on fire"]


def test_a_base_model_that_is_taken_away_is_the_graders_failure(
    run: RunDir, settings: Settings, v1: str, tmp_path: Path
) -> None:
    base = run.need("setup", SetupRecord).base_model
    own = shutil.copytree(base, tmp_path / "base")
    run.write("setup", run.need("setup", SetupRecord).model_copy(update={"base_model": own}))
    client = client_of(run, settings)
    away = own.rename(tmp_path / "away")
    answer = submit(client, v1)
    assert answer.status_code == 503
    assert "put it back" in answer.json()["detail"]
    assert not run.ledger.events(SubmissionAccepted)
    away.rename(own)
    assert submit(client, v1).status_code == 200


def test_what_failed_is_graded_when_it_is_submitted_again(run: RunDir, settings: Settings, v1: str) -> None:
    pool = FakePool(failure="out of memory")
    client = client_of(run, settings, pool)
    assert submit(client, v1).status_code == 503
    pool.failure = ""
    assert submit(client, v1).status_code == 200
    assert len(run.ledger.events(Graded)) == 1


class SilentJudgePool(FakePool):
    """Grades as long as the judge answers, and fails after that."""

    silent = True

    def grade_all(self) -> None:
        if not self.silent:
            super().grade_all()
            return
        [(job, future)] = self._waiting
        self._waiting.clear()
        result = grade_result(unjudged(job), 0.5)
        write_model(job.result, result)
        future.set_result(result)


def unjudged(job: GradeJob) -> list[ItemResult]:
    ids = selected_ids(job.task, job.hidden, job.split, job.split_seed)
    return [ItemResult(id=each, verdict="errored", reason="HTTP 503") for each in ids]


def test_with_a_silent_judge_there_is_no_grade_but_another_try(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    """The submission can be made again when the judge answers."""
    run, pool = new_run(judge=JudgeParams()), SilentJudgePool()
    client, [v1] = client_of(run, settings, pool), checkpoints(run, base_model, 1)
    answer = submit(client, v1)
    assert answer.status_code == 503
    assert "HTTP 503" in answer.json()["detail"]
    assert not run.ledger.events(Graded)
    pool.silent = False
    assert submit(client, v1).status_code == 200
    assert len(run.ledger.events(Graded)) == 1


def test_with_a_silent_judge_a_run_has_no_result_yet(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    """It can be resumed."""
    run = new_run(judge=JudgeParams())
    client, [v1] = client_of(run, settings), checkpoints(run, base_model, 1)
    assert submit(client, v1).status_code == 200
    end_agent(run)
    [accepted] = run.ledger.events(SubmissionAccepted)
    digest = accepted.weights_digest
    job = grade_job(run, run.checkpoint(digest), "private", run.items(digest, "private"))
    write_model(job.result, grade_result(unjudged(job), 0.5))
    with pytest.raises(InfrastructureError, match=f"a2rl resume {run.id}"):
        grade(run, settings)
    assert not job.result.exists()
    assert not run.ledger.events(PrivateGraded)
    assert run.read("grade", GradeRecord) is None


def test_what_fails_again_after_the_agents_end_never_has_a_score(run: RunDir, settings: Settings, v1: str) -> None:
    submit(client_of(run, settings, FakePool(failure="the GPU is on fire")), v1)
    run.clock.stop()
    client_of(run, settings, FakePool(failure="the GPU is still on fire"))
    [graded] = run.ledger.events(Graded)
    assert graded.result.score is None
    assert graded.improvement is None
    assert graded.result.errored == graded.result.total == 4


def test_a_failed_submission_does_not_spoil_the_best_of_others(
    run: RunDir, settings: Settings, base_model: Path
) -> None:
    first, second = checkpoints(run, base_model, 2)
    assert submit(client_of(run, settings, FakePool(failure="broken")), first).status_code == 503
    answer = submit(client_of(run, settings), second).json()
    assert answer["best"]["submission_id"] == answer["submission_id"] == 2


class ForgetfulPool(FakePool):
    """Reports that it graded, but the result is not on the disk."""

    def grade_all(self) -> None:
        job = self.jobs[-1]
        result = grade_result(item_results(selected_ids(job.task, job.hidden, "public", 7), 1), 0.5)
        [(_, future)] = self._waiting
        future.set_result(result)


def test_a_grade_that_cannot_be_recorded_is_a_failure(run: RunDir, settings: Settings, v1: str) -> None:
    """Nobody waits for it without end."""
    pool = ForgetfulPool(at_once=False)
    pending = submit_checkpoint(GradingService(run, cast(GraderPool, pool)), v1)
    pool.grade_all()
    assert isinstance(pending.outcome.exception(timeout=5), InfrastructureError)
    assert run.ledger.events(Graded) == []


def test_a_restarted_service_grades_what_was_accepted_once(run: RunDir, settings: Settings, base_model: Path) -> None:
    paths, dead = checkpoints(run, base_model, 3), FakePool(at_once=False)
    service = GradingService(run, cast(GraderPool, dead))
    for path in [*paths, paths[0]]:
        submit_checkpoint(service, path)  # and then it is killed
    (run.checkpoints / ".incoming-half").mkdir()
    assert len(ungraded(run.ledger.entries())) == 3
    alive = FakePool()
    client = client_of(run, settings, alive)
    assert not ungraded(run.ledger.entries())
    assert len(alive.jobs) == len(run.ledger.events(Graded)) == 3
    assert not list(run.checkpoints.glob(".incoming*"))
    client_of(run, settings, third := FakePool())
    assert not third.jobs
    answer = submit(client, paths[0]).json()
    assert (answer["submission_id"], answer["total_submissions"]) == (5, 5)
    assert len(alive.jobs) == 3


def test_two_services_that_grade_one_submission_record_it_once(run: RunDir, settings: Settings, v1: str) -> None:
    old, new = FakePool(at_once=False), FakePool(at_once=False)
    submit_checkpoint(GradingService(run, cast(GraderPool, old)), v1)
    GradingService(run, cast(GraderPool, new))
    new.grade_all()
    old.grade_all()
    assert len(run.ledger.events(Graded)) == 1


def test_what_is_graded_is_the_copy_as_it_was_when_submitted(
    run: RunDir, settings: Settings, base_model: Path, v1: str
) -> None:
    pool = FakePool(at_once=False)
    service = GradingService(run, cast(GraderPool, pool))
    expected = right_answers(run.workspace / v1, 4)
    submit_checkpoint(service, v1)
    trained_copy(base_model, run.workspace / v1, seed=9)
    pool.grade_all()
    [accepted] = run.ledger.events(SubmissionAccepted)
    assert pool.jobs[0].model == run.checkpoint(accepted.weights_digest)
    assert run.ledger.events(Graded)[0].result.correct == expected


def test_the_time_is_told_in_the_references_words(run: RunDir, settings: Settings) -> None:
    answer = client_of(run, settings).get("/time").json()
    assert answer.keys() == TIME_KEYS
    assert answer["timeout_s"] == 600
    assert 595 <= answer["remaining"] <= 600
    assert 595 <= answer["end_time"] - answer["now"] <= 600
    assert abs(answer["now"] - answer["start_time"]) <= 5
    assert answer["last_submit_time"] is None


def test_the_time_of_the_last_submission_is_told(run: RunDir, settings: Settings, v1: str) -> None:
    client = client_of(run, settings)
    submit(client, v1)
    answer = client.get("/time").json()
    assert abs(answer["last_submit_time"] - answer["now"]) <= 5


def test_the_remaining_time_is_never_negative(run: RunDir, settings: Settings) -> None:
    spend(run, 10 * run.spec.budget_s)
    assert client_of(run, settings).get("/time").json()["remaining"] == 0


@pytest.mark.parametrize(
    "failure",
    [
        DeviceLostError("GPU GPU-1 has disappeared"),
        InfrastructureError("the grader's worker did not start"),
        GradingError("the grader's disk is full", 1.0, is_of_machine=True),
    ],
)
def test_a_failure_of_the_machine_after_the_end_is_no_grade(
    run: RunDir, settings: Settings, v1: str, failure: InfrastructureError
) -> None:
    class LostPool(FakePool):
        def submit(self, job: GradeJob, on: Iterable[str] = ()) -> "Future[GradeResult]":
            future: Future[GradeResult] = Future()
            future.set_exception(failure)
            return future

    service = GradingService(run, cast(GraderPool, LostPool()))
    submit_checkpoint(service, v1)
    end_agent(run)
    service.finish()
    assert service.problem == str(failure)
    assert run.ledger.events(Graded) == []
    assert run.ledger.events(GradingFailed)  # from before the agent's end, when it may submit again


def test_inputs_lost_before_the_end_are_a_machine_problem(run: RunDir, settings: Settings, v1: str) -> None:
    """The stage waits for what it is not told of. A service that starts then does not die of it."""
    service = GradingService(run, cast(GraderPool, FakePool(failure="no memory")))
    submit_checkpoint(service, v1)
    end_agent(run)
    hidden = hidden_of(run)
    away = hidden.rename(hidden.with_name("away"))
    with contextlib.suppress(A2rlError):
        service.finish()
    assert "hidden data" in service.problem
    next_service = GradingService(run, cast(GraderPool, FakePool()))
    assert "hidden data" in next_service.problem
    away.rename(hidden)
    next_service.finish()
    wait_for(lambda: run.ledger.events(Graded))
    assert next_service.problem == ""


def test_health_names_the_task_and_the_devices(run: RunDir, settings: Settings) -> None:
    assert client_of(run, settings).get("/health").json() == {"status": "ok", "task": "gsm8k", "available_gpus": ["0"]}


@pytest.mark.parametrize("private", ["items", "answer", "gold", "private", "####", "weights_digest", "verdict"])
def test_an_answer_tells_a_score_and_nothing_of_the_items(
    run: RunDir, settings: Settings, v1: str, private: str
) -> None:
    assert private not in submit(client_of(run, settings), v1).text


# A real service in its own process and a worker with torch, all killed while they work.


@pytest.mark.heavy
def test_after_kills_each_accepted_submission_is_graded_once(run: RunDir, settings: Settings, base_model: Path) -> None:
    """The grader, its worker and the service are killed."""
    paths = checkpoints(run, base_model, 3)
    with ServiceProcess(run, settings) as server, ThreadPoolExecutor(4) as threads:
        server.wait_until_ready()
        clients = [threads.submit(_insist, server.url, path) for path in [*paths, paths[0]]]
        kill(_wait_for_grader())
        _wait_for_grader()
        kill(_processes(WORKER)[0].pid)
        _wait_for_grader()
        kill(_processes(SERVICE)[0].pid)

        def answered() -> bool:
            server.keep_alive()
            return all(each.done() for each in clients)

        wait_for(answered)
        answers = [each.result() for each in clients]
        server.drain()
    accepted, graded = run.ledger.events(SubmissionAccepted), run.ledger.events(Graded)
    assert [event.submission_id for event in accepted] == list(range(1, len(accepted) + 1))
    assert {event.model_path for event in accepted} == set(paths)
    assert sorted(event.weights_digest for event in graded) == sorted({event.weights_digest for event in accepted})
    assert all(event.result.total == 4 and event.result.score is not None for event in graded)
    assert all(answer["score"] is not None for answer in answers)
    run.ledger.verify()
    wait_for(lambda: not _processes(SERVICE) and not _processes(WORKER))


SERVICE, WORKER = "a2rl.grading.app", "a2rl.grading.worker"


def _insist(url: str, path: str) -> dict[str, Any]:
    """Submits as an agent does: again, if the service was killed meanwhile."""
    answer = None
    for _ in range(6):
        try:
            answer = httpx.post(f"{url}/submit", json={"model_path": path}, timeout=WAIT_S)
        except httpx.TransportError:
            continue
        if answer.status_code == 200:
            return dict(answer.json())
    raise AssertionError(f"{path} was never graded: {answer and answer.text}")


def _processes(module: str) -> list[psutil.Process]:
    """Returns the descendants of this process that run a module, the oldest first."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if module in process.cmdline():
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def _wait_for_grader() -> int:
    """Waits until a worker has forked a process for a job, and returns that process."""

    def grader() -> int | None:
        workers = _processes(WORKER)
        parents = {process.pid for process in workers}
        with contextlib.suppress(psutil.Error):
            return next((process.pid for process in workers if process.ppid() in parents), None)
        return None

    return int(wait_for(grader))
