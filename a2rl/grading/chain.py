"""How far each submission has come: received, then refused or accepted; accepted, then graded.

Every submission ends in exactly one way. One that was turned away at the door (too late, no such folder) is refused
without having been received. A grade without a score is the end of one that could not be graded. Ledgers from before
there were receipts have submissions that begin with being accepted.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from a2rl.events import (
    AgentEnded,
    AgentStarted,
    Event,
    Graded,
    GradingFailed,
    SubmissionAccepted,
    SubmissionReceived,
    SubmissionRefused,
)
from a2rl.ledger import Entry


def is_agent_at_work(entries: Iterable[Entry]) -> bool:
    """Whether an attempt was started and has not ended."""
    kinds = Counter(type(entry.event) for entry in entries)
    return kinds[AgentStarted] > kinds[AgentEnded]


def open_receipts(entries: Iterable[Entry]) -> list[SubmissionReceived]:
    """What was received and is neither refused nor accepted yet, in order."""
    received: dict[int, SubmissionReceived] = {}
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionReceived):
            received[event.receipt] = event
        elif isinstance(event, SubmissionRefused | SubmissionAccepted) and event.receipt is not None:
            received.pop(event.receipt, None)
    return list(received.values())


def ungraded(entries: Iterable[Entry]) -> dict[str, SubmissionAccepted]:
    """The first submission of each checkpoint that was accepted and has no grade yet, by the weights' digest."""
    waiting: dict[str, SubmissionAccepted] = {}
    graded: set[str] = set()
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionAccepted):
            waiting.setdefault(event.weights_digest, event)
        elif isinstance(event, Graded):
            graded.add(event.weights_digest)
    return {digest: event for digest, event in waiting.items() if digest not in graded}


def broken_chain(entries: Sequence[Entry], finished: bool) -> str:
    """What is wrong with the chains of a run's submissions; empty if nothing is.

    Args:
        finished: the agent's part is over, so that every chain must have come to its end.
    """
    chains = _Chains()
    for event in (entry.event for entry in entries):
        if problem := chains.take(event):
            return problem
    if finished and (left := open_receipts(entries)):
        return f"receipt {left[0].receipt} ({left[0].model_path}) was neither accepted nor refused"
    if finished and (waiting := ungraded(entries)):
        return f"submission {next(iter(waiting.values())).submission_id} was accepted and has no grade"
    return ""


class _Chains:
    """Follows the events of a ledger and says which one must not be where it is."""

    def __init__(self) -> None:
        self._at_work = 0
        self._received: set[int] = set()
        self._ended: set[int] = set()
        self._accepted = 0
        self._checkpoints: set[str] = set()
        self._graded: set[str] = set()

    def take(self, event: Event) -> str:
        if isinstance(event, AgentStarted | AgentEnded):
            self._at_work += 1 if isinstance(event, AgentStarted) else -1
            return ""
        if isinstance(event, SubmissionReceived):
            return self._receive(event.receipt)
        if isinstance(event, SubmissionRefused):
            return self._end(event.receipt)
        if isinstance(event, SubmissionAccepted):
            return self._accept(event)
        return self._grade(event) if isinstance(event, Graded | GradingFailed) else ""

    def _receive(self, receipt: int) -> str:
        if self._at_work < 1:
            return f"receipt {receipt} was given while no agent was at work"
        if receipt != len(self._received) + 1:
            return f"receipt {receipt} is out of order"
        self._received.add(receipt)
        return ""

    def _end(self, receipt: int | None) -> str:
        if receipt is None:
            return ""
        if receipt not in self._received:
            return f"receipt {receipt} was never given"
        if receipt in self._ended:
            return f"receipt {receipt} ended twice"
        self._ended.add(receipt)
        return ""

    def _accept(self, event: SubmissionAccepted) -> str:
        self._accepted += 1
        if event.submission_id != self._accepted:
            return f"submission {event.submission_id} is out of order"
        if event.receipt is None and self._received:
            return f"submission {event.submission_id} was accepted without having been received"
        self._checkpoints.add(event.weights_digest)
        return self._end(event.receipt)

    def _grade(self, event: Graded | GradingFailed) -> str:
        if event.weights_digest not in self._checkpoints:
            return "a grade belongs to no submission"
        if isinstance(event, Graded):
            if event.weights_digest in self._graded:
                return "a checkpoint was graded twice"
            self._graded.add(event.weights_digest)
        return ""
