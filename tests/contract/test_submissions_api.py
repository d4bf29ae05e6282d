"""Tests the requests that need not wait: answers before the grade, states, idempotency keys and the choice of a GPU."""

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.grading.app import MAX_KEY, create_app
from a2rl.grading.outputs import progress_path
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.grading.submission_checks import CheckedCopy, copy_submission
from a2rl.grading.submission_states import invalid_transition
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, SubmissionAccepted, SubmissionClaims, SubmissionReceived, SubmissionRefused
from a2rl.run.rules import MAX_WAITING
from tests.run_maker import FakePool, wait_for
from tests.small_model import trained_copy


def client_of(run: RunDir, settings: Settings, pool: FakePool | None = None, gpus: tuple[str, ...] = ()) -> TestClient:
    service = GradingService(run, cast(GraderPool, pool or FakePool()))
    return TestClient(create_app(service, run.spec.task, list(gpus)), raise_server_exceptions=False)


def post(client: TestClient, path: str, wait: int = 1, key: str = "", **more: Any) -> Response:
    headers = {"Idempotency-Key": key} if key else {}
    return client.post(f"/submit?wait={wait}", json={"model_path": path, **more}, headers=headers)


def state_of(client: TestClient, number: int) -> dict[str, Any]:
    answer = client.get(f"/submissions/{number}")
    assert answer.status_code == 200
    return dict(answer.json())


@pytest.fixture
def v1(run: RunDir, base_model: Path) -> str:
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    return "output/v1"


