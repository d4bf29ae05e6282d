"""Tests how submissions are received: those in time count, even after a crash, and late ones are refused."""

import errno
import json
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient
from httpx2 import Response

from a2rl.core.errors import InfrastructureError, InterruptedByUserError, InvalidSubmissionError, LackOfMemoryError
from a2rl.core.settings import Settings
from a2rl.grading import http_limits, submission_queue, submitted_files
from a2rl.grading.app import create_app
from a2rl.grading.pool import GraderPool
from a2rl.grading.receiving import (
    MAX_CRASHES,
    BudgetSpentError,
    SubmissionDeferredError,
    Submissions,
    SubmitRequest,
)
from a2rl.grading.service import GradingService
from a2rl.grading.submission_checks import CheckedCopy, copy_submission
from a2rl.grading.submission_states import invalid_transition, open_receipts, ungraded
from a2rl.grading.submitted_files import Source
from a2rl.grading.throttling import BURST, INTERVAL_S, MAX_PATH, MAX_REASON, Refusals, TokenBucket
from a2rl.models.checkpoint import weights_digest
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, Graded, SubmissionAccepted, SubmissionReceived, SubmissionRefused
from a2rl.run.records import BaselineRecord
from a2rl.run.rules import MAX_WAITING
from tests.run_maker import FakePool, submit_checkpoint, wait_for
from tests.small_model import Weight, read_weights, trained_copy, write_raw_safetensors, write_safetensors

V1, V2 = SubmitRequest("output/v1"), SubmitRequest("output/v2", key="2")


def service_of(run: RunDir, settings: Settings, pool: FakePool | None = None) -> GradingService:
    return GradingService(run, cast(GraderPool, pool or FakePool()))


def client_of(service: GradingService) -> TestClient:
    return TestClient(create_app(service, "gsm8k", []), raise_server_exceptions=False)


def submit(client: TestClient, model_path: str) -> Response:
    return client.post("/submit", json={"model_path": model_path})


def end_agent_at_work(run: RunDir) -> None:
    """Records in the ledger that the agent has ended. The clock still runs, as it does until the stage stops it."""
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="deadline", exit_code=None))


@pytest.fixture
def v1(run: RunDir, base_model: Path) -> str:
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    return "output/v1"


class SlowCopy:
    """Copies a submission when the test tells it to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self._copy = copy_submission
        monkeypatch.setattr("a2rl.grading.receiving.copy_submission", self)

    def __call__(self, *arguments: Any) -> CheckedCopy:
        self.begun.set()
        assert self.go_on.wait(60)
        return self._copy(*arguments)


# Receipts and the deadline.


def test_a_submission_is_in_the_ledger_before_it_is_copied(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = SlowCopy(monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(submit, client_of(service_of(run, settings)), v1)
        assert copy.begun.wait(60)
        assert [event.model_path for event in run.ledger.events(SubmissionReceived)] == [v1]
        copy.go_on.set()
        assert waiting.result().status_code == 200


def test_what_arrived_in_time_is_copied_and_graded_afterwards(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is copied without haste, and graded when the agent is gone."""
    copy = SlowCopy(monkeypatch)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(submit, client_of(service_of(run, settings)), v1)
        assert copy.begun.wait(60)
        run.clock.stop()
        end_agent_at_work(run)
        assert len(open_receipts(run.ledger.entries())) == 1, "draining waits for it"
        copy.go_on.set()
        assert waiting.result().status_code == 200
    assert len(run.ledger.events(Graded)) == 1
    assert invalid_transition(run.ledger.entries(), finished=True) == ""


def test_nothing_is_received_once_the_ledger_has_the_agents_end(run: RunDir, settings: Settings, v1: str) -> None:
    client = client_of(service_of(run, settings))
    end_agent_at_work(run)
    answer = submit(client, v1)
    assert answer.status_code == 403
    assert "no longer accepted" in answer.json()["detail"]
    assert run.ledger.events(SubmissionReceived) == []


