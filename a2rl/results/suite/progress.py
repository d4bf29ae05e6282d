"""The best score so far over charged time, over submissions and over charged tokens."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from a2rl.results.suite.drawing import THEME, Figure, Row, Style, finish, panels
from a2rl.results.suite.leaderboard import Board, Cell
from a2rl.results.suite.run_summary import RunSummary, Try

if TYPE_CHECKING:
    from matplotlib.axes import Axes

THIN_LINES = 12
"""The lines of single runs are drawn up to this number of runs of a stack."""
BEYOND = 1.05
"""An axis goes so much beyond the last submission, so that its step can be seen."""
GRID = 60
"""Points at which the median over runs is computed."""
Place = Callable[[RunSummary, Try], float | None]


class Scale(NamedTuple):
    """What the best score is drawn over."""

    name: str
    label: str
    place: Place
    """Returns where a submission stands; None if that is unknown."""
    note: str = ""
    end: float | None = None
    """The end of the axis; None: that of the last submission."""


def _over_time(run: RunSummary, each: Try) -> float:
    return min(100.0, 100 * each.elapsed_s / float(run.settings["budget_s"]))


def _over_submissions(run: RunSummary, each: Try) -> float:
    return float(each.number)


def _over_tokens(run: RunSummary, each: Try) -> float | None:
    return None if each.tokens is None else each.tokens / 1e6


SCALES = (
    Scale("time", "charged time, share of the budget", _over_time, end=100.0),
    Scale("submissions", "submissions", _over_submissions),
    Scale(
        "tokens", "charged tokens, millions", _over_tokens,
        " Tokens are those of the agent's requests that the relay measured; runs without them are left out.",
    ),
)  # fmt: skip


def draw_progress(board: Board, style: Style) -> Iterator[Figure]:
    """Draws the best score over each scale on which any submission has a place."""
    for scale in SCALES:
        if any(scale.place(run, each) is not None for cell in board.cells for run in cell.runs for each in run.tries):
            yield _draw(board, style, scale)


def _draw(board: Board, style: Style, scale: Scale) -> Figure:
    from matplotlib.ticker import MaxNLocator

    drawing, axes = panels(board, style, scale.label, "best public score so far")
    rows: list[Row] = []
    for task, axis in axes.items():
        cells = [(cell, _with_places(cell, scale)) for cell in board.cells if cell.task == task]
        ends = [scale.place(run, each) or 0.0 for _, runs in cells for run in runs for each in run.tries]
        end = scale.end or BEYOND * (max(ends, default=1.0) or 1.0)
        for cell, runs in cells:
            rows += _draw_cell(axis, cell, runs, style[cell.stack], scale.place, end) if runs else []
        baselines = [run.public_baseline for cell, _ in cells for run in cell.runs if run.public_baseline is not None]
        if baselines:
            axis.axhline(baselines[0], color=THEME["soft"], linewidth=1, linestyle=(0, (2, 2)))
        axis.set(title=task, ylim=(0, 100), xlim=(0, end))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=scale.name != "tokens"))
    caption = (
        "The best score that each agent had been told, by task. Thick: the median over runs; the band holds the middle "
        f"half of the runs; thin: single runs; dotted: the base model.{scale.note}"
    )
    return finish(drawing, f"best-over-{scale.name}", f"Best score over {scale.name}", caption, rows)


def _with_places(cell: Cell, scale: Scale) -> list[RunSummary]:
    """Returns the runs all of whose submissions have a place; a run without submissions stays at the base model."""
    return [run for run in cell.runs if all(scale.place(run, each) is not None for each in run.tries)]


def _draw_cell(
    axis: "Axes", cell: Cell, runs: Sequence[RunSummary], look: dict[str, Any], place: Place, end: float
) -> list[Row]:
    import numpy as np

    grid = np.linspace(0, end, GRID)
    curves = np.array([_best_so_far(run, place, grid.tolist()) for run in runs])
    low, middle, high = np.percentile(curves, [25, 50, 75], axis=0)
    if 1 < len(runs) <= THIN_LINES:
        for curve in curves:
            axis.step(grid, curve, where="post", linewidth=0.6, alpha=0.5, color=look["color"])
    if len(runs) > 1:
        axis.fill_between(grid, low, high, step="post", alpha=0.14, color=look["color"], linewidth=0)
    axis.step(grid, middle, where="post", linewidth=2, **look)
    return [
        {"task": cell.task, "stack": cell.stack, "at": round(float(at), 3), "median": m, "lower": a, "upper": b}
        for at, a, m, b in zip(grid, low.tolist(), middle.tolist(), high.tolist(), strict=True)
    ]


def _best_so_far(run: RunSummary, place: Place, grid: Sequence[float]) -> list[float]:
    """Returns the best score up to each place; before the first submission, the base model's."""
    ordered = sorted((place(run, each) or 0.0, each.score) for each in run.tries)
    best = list(accumulate((score for _, score in ordered), max, initial=run.public_baseline or 0.0))
    places = [at for at, _ in ordered]
    return [best[bisect_right(places, at)] for at in grid]
