"""Tests which orders of a submission's events are possible."""

import pytest

from a2rl.grading.submission_states import invalid_transition, is_agent_at_work, open_receipts, ungraded
from a2rl.run.events import (
    AgentEnded,
    AgentStarted,
    Event,
    Graded,
    SubmissionAccepted,
    SubmissionReceived,
    SubmissionRefused,
)
from tests import written_ledger
from tests.written_ledger import entries

STARTED = AgentStarted(attempt=1, elapsed_s=0)
ENDED = AgentEnded(attempt=1, elapsed_s=9, reason="finished", exit_code=0)
AT_THE_DOOR = SubmissionRefused(elapsed_s=1, model_path="x", reason="too late")


def received(receipt: int) -> SubmissionReceived:
    return SubmissionReceived(receipt=receipt, elapsed_s=1, model_path=f"v{receipt}")


def refused(receipt: int) -> SubmissionRefused:
    return SubmissionRefused(elapsed_s=1, model_path="x", reason="no weights", receipt=receipt)


def accepted(number: int, receipt: int, digest: str = "a") -> SubmissionAccepted:
    return written_ledger.accepted(number, 1, digest, receipt)


def graded(digest: str = "a") -> Graded:
    return written_ledger.graded(digest, 2)


@pytest.mark.parametrize(
    "events",
    [
        (STARTED, ENDED),
        (STARTED, AT_THE_DOOR, ENDED, AT_THE_DOOR),
        (STARTED, received(1), refused(1), ENDED),
        (STARTED, received(1), received(2), ENDED, accepted(1, 2), refused(1), graded()),
        (STARTED, received(1), accepted(1, 1), received(2), accepted(2, 2), graded(), ENDED),
        (STARTED, received(1), accepted(1, 1), ENDED, STARTED, received(2), accepted(2, 2), graded(), ENDED),
    ],
)
def test_every_submission_may_end_in_one_of_these_ways(events: tuple[Event, ...]) -> None:
    assert invalid_transition(entries(*events), finished=True) == ""


@pytest.mark.parametrize(
    ("events", "says"),
    [
        ((STARTED, received(1), ENDED), "neither accepted nor refused"),
        ((STARTED, received(1), accepted(1, 1), ENDED), "has no grade"),
        ((STARTED, received(1), refused(1), refused(1), ENDED), "ended twice"),
        ((STARTED, received(1), accepted(1, 1), refused(1), graded(), ENDED), "ended twice"),
        ((STARTED, refused(1), ENDED), "never given"),
        ((STARTED, received(2), refused(2), ENDED), "out of order"),
        ((STARTED, received(1), accepted(2, 1), graded(), ENDED), "out of order"),
        ((STARTED, ENDED, received(1), refused(1)), "no agent was at work"),
        ((STARTED, received(1), accepted(1, 1), accepted(2, 2), graded(), ENDED), "never given"),
        ((STARTED, graded(), ENDED), "belongs to no submission"),
        ((STARTED, received(1), accepted(1, 1), graded(), graded(), ENDED), "graded twice"),
    ],
)
def test_a_chain_that_cannot_be_is_named(events: tuple[Event, ...], says: str) -> None:
    assert says in invalid_transition(entries(*events), finished=True)


def test_while_a_run_goes_on_chains_may_be_open() -> None:
    going_on = entries(STARTED, received(1), received(2), accepted(1, 2))
    assert invalid_transition(going_on, finished=False) == ""
    assert [each.receipt for each in open_receipts(going_on)] == [1]
    assert list(ungraded(going_on)) == ["a"]
    assert is_agent_at_work(going_on)
    assert not is_agent_at_work([*going_on, *entries(ENDED)])
