"""The metrics of a run's course, under the names of the reference (bench/core/metrics.py:96-107, where `bench` is as in
docs/paper-preset.md), but from the ledger instead of files that the agent can write.

Times are seconds of the budget clock; a submission's is that at which its score was known. For a failure the reference
has a score of 0. Here it has no score and is not valid, and a real 0 is a score.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown, SubmissionAccepted, SubmissionRefused
from a2rl.run.ledger import Entry, grades_among
from a2rl.run.records import ExecuteRecord, SetupRecord


class RunMetrics(BaseModel):
    """What the reference computes of a run. None: there is nothing to compute it from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    valid_submission_rate: float | None = None
    """The share of submissions that have a score. A submission that was refused after it was received has none."""
    first_valid_idx: int | None = None
    """Which submission was the first with a score: 1, 2, ..."""
    first_valid_delay: float | None = None
    time_to_first_improvement: float | None = None
    """Until the first score above the base model's."""
    time_to_best: float | None = None
    """Until the best score; the earliest of equals."""
    monotonic_ratio: float | None = None
    """The share of scores that are better than the one before; None with fewer than two."""
    copy_model_count: int | None = None
    """How many submissions have the weights of the base model."""
    time_used_ratio: float | None = None
    """The share of the budget that the agent used, without the time that was refunded."""
    last_submit_gap: float | None = None
    """From the last submission to the end of the agent; 0 if its grade came later."""


class _Tried(NamedTuple):
    score: float | None
    known_s: float


def run_metrics(run: RunDir, entries: Sequence[Entry]) -> RunMetrics:
    """Returns the metrics of a run, as far as it has come."""
    tried = list(_tried(entries))
    scored = [(score, known_s) for score, known_s in tried if score is not None]
    base = next((each.event.public.score for each in entries if isinstance(each.event, BaselineKnown)), None)
    better = [known_s for score, known_s in scored if base is not None and score > base]
    first = next((place for place, each in enumerate(tried) if each.score is not None), None)
    rises = [after > before for (before, _), (after, _) in pairwise(scored)]
    executed = run.read("execute", ExecuteRecord)
    turns = [each.event for each in entries if isinstance(each.event, AgentStarted | AgentEnded)]
    end_s = turns[-1].elapsed_s if turns and isinstance(turns[-1], AgentEnded) else None
    return RunMetrics(
        valid_submission_rate=_share([each.score is not None for each in tried]),
        first_valid_idx=None if first is None else first + 1,
        first_valid_delay=None if first is None else tried[first].known_s,
        time_to_first_improvement=better[0] if better else None,
        time_to_best=max(scored, key=lambda each: each[0])[1] if scored else None,
        monotonic_ratio=_share(rises),
        copy_model_count=_copies(run, entries),
        time_used_ratio=(executed.elapsed_s - executed.refunded_s) / run.spec.budget_s if executed else None,
        last_submit_gap=max(0.0, end_s - tried[-1].known_s) if tried and end_s is not None else None,
    )


def _tried(entries: Sequence[Entry]) -> Iterator[_Tried]:
    """Yields what came of each submission that was received, in order; those that still wait are left out."""
    grades = grades_among(entries)
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused) and event.receipt is not None:
            yield _Tried(None, event.elapsed_s)
        elif isinstance(event, SubmissionAccepted) and (grade := grades.get(event.weights_digest)) is not None:
            yield _Tried(grade.result.score, max(event.elapsed_s, grade.elapsed_s))


def _share(facts: Sequence[bool]) -> float | None:
    return sum(facts) / len(facts) if facts else None


def _copies(run: RunDir, entries: Sequence[Entry]) -> int | None:
    ready = run.read("setup", SetupRecord)
    if ready is None:
        return None
    accepted = [entry.event for entry in entries if isinstance(entry.event, SubmissionAccepted)]
    return sum(ready.is_base_model(each.weights_digest) for each in accepted)
