"""What the agent did when: a time line of activities, from the recorded processes, requests, steps and processor time.

Every moment has one activity: the first of `ACTIVITIES` for which there is evidence. What no record explains is
`unknown`; nothing is guessed from names.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from a2rl.core.errors import A2rlError
from a2rl.core.files import read_jsonl
from a2rl.labels.records import labels_of
from a2rl.llm.relay.request_log import RequestLogReader, request_log_path
from a2rl.results.report.steps import Steps
from a2rl.run.budget import BudgetClock
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, GradingFailed, SubmissionAccepted
from a2rl.run.ledger import Entry

ACTIVITIES = ("SFT", "RL", "rollout", "thinking", "coding", "waiting", "idle", "unknown")
"""The earlier one counts where several are going on. Waiting is for a grade; coding is what happens between a step of
the agent with calls of tools and the next one."""
MOMENTS = 400
"""The time line is divided into so many moments."""
IDLE = 0.02
"""An agent is idle if its processes use less than this share of one core."""


class Span(NamedTuple):
    """An activity and its time, in seconds of the budget clock."""

    activity: str
    start_s: float
    end_s: float


class TimeLine(NamedTuple):
    """The activities of a run."""

    spans: tuple[Span, ...]
    """In order, without gaps or overlaps."""
    shares: tuple[tuple[str, float], ...]
    """Each activity that occurs, with its share of the time, 0 to 1."""


def time_line(run: RunDir, entries: Sequence[Entry], steps: Steps | None) -> TimeLine | None:
    """Returns the activities of a run; None if it has no time."""
    end_s = run.clock.elapsed_s()
    if end_s <= 0:
        return None
    evidence = [*_training(run), *_requests(run, entries), *_tools(steps), *_waiting(entries), *_idle(run)]
    evidence.sort(key=lambda span: ACTIVITIES.index(span.activity))
    length = end_s / MOMENTS
    found: list[Span] = []
    for place in range(MOMENTS):
        at = (place + 0.5) * length
        activity = next((each.activity for each in evidence if each.start_s <= at < each.end_s), "unknown")
        if found and found[-1].activity == activity:
            found[-1] = found[-1]._replace(end_s=(place + 1) * length)
        else:
            found.append(Span(activity, place * length, (place + 1) * length))
    sums = {name: sum(each.end_s - each.start_s for each in found if each.activity == name) for name in ACTIVITIES}
    return TimeLine(tuple(found), tuple((name, total / end_s) for name, total in sums.items() if total))


def _training(run: RunDir) -> Iterator[Span]:
    """Yields the times of the programs that train or sample, which the labels have."""
    with suppress(A2rlError):
        known = labels_of(run)
        for each in known.programs if known else ():
            if each.activity in ACTIVITIES:
                yield Span(each.activity, each.start_s, float("inf") if each.end_s is None else each.end_s)


def _requests(run: RunDir, entries: Sequence[Entry]) -> Iterator[Span]:
    """Yields the times of the requests to the LLM, which are logged when they end."""
    clock = BudgetClock(entries)
    for request in RequestLogReader(request_log_path(run)).requests():
        if not request.refused and (end_s := clock.elapsed_s(request.t)) is not None:
            yield Span("thinking", max(0.0, end_s - request.seconds), end_s)


def _tools(steps: Steps | None) -> Iterator[Span]:
    """Yields the times between a step with calls of tools and the next step."""
    for step, after in pairwise(steps.marks if steps else ()):
        if step.calls and step.elapsed_s is not None and after.elapsed_s is not None:
            yield Span("coding", step.elapsed_s, after.elapsed_s)


def _waiting(entries: Sequence[Entry]) -> Iterator[Span]:
    """Yields the times from the submission of a checkpoint to its grade, or to the failure of grading."""
    since: dict[str, float] = {}
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionAccepted):
            since.setdefault(event.weights_digest, event.elapsed_s)
        elif isinstance(event, Graded | GradingFailed) and event.weights_digest in since:
            yield Span("waiting", since.pop(event.weights_digest), event.elapsed_s)


def _idle(run: RunDir) -> Iterator[Span]:
    """Yields the times in which the agent's processes used no processor time worth speaking of."""
    points = []
    for row in _rows(run, "telemetry.jsonl"):
        with suppress(KeyError, TypeError, ValueError):
            points.append((float(row["elapsed_s"]), float(row["cpu_s"])))
    for (start_s, before), (end_s, after) in pairwise(points):
        if end_s > start_s and 0 <= after - before < IDLE * (end_s - start_s):
            yield Span("idle", start_s, end_s)


def _rows(run: RunDir, name: str) -> list[dict[str, Any]]:
    try:
        return read_jsonl(run.logs / name)
    except (OSError, ValueError, A2rlError, json.JSONDecodeError):
        return []
