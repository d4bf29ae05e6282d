"""Tests what a time-stamp service that is down leaves behind: no gap in the signatures, and a record with room."""

import json

import pytest

from a2rl.anchor import follower
from a2rl.anchor.follower import FILE, PUBLISHING_NOTE, SIGNING_NOTE, Publisher
from a2rl.anchor.signatures import Head, read_signatures
from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import MAX_BYTES
from a2rl.core.settings import Settings
from a2rl.results.mlflow.tracking import Tracker
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from flows.pipeline import mirrors_of
from tests.run_maker import spec, wait_for
from tests.signing_key import make_key, use_anchor

HEAD = Head(seq=1, hash="0" * 64)


def test_a_service_that_is_down_and_recovers_is_noted_once_each(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["down"] * 50 + ["receipt"])

    def time_stamp(*_: object) -> str:
        if (answer := next(answers)) == "down":
            raise InfrastructureError("down")
        return answer

    monkeypatch.setattr(follower, "time_stamp", time_stamp)
    publisher = Publisher("http://localhost")
    for _ in range(50):
        with pytest.raises(InfrastructureError, match="down"):
            publisher.publish(run, HEAD)
    publisher.publish(run, HEAD)
    rows = [json.loads(line) for line in (run.root / FILE).read_text().splitlines()]
    assert [(row["problem"], row["receipt"]) for row in rows] == [("down", ""), ("", "receipt")]


def test_a_service_that_is_down_keeps_no_run_from_being_signed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_stamp(*_: object) -> str:
        raise InfrastructureError("down")

    monkeypatch.setattr(follower, "time_stamp", time_stamp)
    make_key(settings.root / "key")
    use_anchor(settings, key="key", publish_timestamp="http://localhost")
    runs = [RunDir.create(settings.runs, spec(run_id=f"gsm8k-test-{number}")) for number in range(20)]
    mlflow, *mirrors = mirrors_of(runs, Tracker(settings), settings)
    for run in runs:
        run.ledger.append(RunInterrupted(stage="setup"))
        for mirror in mirrors:
            mirror.leave(run)
    wait_for(lambda: all(read_signatures(run.root) for run in runs), timeout_s=30)
    for mirror in (mlflow, *mirrors):
        mirror.close()
    assert {SIGNING_NOTE.read(run) for run in runs} == {""}
    assert all("not published" in PUBLISHING_NOTE.read(run) for run in runs)


def test_the_newest_head_is_published_or_there_is_a_note(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is stopped within a minute of the head before."""
    heads: list[int] = []

    def time_stamp(_: str, __: str, head: Head) -> str:
        heads.append(head.seq)
        return "receipt"

    monkeypatch.setattr(follower, "time_stamp", time_stamp)
    use_anchor(settings, publish_timestamp="http://localhost")
    run = RunDir.create(settings.runs, spec())
    run.ledger.append(RunInterrupted(stage="setup"))
    mlflow, mirror = mirrors_of([run], Tracker(settings), settings)
    mirror.follow(run)
    wait_for(lambda: heads == [1])
    run.ledger.append(RunInterrupted(stage="setup"))
    wait_for(lambda: "not published" in PUBLISHING_NOTE.read(run))
    assert heads == [1]
    mirror.leave(run)
    for each in (mlflow, mirror):
        each.close()
    assert (heads, PUBLISHING_NOTE.read(run)) == ([1, 2], "")


def test_a_receipt_that_cannot_be_kept_is_a_problem(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with (run.root / FILE).open("wb") as log:
        log.truncate(MAX_BYTES - 10)
    monkeypatch.setattr(follower, "time_stamp", lambda *_: "receipt")
    with pytest.raises(InfrastructureError, match="is full"):
        Publisher("http://localhost").publish(run, HEAD)
