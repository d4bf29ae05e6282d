"""`a2rl watch`: how far runs have come, in the terminal: clock, scores so far and spend.

`a2rl bench` shows the same below its lines. Each look reads only what is new.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from a2rl.cli.console import out, print_json
from a2rl.cli.options import Json, finite
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.llm.relay.request_log import RequestLogReader, request_log_path
from a2rl.run.budget import format_duration
from a2rl.run.directory import UNREADABLE, RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown, Event, Graded, SubmissionAccepted
from a2rl.run.failure import refusal
from a2rl.run.owner import idle
from a2rl.run.records import ExecuteRecord, GradeRecord
from a2rl.run.spec import RunSpec
from a2rl.validity.record import counted

Phase = Literal["waiting", "baseline", "running", "grading", "interrupted", "done", "failed", "refused", "damaged"]
MAY_GO_ON: frozenset[Phase] = frozenset({"interrupted", "damaged"})
"""What may be another moment's state, such as that of a run which somebody resumes."""
ENDED: frozenset[Phase] = frozenset({"done", "failed", "refused", *MAY_GO_ON})
ORDER: dict[Phase, int] = {"running": 0, "grading": 0, "baseline": 1, "waiting": 2}
"""How runs are sorted; those that have ended are last."""


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
        return LiveRun(
            spec=self.run.spec,
            phase=self._phase(graded),
            elapsed_s=self.run.clock.used_s(),
            allowed_s=self.run.clock.allowed_s() if self.run.clock.path.exists() else self.run.spec.budget_s,
            baseline=self._baseline,
            scores=tuple(self._grades[each] for each in self._submitted if each in self._grades),
            submissions=len(self._submitted),
            tokens=seen.tokens or None,
            cost_usd=executed.cost_usd if executed else seen.cost_usd if seen.tokens else None,
            gain=counted(self.run, graded).gain if graded else None,
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
        if (phase := idle(self.run)) is not None:
            return phase
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

        A run that has ended is not read again. One that cannot be read is shown as damaged, until it can be, and one on
        which nobody works as interrupted, until somebody resumes it. One whose folder was removed is not shown.
        """
        found = list(RunDir.all(self._runs))
        for name in self._followed.keys() - {run.id for run in found}:
            del self._followed[name]
            self._last.pop(name, None)
        for run in found:
            if run.id not in self._followed and run.id not in self._others:
                self._meet(run)
        for name, follower in self._followed.items():
            known = self._last.get(name)
            if known is None or known.phase in MAY_GO_ON or not known.has_ended:
                self._last[name] = self._look_at(follower, known)
        return sorted(self._last.values(), key=lambda each: (ORDER.get(each.phase, len(ORDER)), each.spec.run_id))

    def _meet(self, run: RunDir) -> None:
        with suppress(*UNREADABLE):  # a run whose settings cannot be read has nothing that could be shown
            if self._of(run) and run.spec:
                run.check_plain()
                self._followed[run.id] = _Follower(run)
                return
        self._others.add(run.id)

    @staticmethod
    def _look_at(follower: _Follower, known: LiveRun | None) -> LiveRun:
        try:
            return follower.look()
        except UNREADABLE:
            empty = LiveRun(follower.run.spec, "damaged", 0.0, 0.0, None, (), 0, None, None, None)
            return (known or empty)._replace(phase="damaged")


EVERY_S = 1.0
BLOCKS = "▁▂▃▄▅▆▇█"
MOST_BLOCKS = 16
"""The last scores of a run that are drawn."""
OTHER_LINES = 8
"""Lines of the terminal that are left free for what else is printed."""
COLOURS = {"running": "green", "interrupted": "yellow", "failed": "red", "refused": "red", "damaged": "red"}


def watch(
    names: Annotated[
        list[str] | None, typer.Argument(help="Suites, launches or run ids. Default: every run that has not ended.")
    ] = None,
    *,
    every: Annotated[float, typer.Option(min=0.2, callback=finite, help="Seconds between two looks.")] = EVERY_S,
    as_json: Json = False,
) -> None:
    """Show how far runs have come: clocks, best scores so far, spend. It ends when nobody works on them any more.

    Without a terminal, or with --json, it shows the present state once.

    Example: `a2rl watch smoke`
    """

    def is_meant(run: RunDir) -> bool:
        return run.goes_by(names) if names else not run.record_path("grade").exists()

    watcher = Watcher(Settings.load().runs, is_meant)
    found = watcher.look()
    if not found:
        raise UsageError(
            f"no runs of {', '.join(names)}: `a2rl runs` lists what there is" if names else "no run is at work now"
        )
    if as_json:
        print_json([_object(each) for each in found])
    elif not out.is_terminal:
        out.print(live_table(found))
    else:
        _follow(watcher.look, out, every)


def _follow(look: Callable[[], list[LiveRun]], console: Console, every: float) -> None:
    found = look()
    with Live(live_table(found, console.height), console=console, auto_refresh=False) as live:
        while not all(each.has_ended for each in found):
            time.sleep(every)
            found = look()
            live.update(live_table(found, console.height), refresh=True)


def table_below(look: Callable[[], list[LiveRun]], console: Console) -> AbstractContextManager[object]:
    """Shows runs at the bottom of a terminal while other lines are printed above; does nothing without a terminal.

    Args:
        look: Returns the runs.
    """

    def table() -> RenderableType:
        with suppress(Exception):  # what is only shown must neither keep runs from starting nor replace how they end
            return live_table(look(), console.height)
        return ""

    if not console.is_terminal:
        return nullcontext()
    return Live(get_renderable=table, console=console, transient=True, refresh_per_second=1 / EVERY_S)


def live_table(runs: Sequence[LiveRun], height: int | None = None) -> RenderableType:
    """Returns the table of runs. If the terminal has this height, those at the end are only counted."""
    most = len(runs) if height is None else max(1, height - OTHER_LINES)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    titles = ("run", "state", "clock", "base", "best", "scores", "subm.", "tokens", "spend", "gain")
    rows = [_cells(run) for run in runs[:most]]
    shown = [place for place, _ in enumerate(titles) if place < 3 or any(row[place] not in ("-", "") for row in rows)]
    for title in (titles[place] for place in shown):
        is_number = title in {"base", "best", "subm.", "tokens", "spend", "gain"}
        table.add_column(title, justify="right" if is_number else "left", no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    left = len(runs) - most
    ended = sum(each.has_ended for each in runs)
    summary = f"{ended} of {len(runs)} runs have ended" + (f"; {left} more are not shown" if left > 0 else "")
    return Group(table, Text(summary, style="dim"))


def _cells(run: LiveRun) -> tuple[Text | str, ...]:
    clock = f"{format_duration(run.elapsed_s)} of {format_duration(run.allowed_s)}"
    return (
        run.spec.run_id,  # a plain string: the console measures it after it became printable
        Text(run.phase, style=COLOURS.get(run.phase, "")),
        clock if run.elapsed_s else "-",
        _number(run.baseline, ".1f"),
        _number(run.best, ".1f"),
        sparkline(run.scores, run.baseline),
        str(run.submissions),
        "-" if run.tokens is None else f"{run.tokens:,}",
        "-" if run.cost_usd is None else f"${run.cost_usd:.2f}",
        _number(run.gain, "+.1f"),
    )


def sparkline(scores: Sequence[float], baseline: float | None) -> str:
    """Returns the scores as small bars, from the lowest score (or the base model's) to the highest one."""
    shown = scores[-MOST_BLOCKS:]
    if not shown:
        return ""
    low, high = min(*shown, baseline if baseline is not None else shown[0]), max(shown)
    steps = len(BLOCKS) - 1
    return "".join(BLOCKS[round(steps * (each - low) / (high - low)) if high > low else 0] for each in shown)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _object(run: LiveRun) -> dict[str, Any]:
    facts = {name: value for name, value in run._asdict().items() if name != "spec"}
    named = {name: getattr(run.spec, name) for name in ("run_id", "suite", "launch", "task", "agent", "budget_s")}
    return {**named, **facts, "best": run.best}
