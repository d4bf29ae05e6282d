"""What the agent did, for a run's page: its steps, its activities over time, and the changes of its code.

The steps are a transcript that a person can read, from `trajectory.json` (ATIF). Everything in it was written by the
agent or by what it ran. Texts are cut, and of very long runs the middle is left out, so that the page stays small: the
file has all of it.

The time line of activities is from notes of training, requests, steps and processor time. Every moment has one
activity: the first of `ACTIVITIES` for which there is evidence. What no record explains is `unknown`; nothing is
guessed from names.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

from a2rl.agent_systems.transcripts.atif import Step, Trajectory
from a2rl.core.errors import A2rlError
from a2rl.core.files import read_jsonl, read_model
from a2rl.labels.records import labels_of
from a2rl.llm.relay.request_log import RequestLogReader, request_log_path
from a2rl.recording.code_reading import CodeDiff, code_diff
from a2rl.run.budget import BudgetClock, Waits, format_duration
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry, events_of

MAX_FILE_BYTES = 64 << 20
"""A larger file is not read for the page."""
MAX_STEPS = 600
"""Steps on the page: the first and the last ones."""
MAX_MESSAGE = 4_000
"""Characters of what the agent said in a step."""
MAX_OUTPUT = 2_000
"""Characters of a tool's input or output: its beginning and its end."""
MAX_CALLS = 100
"""Tool calls of a step."""
MAX_TITLE = 110
MAX_ALL_CHARS = 4_000_000
"""Characters of all steps. Later ones have only how what was said begins: an agent can make thousands of calls."""
CALL_CHARS = 300
"""Counted for each call besides its texts, for the markup around them."""
TELLING = ("command", "cmd", "file_path", "path", "query", "pattern", "url", "code")
"""Arguments of tools that say best what a call does."""


class Call(NamedTuple):
    """A tool call with its result, folded on the page."""

    title: str
    arguments: str
    output: str


class ShownStep(NamedTuple):
    """A step of the agent."""

    number: int
    source: str
    after: str
    """The time on the budget clock; empty if the transcript does not say it."""
    elapsed_s: float | None
    message: str
    reasoning: str
    calls: tuple[Call, ...]
    submissions: tuple[int, ...]
    """The submissions that arrived between this step and the next."""


class Steps(NamedTuple):
    """The transcript."""

    shown: tuple[ShownStep, ...]
    left_out: int
    """The number of steps between the first and the second half of those that are shown."""
    note: str
    """Why there is no transcript, or what is wrong with it; empty if nothing."""
    unseen: tuple[int, ...] = ()
    """The submissions that arrived during the steps that are left out."""
    coding: tuple[tuple[float, float], ...] = ()
    """Begin and end of the times between a step with calls of tools, shown or not, and the next one."""

    @property
    def marks(self) -> list[ShownStep]:
        """The steps whose time is known."""
        return [step for step in self.shown if step.elapsed_s is not None]