def test_the_deadline_and_the_receipt_are_one_transaction(run: RunDir, settings: Settings, v1: str) -> None:
    service, ledger = service_of(run, settings), run.ledger
    with ThreadPoolExecutor(9) as threads:
        begin = threading.Barrier(9)

        def receive(_: int) -> bool:
            begin.wait()
            try:
                service.submissions.queue.end(service.submissions.receive(V1), InterruptedByUserError())
            except (BudgetSpentError, SubmissionDeferredError):  # or there is no room for another one
                return False
            return True

        futures = [threads.submit(receive, number) for number in range(8)]
        begin.wait()
        end_agent_at_work(run)
        given = sum(future.result() for future in futures)
    kinds = [type(entry.event) for entry in ledger.entries()]
    assert kinds.count(SubmissionReceived) == given
    assert SubmissionReceived not in kinds[kinds.index(AgentEnded) :]


def test_a_key_that_another_service_received_meanwhile_is_known(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = service_of(run, settings).submissions, service_of(run, settings).submissions
    request = SubmitRequest("output/v1", key="k")
    received = first.receive(request).received
    with monkeypatch.context() as patched:
        patched.setattr(type(run.ledger), "entries", lambda *_: [])  # what the second one saw a moment before
        assert second.receive(request).received == received
    assert run.ledger.events(SubmissionReceived) == [received]


def test_a_copy_cut_off_by_the_services_death_is_made_again(run: RunDir, settings: Settings, v1: str) -> None:
    service_of(run, settings).submissions.receive(V1)  # and then it is killed
    (run.checkpoints / ".incoming-half").mkdir()
    end_agent_at_work(run)
    service_of(run, settings)
    wait_for(lambda: run.ledger.events(Graded))
    [accepted] = run.ledger.events(SubmissionAccepted)
    assert accepted.model_path == v1
    assert invalid_transition(run.ledger.entries(), finished=True) == ""
    assert not list(run.checkpoints.glob(".incoming-*"))


def test_a_folder_removed_after_the_receipt_is_still_copied(run: RunDir, settings: Settings, v1: str) -> None:
    service_of(run, settings).submissions.receive(V1)  # and then it is killed
    digest = weights_digest(run.workspace / v1)
    shutil.rmtree(run.workspace / v1)
    end_agent_at_work(run)
    service_of(run, settings)
    wait_for(lambda: run.ledger.events(Graded))
    assert [event.weights_digest for event in run.ledger.events(SubmissionAccepted)] == [digest]
    assert not list(run.checkpoints.glob(".*")), "no half copies and no frozen files stay"


def test_what_replaces_a_folder_after_the_receipt_does_not_count(
    run: RunDir, settings: Settings, v1: str, base_model: Path
) -> None:
    service = service_of(run, settings)
    pending, digest = service.submissions.receive(V1), weights_digest(run.workspace / v1)
    shutil.rmtree(run.workspace / v1)
    trained_copy(base_model, run.workspace / v1, seed=5)
    assert service.submissions.accept(pending).weights_digest == digest != weights_digest(run.workspace / v1)
    assert service.submit(V1).outcome.result(60).accepted.weights_digest == weights_digest(run.workspace / v1)


def test_a_file_overwritten_in_place_after_receipt_is_refused(run: RunDir, settings: Settings, v1: str) -> None:
    service = service_of(run, settings)
    pending = service.submissions.receive(V1)
    with (run.workspace / v1 / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"abcd")
    with pytest.raises(InvalidSubmissionError, match=r"was changed after it was submitted.*save to a new folder"):
        service.submissions.accept(pending)
    assert service.submit(V1).outcome.result(60).accepted.submission_id == 1, "the changed folder is a new submission"


def test_where_files_can_be_cloned_even_that_does_not_matter(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(source: int, target: int) -> bool:
        os.sendfile(target, source, 0, os.fstat(source).st_size)
        os.lseek(target, 0, os.SEEK_SET)
        return True

    service, digest = service_of(run, settings), weights_digest(run.workspace / v1)
    monkeypatch.setattr(submitted_files, "clone_file", clone)
    pending = service.submissions.receive(V1)
    with (run.workspace / v1 / "model.safetensors").open("r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"abcd")
    assert service.submissions.accept(pending).weights_digest == digest


def test_a_submission_that_was_not_frozen_and_is_gone_is_refused(run: RunDir, settings: Settings, v1: str) -> None:
    service_of(run, settings).submissions.receive(V1)
    shutil.rmtree(run.checkpoints / ".received-1")  # the service was killed before it could
    (run.workspace / v1 / "model.safetensors").unlink()
    end_agent_at_work(run)
    service_of(run, settings)
    [refused] = wait_for(lambda: run.ledger.events(SubmissionRefused))
    assert "was restarted while it copied this" in refused.reason
    assert "no weights" in refused.reason
    assert invalid_transition(run.ledger.entries(), finished=True) == ""


def test_a_second_name_of_ours_does_not_hide_one_of_the_agents(run: RunDir, settings: Settings, v1: str) -> None:
    service = service_of(run, settings)
    pending = [service.submissions.receive(V1), service.submissions.receive(V1)]
    assert {service.submissions.accept(each).submission_id for each in pending} == {1, 2}
    third = service.submissions.receive(V1)
    (run.workspace / "output" / "second-name").hardlink_to(run.workspace / v1 / "model.safetensors")
    assert client_of(service).post("/submit", json={"model_path": v1}).status_code == 422
    with pytest.raises(InvalidSubmissionError, match="second name"):
        service.submissions.accept(third)
    assert not list(run.checkpoints.glob(".received-*"))


def test_two_services_that_copy_one_submission_accept_it_once(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = service_of(run, settings)
    pending = old.submissions.receive(V1)

    def copy_after_another(*arguments: Any) -> CheckedCopy:
        monkeypatch.undo()
        copy = copy_submission(*arguments)
        service_of(run, settings)
        wait_for(lambda: run.ledger.events(Graded))
        return copy

    monkeypatch.setattr("a2rl.grading.receiving.copy_submission", copy_after_another)
    with pytest.raises(InfrastructureError, match="another grading service"):
        old.submissions.accept(pending)
    assert old.submissions.accept(pending).submission_id == 1, "now the ledger says so"
    assert len(run.ledger.events(SubmissionAccepted)) == 1
    assert invalid_transition(run.ledger.entries(), finished=True) == ""


def test_a_full_disk_loses_nothing_after_the_agents_end(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage is told of it."""
    service_of(run, settings).submissions.receive(V1)
    end_agent_at_work(run)
    with monkeypatch.context() as full:
        is_full = raising(InfrastructureError("the grader's disk is full"))
        full.setattr("a2rl.grading.receiving.copy_submission", is_full)
        service = service_of(run, settings)
        assert "disk is full" in wait_for(lambda: service.problem)
    assert len(open_receipts(run.ledger.entries())) == 1
    service_of(run, settings)  # resumed, with a higher limit
    wait_for(lambda: run.ledger.events(Graded))


def test_a_failed_copy_stays_a_problem_when_another_succeeds(
    run: RunDir, settings: Settings, v1: str, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_copy(base_model, run.workspace / "output" / "v2", seed=2)
    first = service_of(run, settings)
    received = [first.submissions.receive(each).received for each in (V1, V2)]
    end_agent_at_work(run)
    full = {f"-{received[0].receipt}"}

    def copy(source: Source, *others: Any) -> CheckedCopy:
        if any(source.path.endswith(receipt) for receipt in full):
            raise InfrastructureError("the grader's disk is full")
        return copy_submission(source, *others)

    monkeypatch.setattr("a2rl.grading.receiving.copy_submission", copy)
    service = service_of(run, settings)
    wait_for(lambda: run.ledger.events(Graded))
    service.submit(V2).outcome.result(30)  # as when its client asks again
    assert "disk is full" in wait_for(lambda: service.problem)
    full.clear()
    service.finish()
    wait_for(lambda: len(run.ledger.events(Graded)) == 2)
    wait_for(lambda: not service.problem)


def test_a_submission_that_keeps_killing_the_service_is_refused(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    received = service_of(run, settings).submissions.receive(V1).received
    marks = run.checkpoints / f".attempts-{received.receipt}"
    marks.write_bytes(b"." * MAX_CRASHES)
    service_of(run, settings)  # it has one more attempt, which succeeds
    wait_for(lambda: run.ledger.events(Graded))
    assert not marks.exists()
    received = service_of(run, settings).submissions.receive(V1).received
    marks = run.checkpoints / f".attempts-{received.receipt}"
    marks.write_bytes(b"." * (MAX_CRASHES + 1))
    service_of(run, settings)
    [refused] = wait_for(lambda: run.ledger.events(SubmissionRefused))
    assert "crashed each time" in refused.reason


def test_where_no_thread_can_be_started_a_submission_is_kept(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = service_of(run, settings)
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", raising(RuntimeError("can't start new thread")))
        pending = service.submit(V1)
    with pytest.raises(InfrastructureError, match="the submission is kept"):
        pending.outcome.result(1)
    assert not service.submissions.queue.receipts(), "it does not hold up others"
    end_agent_at_work(run)
    service.finish()
    wait_for(lambda: run.ledger.events(Graded))


def test_copies_are_made_one_at_a_time(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So none counts on the disk space of another."""
    service, copying, most = service_of(run, settings), [0], [0]
    copy: Callable[..., CheckedCopy] = copy_submission

    @contextmanager
    def counted(alone: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
        with alone():
            copying[0] += 1
            most[0] = max(most[0], copying[0])
            time.sleep(0.05)
            yield
            copying[0] -= 1

    def copied(*arguments: Any) -> CheckedCopy:
        return copy(*arguments[:-1], partial(counted, arguments[-1]))

    monkeypatch.setattr("a2rl.grading.receiving.copy_submission", copied)
    with ThreadPoolExecutor(4) as threads:
        assert len(list(threads.map(lambda _: service.submit(V1, queues=True).outcome.result(60), range(4)))) == 4
    assert most == [1]


# Whatever a folder does to the grader: the agent gets an answer, the chain of events ends, and the service continues.


def raising(error: BaseException) -> Callable[..., None]:
    def fail(*arguments: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidSubmissionError("no weights"), 422),
        (OSError(errno.ELOOP, "Too many links", "v1"), 422),
        (OSError(errno.ENAMETOOLONG, "File name too long", "v1"), 422),
        (PermissionError(errno.EACCES, "Permission denied", "model.safetensors"), 422),
        (UnicodeEncodeError("utf-8", "\udcff", 0, 1, "surrogates not allowed"), 422),
        (ValueError("embedded null byte"), 422),
        (OverflowError("int too large"), 422),
        (RecursionError("too deep"), 422),
        (KeyError("shape"), 422),
        (OSError(errno.ENOSPC, "No space left on device"), 503),
        (OSError(errno.EMFILE, "Too many open files"), 503),
        (MemoryError(), 503),
        (InfrastructureError("the grader's disk is full; submit again"), 503),
    ],
)
def test_whatever_a_copy_raises_is_no_500_and_ends_the_chain(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch, error: BaseException, status: int
) -> None:
    client = client_of(service_of(run, settings))
    with monkeypatch.context() as broken:
        broken.setattr("a2rl.grading.receiving.copy_submission", raising(error))
        assert submit(client, v1).status_code == status
    [refused] = run.ledger.events(SubmissionRefused)
    assert refused.receipt == 1
    assert invalid_transition(run.ledger.entries(), finished=True) == ""
    assert submit(client, v1).status_code == 200


def bytes_in_a_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(Path(f"{folder}/\udcffmodel.safetensors"))


def half_a_character_in_a_tensors_name(folder: Path) -> None:
    write_raw_safetensors(
        folder / "more.safetensors", {"\ud800": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, b"abcd"
    )


def endless_tensors_name(folder: Path) -> None:
    name = "x" * 3_000_000
    write_safetensors(folder / "more.safetensors", {name: Weight("F32", (1,), b"abcd")})


def endless_value_in_the_config(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "x" * 3_000_000}))


def no_numbers(folder: Path) -> None:
    (folder / "config.json").write_text(
        '{"vocab_size": NaN, "hidden_size": 1e999, "num_hidden_layers": ' + "9" * 5000 + "}"
    )


def huge_offsets(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 2**63]}
    write_raw_safetensors(folder / "model.safetensors", {name: entry for name in read_weights(folder)}, b"")


def endless_shape(folder: Path) -> None:
    """Returns a shape so long that the product of its numbers would take hours to compute."""
    entry = {"dtype": "F32", "shape": [2**62] * 400_000, "data_offsets": [0, 0]}
    write_raw_safetensors(folder / "more.safetensors", {"w": entry}, b"")


def length_of_a_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**64 - 1) + b"{}")


