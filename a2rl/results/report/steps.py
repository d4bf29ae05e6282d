"""The report's section on the agent's own steps: a transcript that a person can read, from `trajectory.json` (ATIF).

Everything in it was written by the agent or by what it ran. Texts are cut, and of very long runs the middle is left
out, so that the page stays small: the file has all of it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from a2rl.agent_systems.transcripts.atif import Step, Trajectory
from a2rl.core.errors import A2rlError
from a2rl.core.files import read_model
from a2rl.run.budget import BudgetClock, format_duration
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry

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
    half = MAX_STEPS // 2
    kept = steps if len(steps) <= MAX_STEPS else (*steps[:half], *steps[-half:])
    return Steps(tuple(_shown(kept, entries)), len(steps) - len(kept), "")


def _shown(steps: Sequence[Step], entries: Sequence[Entry]) -> Iterator[ShownStep]:
    clock = BudgetClock(entries)
    times = [clock.elapsed_s(step.at) for step in steps]
    arrivals = [each.event for each in entries if isinstance(each.event, SubmissionAccepted)]
    for place, (step, at) in enumerate(zip(steps, times, strict=True)):
        until = next((each for each in times[place + 1 :] if each is not None), float("inf"))
        between = [each.submission_id for each in arrivals if at is not None and at <= each.elapsed_s < until]
        yield ShownStep(
            step.step_id, step.source, "" if at is None else format_duration(at), at, _cut(step.message, MAX_MESSAGE),
            _cut(step.reasoning_content or "", MAX_MESSAGE), tuple(_calls(step)), tuple(between),
        )  # fmt: skip


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