@pytest.fixture
def held_copy(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Copies begin at once and go on when the event is set."""
    go_on = threading.Event()

    def copy(*arguments: Any) -> CheckedCopy:
        *others, alone = arguments
        with alone():
            assert go_on.wait(60)
            return copy_submission(*others)

    monkeypatch.setattr("a2rl.grading.receiving.copy_submission", copy)
    return go_on


def test_who_has_left_waits_for_no_grade(run: RunDir, settings: Settings, v1: str) -> None:
    """Otherwise, a client that asks and leaves again and again would fill the memory of the grader."""
    app = create_app(GradingService(run, cast(GraderPool, FakePool(at_once=False))), run.spec.task, [])
    body = json.dumps({"model_path": v1}).encode()
    messages = [{"type": "http.request", "body": body, "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if messages else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "method": "POST", "path": "/submit", "raw_path": b"/submit", "query_string": b"wait=1",
        "headers": headers, "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 1), "client": None,
    }  # fmt: skip

    async def ask() -> None:
        await asyncio.wait_for(app(scope, receive, send), 30)

    asyncio.run(ask())
    assert run.ledger.events(SubmissionReceived)


def test_a_request_without_waiting_can_be_followed_to_its_grade(
    run: RunDir, settings: Settings, v1: str, held_copy: threading.Event
) -> None:
    """It is answered before the copy is made."""
    pool = FakePool(at_once=False)
    client = client_of(run, settings, pool)
    answer = post(client, v1, wait=0)
    assert (answer.status_code, answer.headers["Location"]) == (202, "/submissions/1")
    assert answer.json()["id"] == 1
    assert answer.json()["state"] in {"received", "copying"}
    assert wait_for(lambda: state_of(client, 1)["state"] == "copying")
    assert post(client, v1, wait=0).json()["state"] == "received", "the copies are made one by one"
    held_copy.set()
    wait_for(lambda: state_of(client, 2)["state"] == "queued")
    assert state_of(client, 1)["submission_id"] == 1
    progress_path(pool.jobs[0].result).write_text("3 4 9 24")
    assert state_of(client, 1) == state_of(client, 1) | {
        "state": "grading",
        "progress": {"done": 3, "total": 4, "answers": 9, "most_answers": 24},
    }
    pool.grade_all()
    wait_for(lambda: state_of(client, 2)["state"] == "graded")
    waited = post(client, v1).json()
    graded = state_of(client, 1)
    assert graded["score"] == waited["score"]
    assert graded["answer"].keys() == waited.keys()
    assert (graded["answer"]["id"], graded["answer"]["submission_id"]) == (1, 1)
    assert datetime.fromisoformat(graded["received_at"]) <= datetime.fromisoformat(graded["answer"]["timestamp"])


def test_all_submissions_are_listed_with_their_states(
    run: RunDir, settings: Settings, v1: str, base_model: Path
) -> None:
    trained_copy(base_model, run.workspace / "output" / "v2", seed=2)
    (trained_copy(base_model, run.workspace / "output" / "v3", seed=3) / "config.json").write_text("{")
    pool = FakePool()
    client = client_of(run, settings, pool)
    assert client.get("/submissions").json() == {"total": 0, "submissions": []}
    score = post(client, v1).json()["score"]
    pool.failure = "out of memory"
    assert post(client, "output/v2").status_code == 503
    assert post(client, "output/v3").status_code == 422
    listed = client.get("/submissions").json()
    assert listed["total"] == 3
    states = [(each["id"], each["state"], each["submission_id"], each["score"]) for each in listed["submissions"]]
    assert states == [(1, "graded", 1, score), (2, "failed", 2, None), (3, "refused", None, None)]
    assert "out of memory" in listed["submissions"][1]["reason"]
    assert "not valid JSON" in listed["submissions"][2]["reason"]
    assert "items" not in json.dumps(listed)


@pytest.mark.parametrize(
    ("number", "says"),
    [("7", "no submission with the id 7"), ("0", "no submission"), ("x", "is a number"), ("-1", "is a number"),
     ("1.0", "is a number"), ("9" * 400, "is a number"), ("\u0661", "is a number"), ("1%00", "is a number")],
)  # fmt: skip
def test_an_unknown_submission_is_404_and_no_refused_submission(
    run: RunDir, settings: Settings, v1: str, number: str, says: str
) -> None:
    client = client_of(run, settings)
    assert post(client, v1).status_code == 200
    answer = client.get(f"/submissions/{number}")
    assert answer.status_code == 404
    assert says in answer.json()["detail"]
    assert run.ledger.events(SubmissionRefused) == []


def test_too_many_requests_without_waiting_are_told_so_at_once(run: RunDir, settings: Settings, v1: str) -> None:
    pool = FakePool(at_once=False)
    client = client_of(run, settings, pool)
    assert [post(client, v1, wait=0).status_code for _ in range(MAX_WAITING)] == [202] * MAX_WAITING
    answer = post(client, v1, wait=0)
    assert answer.status_code == 429
    assert "was not received" in answer.json()["detail"]
    assert answer.headers["Retry-After"]
    assert len(run.ledger.events(SubmissionReceived)) == MAX_WAITING
    wait_for(lambda: pool.jobs)
    wait_for(lambda: len(run.ledger.events(SubmissionAccepted)) == MAX_WAITING)
    pool.grade_all()
    wait_for(lambda: post(client, v1, wait=0).status_code == 202)


@pytest.mark.parametrize("wait", ["maybe", "2", ""])
def test_a_wait_that_is_neither_yes_nor_no_is_refused(run: RunDir, settings: Settings, v1: str, wait: str) -> None:
    answer = client_of(run, settings).post(f"/submit?wait={wait}", json={"model_path": v1})
    assert answer.status_code == 400
    assert "wait=0" in answer.json()["detail"]
    assert run.ledger.events(SubmissionReceived) == []


# Idempotency keys.


def test_a_repeated_key_gives_the_same_submission(run: RunDir, settings: Settings, v1: str) -> None:
    """This holds while it is worked on and afterwards."""
    pool = FakePool(at_once=False)
    client = client_of(run, settings, pool)
    first = post(client, v1, wait=0, key="k")
    with ThreadPoolExecutor(3) as threads:
        others = [threads.submit(post, client, v1, 1, "k") for _ in range(3)]
        wait_for(lambda: pool.jobs)
        pool.grade_all()
        answers = [other.result() for other in others]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["id"] for answer in answers} == {first.json()["id"]} == {1}
    again = post(client, v1, wait=0, key="k")
    assert (again.status_code, again.json()["state"]) == (202, "graded")
    assert len(run.ledger.events(SubmissionReceived)) == len(run.ledger.events(SubmissionAccepted)) == 1
    assert len(pool.jobs) == 1
    assert post(client, v1, key="other").json()["id"] == 2


def test_a_key_outlives_the_service_the_folder_and_the_deadline(run: RunDir, settings: Settings, v1: str) -> None:
    answer = post(client_of(run, settings), v1, key="k")
    run.clock.stop()
    (run.workspace / v1).rename(run.workspace / "elsewhere")
    again = post(client_of(run, settings), v1, key="k")
    assert again.status_code == 200
    assert again.json() == answer.json()


def test_simultaneous_requests_with_one_key_are_one_submission(run: RunDir, settings: Settings, v1: str) -> None:
    client, begin = client_of(run, settings), threading.Barrier(8)

    def one(_: int) -> Response:
        begin.wait()
        return post(client, v1, key="k")

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(one, range(8)))
    assert {(answer.status_code, answer.json()["id"]) for answer in answers} == {(200, 1)}
    assert len(run.ledger.events(SubmissionReceived)) == 1


def test_a_refused_submission_stays_refused_under_its_key(run: RunDir, settings: Settings, v1: str) -> None:
    config = run.workspace / v1 / "config.json"
    good = config.read_text()
    config.write_text("{")
    client = client_of(run, settings)
    first = post(client, v1, key="k")
    config.write_text(good)
    again = post(client, v1, key="k")
    assert first.status_code == again.status_code == 422
    assert first.json() == again.json()
    assert len(run.ledger.events(SubmissionRefused)) == 1
    assert post(client, v1, key="new").status_code == 200


def test_an_ungraded_submission_is_graded_when_its_key_returns(run: RunDir, settings: Settings, v1: str) -> None:
    pool = FakePool(failure="out of memory")
    client = client_of(run, settings, pool)
    assert post(client, v1, key="k").status_code == 503
    pool.failure = ""
    assert post(client, v1, key="k").json()["id"] == 1
    assert len(run.ledger.events(SubmissionAccepted)) == 1


@pytest.mark.parametrize(("path", "gpu"), [("output/v2", None), ("output/v1", "1")])
def test_a_key_that_is_used_for_another_submission_is_refused(
    run: RunDir, settings: Settings, v1: str, base_model: Path, path: str, gpu: str | None
) -> None:
    trained_copy(base_model, run.workspace / "output" / "v2", seed=2)
    client = client_of(run, settings, gpus=("0", "1"))
    assert post(client, v1, key="k").status_code == 200
    answer = post(client, path, key="k", gpu=gpu)
    assert answer.status_code == 422
    assert "use a new key for each submission" in answer.json()["detail"]
    assert len(run.ledger.events(SubmissionReceived)) == 1


@pytest.mark.parametrize("key", ["x" * (MAX_KEY + 1), " ", "k\u00e9y"])
def test_a_key_that_cannot_be_is_refused(run: RunDir, settings: Settings, v1: str, key: str) -> None:
    answer = client_of(run, settings).post(
        "/submit", json={"model_path": v1}, headers=[(b"Idempotency-Key", key.encode("latin-1"))]
    )
    assert answer.status_code == 400
    assert "Idempotency-Key is not one text of" in answer.json()["detail"]
    assert run.ledger.events(SubmissionReceived) == []
    assert len(run.ledger.events(SubmissionRefused)) == 1


# The choice of a GPU.


@pytest.mark.parametrize(("gpu", "wanted"), [("1", {"1"}), (1, {"1"}), ("1,0", {"0", "1"}), (None, set())])
def test_a_gpu_that_is_asked_for_grades(
    run: RunDir, settings: Settings, v1: str, gpu: object, wanted: set[str]
) -> None:
    pool = FakePool()
    assert post(client_of(run, settings, pool, ("0", "1")), v1, gpu=gpu).status_code == 200
    assert pool.asked_for == [wanted]


@pytest.mark.parametrize("gpu", [1, "1", "GPU-b"])
def test_a_gpu_may_be_named_by_its_position_in_the_list(
    run: RunDir, settings: Settings, v1: str, gpu: int | str
) -> None:
    pool = FakePool()
    assert post(client_of(run, settings, pool, ("GPU-a", "GPU-b")), v1, gpu=gpu).status_code == 200
    assert pool.asked_for == [{"GPU-b"}]


def test_a_restarted_service_still_knows_which_gpu_was_asked_for(run: RunDir, settings: Settings, v1: str) -> None:
    old, new = FakePool(at_once=False), FakePool()
    post(client_of(run, settings, old, ("0", "1")), v1, wait=0, gpu="1")
    wait_for(lambda: old.jobs)
    client_of(run, settings, new, ("0", "1"))
    assert new.asked_for == [{"1"}]


@pytest.mark.parametrize(
    ("gpus", "gpu", "says"),
    [(("0",), "3", "uses the GPUs 0"), (("0",), "0,3", "uses the GPUs 0"), (("0",), "", "uses the GPUs 0"),
     ((), "0", "uses no GPU"), (("0",), -1, "uses the GPUs 0"), (("0",), True, "send JSON"),
     (("0",), ["0"], "send JSON"), (("0",), "0" * 5000, "send JSON")],
)  # fmt: skip
def test_a_gpu_that_cannot_grade_is_refused_and_never_ignored(
    run: RunDir, settings: Settings, v1: str, gpus: tuple[str, ...], gpu: object, says: str
) -> None:
    answer = post(client_of(run, settings, gpus=gpus), v1, gpu=gpu)
    assert answer.status_code == 400
    assert says in answer.json()["detail"]
    assert run.ledger.events(SubmissionReceived) == []


# What the service tells the workspace, and what must not end a wait.


def test_the_workspace_is_told_the_last_submission_time(run: RunDir, settings: Settings, v1: str) -> None:
    """It is never read back."""
    (run.workspace / "run_meta.json").symlink_to(run.root / "spec.json")
    before = (run.root / "spec.json").read_text()
    client = client_of(run, settings)
    assert post(client, v1).status_code == 200
    assert (run.root / "spec.json").read_text() == before
    told = json.loads((run.workspace / "run_meta.json").read_text())
    assert told["last_submit_time"] == client.get("/time").json()["last_submit_time"]
    assert (told["timeout_s"], told["task"]) == (600, "gsm8k")
    (run.workspace / "run_meta.json").write_text(json.dumps({"last_submit_time": 0, "timeout_s": 9e9}))
    assert client.get("/time").json()["timeout_s"] == 600


def test_a_workspace_that_cannot_be_told_delays_no_answer(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("a2rl.linux.untrusted_folder.UntrustedFolder.write", fail)
    assert post(client_of(run, settings), v1).status_code == 200


def test_a_ledger_that_fails_late_leaves_no_request_waiting(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bool:
        for module in ("receiving", "service"):
            monkeypatch.setattr(f"a2rl.grading.{module}.is_agent_at_work", fail)
        raise InfrastructureError("the ledger cannot be used")

    monkeypatch.setattr("a2rl.grading.receiving.copy_submission", fail)
    assert post(client_of(run, settings), v1).status_code == 503
    assert run.ledger.events(Graded) == []


def test_the_ledger_of_all_this_is_valid(run: RunDir, settings: Settings, v1: str, held_copy: threading.Event) -> None:
    client = client_of(run, settings, FakePool(), ("0",))
    for number in range(3):
        post(client, v1, wait=0, key=f"{number}", gpu="0")
    held_copy.set()
    wait_for(lambda: len(run.ledger.events(SubmissionAccepted)) == 3 and run.ledger.events(Graded))
    assert invalid_transition(run.ledger.entries(), finished=True) == ""
    run.ledger.verify()


def test_what_an_agent_says_of_a_submission_is_only_recorded(run: RunDir, settings: Settings, base_model: Path) -> None:
    """It is never a reason to refuse it."""
    client = client_of(run, settings)
    said: tuple[dict[str, Any], ...] = (
        {"method": "SFT", "parent": 3, "note": "x" * 5000},
        {"method": ["SFT"], "parent": {"a": 1}, "note": None},
        {},
    )
    for seed, claims in enumerate(said, start=1):
        trained_copy(base_model, run.workspace / "output" / f"v{seed}", seed=seed)
        assert post(client, f"output/v{seed}", **claims).status_code == 200
    first, *others = [event.claims for event in run.ledger.events(SubmissionReceived)]
    assert (first.method, first.parent, first.note) == ("SFT", "3", "x" * 1000)
    assert others == [SubmissionClaims(), SubmissionClaims()]
    run.ledger.verify()
