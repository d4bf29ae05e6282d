"""Tests that the record of what was published has room for the last head, however long a place was down."""

import json

import pytest

from a2rl.anchor import follower
from a2rl.anchor.follower import FILE, Publisher
from a2rl.anchor.signatures import Head
from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import MAX_BYTES
from a2rl.run.directory import RunDir

HEAD = Head(seq=1, hash="0" * 64)


def test_a_service_that_is_down_and_recovers_is_noted_once_each(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["down"] * 50 + ["receipt"])

    def time_stamp(*_: object) -> str:
        if (answer := next(answers)) == "down":
            raise InfrastructureError("down")
        return answer

    monkeypatch.setattr(follower, "time_stamp", time_stamp)
    publisher = Publisher("http://localhost", 0.0)
    for _ in range(50):
        with pytest.raises(InfrastructureError, match="down"):
            publisher.publish(run, HEAD, is_last=False)
    publisher.publish(run, HEAD, is_last=True)
    rows = [json.loads(line) for line in (run.root / FILE).read_text().splitlines()]
    assert [(row["problem"], row["receipt"]) for row in rows] == [("down", ""), ("", "receipt")]


def test_a_receipt_that_cannot_be_kept_is_a_problem(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with (run.root / FILE).open("wb") as log:
        log.truncate(MAX_BYTES - 10)
    monkeypatch.setattr(follower, "time_stamp", lambda *_: "receipt")
    with pytest.raises(InfrastructureError, match="is full"):
        Publisher("http://localhost", 0.0).publish(run, HEAD, is_last=True)
