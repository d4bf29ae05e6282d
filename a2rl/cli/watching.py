"""`a2rl watch`: how far runs have come, in the terminal; also what `a2rl bench` shows below its lines."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from a2rl.cli.console import out, print_json
from a2rl.cli.options import Json
from a2rl.core.errors import UsageError
from a2rl.core.event_log import PeriodicThread
from a2rl.core.settings import Settings
from a2rl.run.budget import format_duration

if TYPE_CHECKING:
    from a2rl.results.live import LiveRun

EVERY_S = 1.0
BLOCKS = "▁▂▃▄▅▆▇█"
MOST_BLOCKS = 16
"""The last scores of a run that are drawn."""
OTHER_LINES = 8
"""Lines of the terminal that are left free for what else is printed."""
COLOURS = {"running": "green", "failed": "red", "refused": "red", "damaged": "red"}


def watch(
    names: Annotated[
        list[str] | None, typer.Argument(help="Suites, launches or run ids. Default: every run that has not ended.")
    ] = None,
    *,
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = EVERY_S,
    as_json: Json = False,
) -> None:
    """Show how far runs have come: clocks, best scores so far, spend. It ends when all of them have ended.

    Without a terminal, or with --json, it shows the present state once.

    Example: `a2rl watch smoke`
    """
    from a2rl.results.live import Watcher, belongs_to

    is_meant = belongs_to(names or ())
    watcher = Watcher(Settings.load().runs, lambda run: is_meant(run) and (bool(names) or not _has_result(run)))
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


def _has_result(run: Any) -> bool:
    return bool(run.record_path("grade").exists())


def _follow(look: "Callable[[], list[LiveRun]]", console: Console, every: float) -> None:
    found = look()
    with Live(live_table(found, console.height), console=console, auto_refresh=False) as live:
        while not all(each.has_ended for each in found):
            time.sleep(every)
            found = look()
            live.update(live_table(found, console.height), refresh=True)


class LiveTable:
    """Shows runs at the bottom of a terminal while other lines are printed above; does nothing without a terminal.

    Args:
        look: Returns the runs.
        console: The console that also prints the other lines.
    """

    def __init__(self, look: "Callable[[], list[LiveRun]]", console: Console) -> None:
        self._look, self._console = look, console
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._thread = PeriodicThread("showing the runs", self._show, lambda: EVERY_S)

    def __enter__(self) -> "LiveTable":
        if self._console.is_terminal:
            self._live.start()
            self._thread.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._thread.__exit__(kind, error, trace)
            self._live.stop()

    def _show(self) -> None:
        self._live.update(live_table(self._look(), self._console.height), refresh=True)


def live_table(runs: "Sequence[LiveRun]", height: int | None = None) -> RenderableType:
    """Returns the table of runs. If the terminal has this height, those at the end are only counted."""
    most = len(runs) if height is None else max(1, height - OTHER_LINES)
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("run", "state", "clock", "base", "best", "scores", "subm.", "tokens", "spend", "gain"):
        is_number = title in {"base", "best", "subm.", "tokens", "spend", "gain"}
        table.add_column(title, justify="right" if is_number else "left", no_wrap=title != "run", overflow="fold")
    for run in runs[:most]:
        table.add_row(*_cells(run))
    left = len(runs) - most
    ended = sum(each.has_ended for each in runs)
    summary = f"{ended} of {len(runs)} runs have ended" + (f"; {left} more are not shown" if left > 0 else "")
    return Group(table, Text(summary, style="dim"))


def _cells(run: "LiveRun") -> tuple[Text | str, ...]:
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


def _object(run: "LiveRun") -> dict[str, Any]:
    facts = {name: value for name, value in run._asdict().items() if name != "spec"}
    named = {name: getattr(run.spec, name) for name in ("run_id", "suite", "launch", "task", "agent", "budget_s")}
    return {**named, **facts, "best": run.best}