@pytest.mark.parametrize(
    "spoil",
    [
        bytes_in_a_name, half_a_character_in_a_tensors_name, endless_tensors_name, endless_value_in_the_config,
        no_numbers, huge_offsets, length_of_a_header, endless_shape,
    ],
)  # fmt: skip
def test_a_hostile_folder_is_refused_briefly_and_in_characters(
    run: RunDir, settings: Settings, v1: str, spoil: Callable[[Path], None]
) -> None:
    spoil(run.workspace / v1)
    answer = submit(client_of(service_of(run, settings)), v1)
    assert answer.status_code in {200, 422}, answer.text[:200]
    assert len(answer.content) < 10_000
    for event in run.ledger.events(SubmissionRefused):
        assert len(event.reason) <= 2 * MAX_REASON
    assert invalid_transition(run.ledger.entries(), finished=True) == ""


@pytest.mark.parametrize(
    "path",
    ["x" * (MAX_PATH + 1), "a/" * 200, "output/" + "é" * 240, "\x1b[31m\u202ex", "output/v1\n", "\0", "/dev/fd/0", "."],
)  # fmt: skip
def test_a_path_that_cannot_be_is_refused_and_kept_short(run: RunDir, settings: Settings, v1: str, path: str) -> None:
    assert submit(client_of(service_of(run, settings)), path).status_code == 422
    [refused] = run.ledger.events(SubmissionRefused)
    assert len(refused.model_path) <= MAX_PATH
    assert len(refused.reason) <= MAX_REASON