def read_steps(run: RunDir, entries: Sequence[Entry]) -> Steps | None:
    """Returns the agent's steps; None for agents that leave no transcript."""
    try:
        if run.trajectory.stat().st_size > MAX_FILE_BYTES:
            return Steps((), 0, f"trajectory.json is larger than {MAX_FILE_BYTES >> 20} MiB, so it is not shown here.")
        steps = read_model(run.trajectory, Trajectory).steps
    except FileNotFoundError:
        return None
    except (A2rlError, OSError, MemoryError) as error:
        return Steps((), 0, f"The transcript cannot be read: {str(error)[:300] or type(error).__name__}")
    clock = BudgetClock(entries)
    times = [clock.elapsed_s(step.at) for step in steps]
    arrived = _arrived(times, entries)
    first = MAX_STEPS // 2 if len(steps) > MAX_STEPS else len(steps)
    last = max(first, len(steps) - MAX_STEPS // 2)
    places = (*range(first), *range(last, len(steps)))
    shown = _shortened(_shown(steps[place], times[place], arrived[place]) for place in places)
    unseen = dict.fromkeys(number for numbers in arrived[first:last] for number in numbers)
    return Steps(tuple(shown), last - first, "", tuple(unseen), tuple(_coding(steps, times)))


def _arrived(times: Sequence[float | None], entries: Sequence[Entry]) -> list[tuple[int, ...]]:
    """Returns, for each step, the submissions that arrived between it and the next whose time is known."""
    events = events_of(entries, SubmissionAccepted)
    arrivals = sorted((event.elapsed_s, event.submission_id) for event in events)
    found: list[tuple[int, ...]] = []
    until = float("inf")
    for at in reversed(times):
        begin, end = (bisect_left(arrivals, (each,)) for each in (until if at is None else at, until))
        found.append(tuple(number for _, number in arrivals[begin:end]))
        until = until if at is None else at
    return found[::-1]


def _coding(steps: Sequence[Step], times: Sequence[float | None]) -> Iterator[tuple[float, float]]:
    known = [(at, step) for at, step in zip(times, steps, strict=True) if at is not None]
    for (at, step), (after, _) in pairwise(known):
        if step.tool_calls or (step.observation and step.observation.results):
            yield at, after


def _shown(step: Step, at: float | None, arrived: tuple[int, ...]) -> ShownStep:
    return ShownStep(
        step.step_id, step.source, "" if at is None else format_duration(at), at, _cut(step.message, MAX_MESSAGE),
        _cut(step.reasoning_content or "", MAX_MESSAGE), tuple(_calls(step)), arrived,
    )  # fmt: skip


def _shortened(steps: Iterable[ShownStep]) -> Iterator[ShownStep]:
    """Yields the steps, without their calls once there are too many characters."""
    left = MAX_ALL_CHARS
    for step in steps:
        left -= len(step.message) + len(step.reasoning) + sum(CALL_CHARS + sum(map(len, call)) for call in step.calls)
        if left >= 0:
            yield step
        else:
            said = f"{_cut_end(step.message, MAX_TITLE)} [the rest is in trajectory.json]"
            yield step._replace(message=said, reasoning="", calls=())


def _calls(step: Step) -> Iterator[Call]:
    results = step.observation.results if step.observation else ()
    outputs: dict[str | None, list[str]] = {}
    for result in results:
        outputs.setdefault(result.source_call_id, []).append(result.content or "")
    for call in (step.tool_calls or ())[:MAX_CALLS]:
        given = {name: value if isinstance(value, str) else repr(value) for name, value in call.arguments.items()}
        telling = next((given[name] for name in TELLING if name in given), next(iter(given.values()), ""))
        title = f"{call.function_name}: {' '.join(telling.split())}"
        arguments = "\n".join(f"{name}: {value}" for name, value in given.items())
        output = "\n".join(outputs.pop(call.tool_call_id, []))
        yield Call(_cut_end(title, MAX_TITLE), _cut(arguments, MAX_OUTPUT), _cut(output, MAX_OUTPUT))
    for other in list(outputs.values())[:MAX_CALLS]:  # what came without a call, such as notes of the agent system
        yield Call("output", "", _cut("\n".join(other), MAX_OUTPUT))


def _cut_end(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most].rstrip()} ..."


def _cut(text: str, most: int) -> str:
    """Returns the beginning and the end of a text that is too long."""
    text = text.strip()
    if len(text) <= most:
        return text
    first, last = most * 2 // 3, most // 3
    return f"{text[:first]}\n[... {len(text) - first - last:,} characters ...]\n{text[-last:]}"


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
    end_s = run.clock.used_s()
    if end_s <= 0:
        return None
    waiting = [Span("waiting", *each) for each in Waits().follow(entries)]
    coding = [Span("coding", *each) for each in (steps.coding if steps else ())]
    length = end_s / MOMENTS
    moments = [(place + 0.5) * length for place in range(MOMENTS)]
    # How many more spans of an activity go on than at the moment before: there may be very many of them.
    changes = {name: [0] * (MOMENTS + 1) for name in ACTIVITIES}
    for each in (*_training(run), *_requests(run, entries), *coding, *waiting, *_idle(run)):
        if each.start_s < each.end_s:
            changes[each.activity][bisect_left(moments, each.start_s)] += 1
            changes[each.activity][bisect_left(moments, each.end_s)] -= 1
    going_on = {name: list(accumulate(numbers)) for name, numbers in changes.items()}
    found: list[Span] = []
    for place in range(MOMENTS):
        activity = next((name for name, numbers in going_on.items() if numbers[place]), "unknown")
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
            yield Span(each.activity, each.start_s, float("inf") if each.end_s is None else each.end_s)


