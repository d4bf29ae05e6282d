"""The state of each submission: received, then refused or accepted; accepted, then graded.

Every submission ends in exactly one of these states. A request that was too late or named no folder is refused without
having been received. A submission that could not be graded ends with a grade without a score.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from a2rl.run.events import (
    AgentEnded,
    AgentStarted,
    Event,
    Graded,
    GradingFailed,
    SubmissionAccepted,
    SubmissionReceived,
    SubmissionRefused,
)
from a2rl.run.ledger import Entry


def is_agent_at_work(entries: Iterable[Entry]) -> bool:
    """Says whether an attempt was started and has not ended."""
    kinds = Counter(type(entry.event) for entry in entries)
    return kinds[AgentStarted] > kinds[AgentEnded]


def open_receipts(entries: Iterable[Entry]) -> list[SubmissionReceived]:
    """Returns the submissions that were received and are neither refused nor accepted yet, in order."""
    received: dict[int, SubmissionReceived] = {}
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionReceived):
            received[event.receipt] = event
        elif isinstance(event, SubmissionRefused | SubmissionAccepted) and event.receipt is not None:
            received.pop(event.receipt, None)
    return list(received.values())


def ungraded(entries: Iterable[Entry]) -> dict[str, SubmissionAccepted]:
    """Returns the first submission of each accepted checkpoint without a grade, by the digest of the weights."""
    waiting: dict[str, SubmissionAccepted] = {}
    graded: set[str] = set()
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionAccepted):
            waiting.setdefault(event.weights_digest, event)
        elif isinstance(event, Graded):
            graded.add(event.weights_digest)
    return {digest: event for digest, event in waiting.items() if digest not in graded}


def invalid_transition(entries: Sequence[Entry], finished: bool) -> str:
    """Returns the first invalid change of a submission's state in a ledger; empty if all are valid.

    Args:
        entries: The entries of the ledger.
        finished: Whether the agent's part is over, so that every submission must be refused or graded.
    """
    states = _States()
    for event in (entry.event for entry in entries):
        if problem := states.apply(event):
            return problem
    if finished and (left := open_receipts(entries)):
        return f"receipt {left[0].receipt} ({left[0].model_path}) was neither accepted nor refused"
    if finished and (waiting := ungraded(entries)):
        return f"submission {next(iter(waiting.values())).submission_id} was accepted and has no grade"
    return ""


class _States:
    """Applies the events of a ledger one by one and finds the first that is not allowed."""

    def __init__(self) -> None:
        self._at_work = 0
        self._received: set[int] = set()
        self._ended: set[int] = set()
        self._accepted = 0
        self._checkpoints: set[str] = set()
        self._graded: set[str] = set()

    def apply(self, event: Event) -> str:
        """Applies an event; returns what is wrong with it, empty if nothing is."""
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
