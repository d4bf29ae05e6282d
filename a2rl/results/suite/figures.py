"""The figures of the report over many runs, drawn with matplotlib: SVG for the page, SVG and PDF as files."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from a2rl.results.suite.drawing import (
    THEME,
    Bar,
    Figure,
    Style,
    draw_bars,
    finish,
    margins,
    new,
    panels,
    styles,
    width_of,
)
from a2rl.results.suite.leaderboard import MARK, Board, Cell
from a2rl.results.suite.run_summary import RunSummary

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes

    Points = npt.NDArray[np.float64]


THIN_LINES = 12
"""The lines of single runs are drawn up to this number of runs of a stack."""
GRID = 60
"""Points at which the median over runs is computed."""


def draw_figures(board: Board) -> Iterator[Figure]:
    """Draws the best score over time, and the gains with their intervals and as stacks by tasks."""
    style = styles(board)
    if any(run.tries for cell in board.cells for run in cell.runs):
        yield _progress(board, style)
    if board.cells:
        yield _forest(board, style)
    if len(board.standings) > 1 and len(board.tasks) > 1:
        yield _heatmap(board)


def _progress(board: Board, style: Style) -> Figure:
    """Draws the best score of each stack over time."""
    from matplotlib.ticker import MaxNLocator

    drawing, axes = panels(board, style, "charged time, share of the budget", "best public score so far")
    for task, axis in axes.items():
        cells = [cell for cell in board.cells if cell.task == task]
        for cell in cells:
            _draw_cell(axis, cell, style[cell.stack])
        baselines = [run.public_baseline for cell in cells for run in cell.runs if run.public_baseline is not None]
        if baselines:
            axis.axhline(baselines[0], color=THEME["soft"], linewidth=1, linestyle=(0, (2, 2)))
        axis.set(title=task, ylim=(0, 100), xlim=(0, 100))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    caption = (
        "The best score that each agent had been told, by task. Thick: the median over runs; the band holds the middle "
        "half of the runs; thin: single runs; dotted: the base model."
    )
    return finish(drawing, "best-over-time", "Best score over time", caption)


def _draw_cell(axis: "Axes", cell: Cell, look: dict[str, Any]) -> None:
    import numpy as np

    grid = np.linspace(0, 100, GRID)
    curves = np.array([_best_so_far(run, grid) for run in cell.runs])
    low, middle, high = np.percentile(curves, [25, 50, 75], axis=0)
    if 1 < len(curves) <= THIN_LINES:
        for curve in curves:
            axis.step(grid, curve, where="post", linewidth=0.6, alpha=0.5, color=look["color"])
    if len(curves) > 1:
        axis.fill_between(grid, low, high, step="post", alpha=0.14, color=look["color"], linewidth=0)
    axis.step(grid, middle, where="post", linewidth=2, **look)


def _best_so_far(run: RunSummary, grid: "Points") -> "Points":
    """Returns the best score up to each share of the budget; before the first submission, the base model's."""
    import numpy as np

    places = [min(100.0, 100 * each.elapsed_s / float(run.settings["budget_s"])) for each in run.tries]
    ordered = sorted(zip(places, (each.score for each in run.tries), strict=True))
    best = np.maximum.accumulate([run.public_baseline or 0.0, *(score for _, score in ordered)])
    return best[np.searchsorted([at for at, _ in ordered], grid, side="right")]


def _forest(board: Board, style: Style) -> Figure:
    """Draws every mean gain with its interval, by task."""
    bars = [
        Bar(task, cell.stack, f"{cell.stack} ({len(cell.runs)})", cell.gain, *cell.ci)
        for task in board.tasks
        for cell in board.cells
        if cell.task == task
    ]
    caption = "Mean gain with its 95% interval over runs and items; in brackets, the number of runs."
    return finish(draw_bars(bars, style, "gain over the base model, points"), "gains", "Gains", caption)


def _heatmap(board: Board) -> Figure:
    """Draws the mean gain of each stack on each task."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    stacks = [each.stack for each in board.standings]
    values = np.full((len(stacks), len(board.tasks)), np.nan)
    drawing = new(9.2, 0.42 * len(stacks) + 1.0)
    axis = drawing.subplots()
    margins(drawing, left=min(5.0, width_of(stacks)), right=0.2, bottom=0.4, top=0.15)
    for cell in board.cells:
        place = stacks.index(cell.stack), board.tasks.index(cell.task)
        values[place] = cell.gain
        axis.text(place[1], place[0], f"{cell.gain:+.1f}{cell.mark}", ha="center", va="center", fontsize=10)
    colours = LinearSegmentedColormap.from_list("gain", ["#f9706666", "#98a2b322", "#47cd8966"])
    largest = float(np.nanmax(np.abs(values))) or 1.0
    edges = np.arange(len(board.tasks) + 1) - 0.5, np.arange(len(stacks) + 1) - 0.5
    axis.pcolormesh(*edges, values, cmap=colours, vmin=-largest, vmax=largest, edgecolors="none")
    axis.set_xticks(range(len(board.tasks)), board.tasks)
    axis.set_yticks(range(len(stacks)), stacks)
    axis.invert_yaxis()
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    caption = f"Mean gain in points. {MARK}"
    return finish(drawing, "stack-by-task", "Stacks and tasks", caption)