def _requests(run: RunDir, entries: Sequence[Entry]) -> Iterator[Span]:
    """Yields the times of the requests to the LLM, which are logged when they end."""
    clock = BudgetClock(entries)
    for request in RequestLogReader(request_log_path(run)).requests():
        if not request.refused and (end_s := clock.elapsed_s(request.t)) is not None:
            yield Span("thinking", max(0.0, end_s - request.seconds), end_s)


def _idle(run: RunDir) -> Iterator[Span]:
    """Yields the times in which the agent's processes used no processor time worth speaking of."""
    points, rows = [], list[dict[str, Any]]()
    with suppress(OSError, ValueError, A2rlError):
        rows = read_jsonl(run.logs / "telemetry.jsonl")
    for row in rows:
        with suppress(KeyError, TypeError, ValueError):
            points.append((float(row["elapsed_s"]), float(row["cpu_s"])))
    for (start_s, before), (end_s, after) in pairwise(points):
        if end_s > start_s and 0 <= after - before < IDLE * (end_s - start_s):
            yield Span("idle", start_s, end_s)


MAX_LINES = 400
"""Lines of one submission's diff on the page."""
MAX_ALL_LINES = 4_000
"""Lines of all diffs on the page. Later submissions only have their counts."""
MAX_READ_LINES = 40_000
"""Lines of all diffs that are read. Later submissions are not compared: an agent can make that take minutes."""
NOT_COMPARED = "not compared, because the differences before it are so long"
MAX_CHARS = 300
"""Characters of a line."""
Kind = Literal["file", "place", "added", "removed", "same"]
IN_HEADER = ("index ", "--- ", "+++ ", "new file", "deleted file", "old mode", "new mode", "Binary files")


class Line(NamedTuple):
    """A line of a diff."""

    kind: Kind
    text: str


class Change(NamedTuple):
    """What changed in the code since the submission before."""

    number: int
    """The submission."""
    revision: str
    added: int
    removed: int
    files: int
    lines: tuple[Line, ...]
    note: str
    """What is not shown; empty if all is."""


def code_changes(code: Path, entries: Sequence[Entry]) -> list[Change]:
    """Returns what changed before each submission whose code was recorded and is not that of the one before."""
    found: list[Change] = []
    before, left, read = None, MAX_ALL_LINES, 0
    for event in (entry.event for entry in entries):
        if not isinstance(event, SubmissionAccepted) or not event.code_revision or event.code_revision == before:
            continue
        if read > MAX_READ_LINES:
            found.append(Change(event.submission_id, event.code_revision[:8], 0, 0, 0, (), NOT_COMPARED))
        elif (diff := code_diff(code, before, event.code_revision)) is not None and diff.lines:
            read += len(diff.lines)
            found.append(_change(event.submission_id, event.code_revision, diff, min(MAX_LINES, left)))
            left -= len(found[-1].lines)
        before = event.code_revision
    return found


def _change(number: int, revision: str, diff: CodeDiff, most: int) -> Change:
    lines = list(_lines(diff.lines))
    kinds = [line.kind for line in lines]
    hidden = len(lines) - most
    note = "" if diff.is_whole else "the difference is too large to be counted as a whole"
    if hidden > 0:
        note = "; ".join(filter(None, (f"{hidden:,} more lines are in code/", note)))
    return Change(
        number, revision[:8], kinds.count("added"), kinds.count("removed"), kinds.count("file"),
        tuple(lines[: max(0, most)]), note,
    )  # fmt: skip


def _lines(lines: Sequence[str]) -> Iterator[Line]:
    """Yields the lines with their kinds. Only the header of a file is told from its contents by what it begins with."""
    in_header = False
    for line in lines:
        text = line[:MAX_CHARS]
        if line.startswith("diff --git "):
            in_header = True
            yield Line("file", text.removeprefix("diff --git "))
        elif line.startswith("@@ "):
            in_header = False
            yield Line("place", text)
        elif in_header:
            if not line.startswith(IN_HEADER[:3]):
                yield Line("place", text)
        else:
            yield Line("added" if line[:1] == "+" else "removed" if line[:1] == "-" else "same", text)