def test_a_request_that_makes_no_sense_is_recorded_too(run: RunDir, settings: Settings) -> None:
    client = client_of(service_of(run, settings))
    assert client.post("/submit", content=b"{").status_code == 400
    assert client.post("/submit", content=b"x" * (http_limits.MAX_BODY_BYTES + 1)).status_code == 413
    assert client.get("/nothing").status_code == 404
    assert len(run.ledger.events(SubmissionRefused)) == 2


def test_an_unexpected_error_ends_the_wait_for_a_grade(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.grading.grades.file_digest", raising(ValueError("nobody thought of this")))
    pool = FakePool(at_once=False)
    service = service_of(run, settings, pool)
    pending = submit_checkpoint(service, v1)
    pool.grade_all()
    assert isinstance(pending.outcome.exception(5), InfrastructureError)
    monkeypatch.undo()
    service.finish()
    pool.grade_all()
    assert not ungraded(run.ledger.entries())


def test_what_failed_beside_the_agent_is_graded_after_its_end(run: RunDir, settings: Settings, v1: str) -> None:
    pool = FakePool(failure="out of memory")
    service = service_of(run, settings, pool)
    assert submit(client_of(service), v1).status_code == 503
    run.clock.stop()
    end_agent_at_work(run)
    pool.failure = ""
    service.finish()
    service.finish()
    assert len(run.ledger.events(Graded)) == 1
    assert len(pool.jobs) == 2


def test_a_run_ends_although_its_last_adapter_cannot_be_merged(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows whether the adapter or the machine is the reason, and it would be so at each resume."""
    service = service_of(run, settings, FakePool(at_once=False))
    no_memory = raising(LackOfMemoryError("the grader cannot merge the adapter now"))
    monkeypatch.setattr("a2rl.grading.receiving.copy_submission", no_memory)
    pending = service.submissions.receive(SubmitRequest(v1))
    run.clock.stop()
    end_agent_at_work(run)
    with pytest.raises(LackOfMemoryError):
        service.submissions.accept(pending)
    assert [event.receipt for event in run.ledger.events(SubmissionRefused)] == [pending.received.receipt]


def test_without_code_history_a_submission_still_counts(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.grading.receiving.snapshot_code", raising(InfrastructureError("git is not installed")))
    assert submit(client_of(service_of(run, settings)), v1).status_code == 200
    assert run.ledger.events(SubmissionAccepted)[0].code_revision is None


# Floods and quotas.


def test_of_a_flood_of_refusals_the_ledger_keeps_few(run: RunDir) -> None:
    """It keeps the first ones and counts the others."""
    now = [0.0]
    turned_away = Refusals(run.ledger, lambda: now[0])
    for second in range(900):
        now[0] = second / 60
        turned_away.note(1.0, "output/absent", "there is no such folder")
    assert len(run.ledger.events(SubmissionRefused)) == BURST
    now[0] += INTERVAL_S
    turned_away.flush(only_if_due=True)
    written = run.ledger.events(SubmissionRefused)
    assert len(written) == BURST + 1
    assert sum(event.count for event in written) == 900


def test_a_flood_of_hopeless_submissions_leaves_few_events(run: RunDir, settings: Settings) -> None:
    service = service_of(run, settings)
    client = client_of(service)
    statuses = {submit(client, f"output/absent-{number}").status_code for number in range(150)}
    assert statuses == {422}
    assert len(run.ledger.events(SubmissionRefused)) <= BURST + 1
    service.finish()
    assert sum(event.count for event in run.ledger.events(SubmissionRefused)) == 150


@pytest.mark.heavy
def test_repeated_broken_checkpoints_make_the_agent_wait_longer(
    run: RunDir, settings: Settings, base_model: Path, v1: str
) -> None:
    now = [100.0]
    receiver = Submissions(run, lambda: now[0])
    run.checkpoints.mkdir()
    (run.workspace / v1 / "config.json").write_text("{")
    for _ in range(submission_queue.MISTAKES + 10):
        while not receiver.queue.has_room:
            with pytest.raises(SubmissionDeferredError):
                receiver.receive(V1)
            now[0] += 0.1
        pending = receiver.receive(V1)
        with pytest.raises(InvalidSubmissionError) as refusal:
            receiver.accept(pending)
        receiver.queue.end(pending, refusal.value)
    assert now[0] - 100.0 == pytest.approx(sum(number / 10 for number in range(21, 30)), abs=2.0)
    assert len(run.ledger.events(SubmissionReceived)) == submission_queue.MISTAKES + 10
    assert invalid_transition(run.ledger.entries(), finished=True) == ""


@pytest.mark.parametrize("is_over", [False, True])
def test_refused_submissions_have_a_quota_of_time(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch, is_over: bool
) -> None:
    now = [100.0]
    receiver = Submissions(run, lambda: now[0])
    run.checkpoints.mkdir()

    def slow(*_: object) -> None:
        now[0] += submission_queue.REFUSED_S / 10
        raise InvalidSubmissionError("it has numbers that are not finite")

    monkeypatch.setattr("a2rl.grading.receiving.copy_submission", slow)
    had_room = []
    for number in range(12):
        pending = receiver.receive(V1, queues=True)
        if is_over and number == 11:
            end_agent_at_work(run)
        with pytest.raises(InvalidSubmissionError, match="not finite") as refusal:
            receiver.accept(pending)
        receiver.queue.end(pending, refusal.value)
        had_room.append(receiver.queue.has_room)
        now[0] += submission_queue.LONGEST_PAUSE_S if number == 10 else 0.0
    assert had_room == [True] * 10 + [False, is_over], "ten cost nothing, and after the agent's end there is no pause"
    receiver.queue.end_pause()
    assert receiver.queue.has_room


def test_a_submission_does_not_wait_for_the_check_of_another(
    run: RunDir, base_model: Path, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a check reads is hostile, so it may take its whole time."""
    receiver = Submissions(run)
    run.checkpoints.mkdir()
    trained_copy(base_model, run.workspace / "output/v2", seed=7)
    reached, proceed = threading.Event(), threading.Event()

    def check(*_: object) -> None:
        if not reached.is_set():
            reached.set()
            assert proceed.wait(60)

    monkeypatch.setattr("a2rl.grading.receiving.check_apart", check)
    first, second = receiver.receive(V1), receiver.receive(V2)
    with ThreadPoolExecutor(1) as threads:
        slow = threads.submit(receiver.accept, first)
        assert reached.wait(60)
        receiver.accept(second)
        proceed.set()
        slow.result(60)


def test_turns_are_given_in_the_order_of_the_receipts() -> None:
    queue, numbers = submission_queue.SubmissionQueue(), range(1, MAX_WAITING + 3)
    pending = {
        number: queue.add(SubmissionReceived(receipt=number, elapsed_s=0.0, model_path="v")) for number in numbers
    }

    def wait_for_turns(expected: set[int]) -> None:
        wait_for(lambda: queue.receipts("admitted") == expected)

    assert all(queue.begin(each) for each in pending.values())
    assert not any(queue.begin(each) for each in pending.values())
    with ThreadPoolExecutor(len(pending)) as threads:
        for each in reversed(pending.values()):
            threads.submit(queue.wait_for_turn, each)
        for ended in range(1, len(numbers) + 1):
            wait_for_turns(set(range(ended, min(ended + MAX_WAITING, len(numbers) + 1))))
            queue.end(pending[ended], InterruptedByUserError())
    assert queue.has_room


def test_an_allowance_comes_back_with_time() -> None:
    now = [0.0]
    bucket = TokenBucket(2, 10.0, lambda: now[0])
    assert [bucket.take() for _ in range(3)] == [True, True, False]
    assert [bucket.reserve(25.0) for _ in range(3)] == [10.0, 20.0, None]
    now[0] = 40.0
    assert [bucket.take() for _ in range(3)] == [True, True, False]


@pytest.mark.heavy
def test_many_last_second_checkpoints_are_all_received(run: RunDir, settings: Settings, base_model: Path) -> None:
    """They are worked on a few at a time."""
    for number in range(24):
        trained_copy(base_model, run.workspace / "output" / f"v{number}", seed=number + 1)
    pool = FakePool(at_once=False)
    service = service_of(run, settings, pool)
    client = client_of(service)
    with ThreadPoolExecutor(24) as threads:
        waiting = [threads.submit(submit, client, f"output/v{number}") for number in range(24)]
        wait_for(lambda: len(run.ledger.events(SubmissionReceived)) == 24)
        wait_for(lambda: len(pool.jobs) == MAX_WAITING)
        run.clock.stop()
        end_agent_at_work(run)
        assert len(run.ledger.events(SubmissionAccepted)) == MAX_WAITING
        while not all(each.done() for each in waiting):
            pool.grade_all()
        assert {each.result().status_code for each in waiting} == {200}
    assert {event.receipt for event in run.ledger.events(SubmissionAccepted)} == set(range(1, 25))
    assert invalid_transition(run.ledger.entries(), finished=True) == ""


def test_without_a_quota_of_its_own_a_run_has_the_default_one(
    run: RunDir, settings: Settings, v1: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.run.spec.DEFAULT_SUBMISSIONS", 3)
    client = client_of(service_of(run, settings))
    assert [submit(client, v1).json()["quota_left"] for _ in range(3)] == [2, 1, 0]
    answer = submit(client, v1)
    assert answer.status_code == 403
    assert "quota of 3 submissions" in answer.json()["detail"]


def know_how_long_a_baseline_takes(run: RunDir, seconds: float) -> None:
    run.write("baseline", run.need("baseline", BaselineRecord).model_copy(update={"graded_s": seconds}))


def test_grading_time_is_counted_before_it_is_spent(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    run = new_run(max_grading_s=10.0)
    know_how_long_a_baseline_takes(run, 10.0)  # for both halves, so the public half takes five seconds
    for number in range(3):
        trained_copy(base_model, run.workspace / "output" / f"v{number}", seed=number + 1)
    service = service_of(run, settings, FakePool(at_once=False))
    for number in range(2):
        submit_checkpoint(service, f"output/v{number}")
    with pytest.raises(BudgetSpentError, match="quota of 10 s of grading"):
        submit_checkpoint(service, "output/v2")


def test_the_same_checkpoint_again_costs_no_grading_time(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    run = new_run(max_grading_s=0.6)
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    client = client_of(service_of(run, settings))
    answers = [submit(client, "output/v1").json() for _ in range(3)]
    assert [answer["grading_seconds_left"] for answer in answers] == [0.1, 0.1, 0.1]


def test_a_run_is_told_its_quotas(new_run: Callable[..., RunDir]) -> None:
    from a2rl.grading.submission_states import quota_in_words

    assert quota_in_words(new_run().spec) == "100 submissions and 10m of grading"
    assert (
        quota_in_words(new_run(max_submissions=3, max_grading_s=90.0, run_id="b").spec)
        == "3 submissions and 1m30s of grading"
    )
