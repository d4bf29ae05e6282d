"""How far runs have come, while they run: clock, scores so far and spend. Each look reads only what is new.

watcher = Watcher(settings.runs, {"gsm8k-scripted-20260412-093015-a1b2"})
for state in watcher.look(): ...
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal, NamedTuple

from a2rl.core.errors import A2rlError
from a2rl.llm.relay.request_log import RequestLogReader, request_log_path
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown, Event, Graded, SubmissionAccepted
from a2rl.run.failure import refusal
from a2rl.run.records import ExecuteRecord, GradeRecord
from a2rl.run.spec import RunSpec
from a2rl.validity.record import counted_gain

Phase = Literal["waiting", "baseline", "running", "grading", "done", "failed", "refused", "damaged"]
ENDED: frozenset[Phase] = frozenset({"done", "failed", "refused", "damaged"})


class LiveRun(NamedTuple):
    """The state of a run."""

    spec: RunSpec
    phase: Phase
    elapsed_s: float
    """The agent's time so far."""
    allowed_s: float
    """The time that the agent has: the budget, and the refund for waiting."""
    baseline: float | None
    """Of the base model, on the public items."""
    scores: tuple[float, ...]
    """Public scores, in the order of the submissions."""
    submissions: int
    tokens: int | None
    """None if none were measured."""
    cost_usd: float | None
    """At list prices; None if it is unknown."""
    gain: float | None
    """The result, in points; None before it stands."""

    @property
    def best(self) -> float | None:
        """The best public score."""
        return max(self.scores, default=None)

    @property
    def has_ended(self) -> bool:
        """Whether nothing will change any more, unless somebody resumes the run."""
        return self.phase in ENDED


class _Follower:
    """Follows one run."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._seen = 0
        self._baseline: float | None = None
        self._grades: dict[str, float] = {}
        self._submitted: list[str] = []
        self._agent: Literal["not started", "works", "ended"] = "not started"
        self._requests = RequestLogReader(request_log_path(run))

    def look(self) -> LiveRun:
        """Returns the present state.

        Raises:
            A2rlError: The run cannot be read.
        """
        for entry in self.run.ledger.entries(after=self._seen):
            self._seen = entry.seq
            self._take(entry.event)
        graded, executed = self.run.read("grade", GradeRecord), self.run.read("execute", ExecuteRecord)
        seen = self._requests.read()
        clock = self.run.clock if self.run.clock.path.exists() else None
        return LiveRun(
            spec=self.run.spec,
            phase=self._phase(graded),
            elapsed_s=clock.elapsed_s() if clock else 0.0,
            allowed_s=clock.allowed_s() if clock else self.run.spec.budget_s,
            baseline=self._baseline,
            scores=tuple(self._grades[each] for each in self._submitted if each in self._grades),
            submissions=len(self._submitted),
            tokens=seen.tokens or None,
            cost_usd=executed.cost_usd if executed else seen.cost_usd if seen.tokens else None,
            gain=counted_gain(self.run, graded) if graded else None,
        )

    def _take(self, event: Event) -> None:
        if isinstance(event, BaselineKnown):
            self._baseline = event.public.score
        elif isinstance(event, AgentStarted):
            self._agent = "works"
        elif isinstance(event, AgentEnded):
            self._agent = "ended"
        elif isinstance(event, SubmissionAccepted):
            self._submitted.append(event.weights_digest)
        elif isinstance(event, Graded) and event.result.score is not None:
            self._grades[event.weights_digest] = event.result.score

    def _phase(self, graded: GradeRecord | None) -> Phase:
        if graded is not None:
            return "failed" if graded.verdict == "failed" else "done"
        if refusal(self.run):
            return "refused"
        if self._agent != "not started":
            return "running" if self._agent == "works" else "grading"
        return "baseline" if self.run.record_path("setup").exists() else "waiting"


class Watcher:
    """Follows runs.

    Args:
        of: Says which runs to follow, also of those that begin later.
    """

    def __init__(self, runs: Path, of: Callable[[RunDir], bool]) -> None:
        self._runs, self._of = runs, of
        self._followed: dict[str, _Follower] = {}
        self._others: set[str] = set()
        self._last: dict[str, LiveRun] = {}

    def look(self) -> list[LiveRun]:
        """Returns the runs: first those that are at work, then those that wait, then those that have ended.

        A run that has ended is not read again. One that cannot be read is shown as damaged.
        """
        for run in RunDir.all(self._runs):
            if run.id not in self._followed and run.id not in self._others:
                self._meet(run)
        for name, follower in self._followed.items():
            known = self._last.get(name)
            if known is None or not known.has_ended:
                self._last[name] = self._look_at(follower, known)
        return sorted(self._last.values(), key=lambda each: (_order(each), each.spec.run_id))

    def _meet(self, run: RunDir) -> None:
        try:
            is_meant = self._of(run)
        except A2rlError:
            is_meant = False  # a run whose settings cannot be read has nothing that could be shown
        if is_meant:
            self._followed[run.id] = _Follower(run)
        else:
            self._others.add(run.id)

    @staticmethod
    def _look_at(follower: _Follower, known: LiveRun | None) -> LiveRun:
        try:
            return follower.look()
        except (A2rlError, OSError):
            empty = LiveRun(follower.run.spec, "damaged", 0.0, 0.0, None, (), 0, None, None, None)
            return (known or empty)._replace(phase="damaged")


def belongs_to(names: Collection[str]) -> Callable[[RunDir], bool]:
    """Returns a function that says whether a run has one of these names as its id, suite or launch; all if none."""

    def is_meant(run: RunDir) -> bool:
        return not names or bool({run.id, run.spec.suite, run.spec.launch} & set(names))

    return is_meant


def _order(run: LiveRun) -> int:
    return {"running": 0, "grading": 0, "baseline": 1, "waiting": 2}.get(run.phase, 3)
