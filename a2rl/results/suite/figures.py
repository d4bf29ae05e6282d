"""The figures of the report over many runs, drawn with matplotlib: SVG for the page, SVG, PDF and CSV as files."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import cos, log, radians, sin
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from a2rl.results.suite.drawing import (
    THEME,
    Bar,
    Figure,
    Row,
    Style,
    draw_bars,
    finish,
    margins,
    new,
    panels,
    styles,
    width_of,
)
from a2rl.results.suite.leaderboard import MARKS, Board, Cell
from a2rl.results.suite.run_summary import RunSummary, Try

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from matplotlib.axes import Axes

    Points = npt.NDArray[np.float64]


THIN_LINES = 12
"""The lines of single runs are drawn up to this number of runs of a stack."""
BEYOND = 1.05
"""An axis goes so much beyond the last submission, so that its step can be seen."""
GRID = 60
"""Points at which the median over runs is computed."""
MOST_PERCENT = 1_000.0
"""Of its budget, and no run needs more: a forged budget of next to nothing would stretch the axis of all others."""
Place = Callable[[RunSummary, Try], float | None]


class Scale(NamedTuple):
    """What the best score is drawn over."""

    name: str
    label: str
    place: Place
    """Returns where a submission stands; None if that is unknown."""
    note: str = ""
    least: float = 0.0
    """Where the axis ends at the least."""


def _percent_of_budget(run: RunSummary, each: Try) -> float | None:
    percent = 100 * each.elapsed_s / float(run.settings["budget_s"])
    return percent if percent <= MOST_PERCENT else None


SCALES = (
    Scale(
        "time", "time since the start, % of the budget", _percent_of_budget,
        " Time that an agent spends waiting for grades can be given back, so an agent may have more than its budget. "
        f"Runs with a submission after more than {MOST_PERCENT:,.0f}% are left out.",
        least=100.0,
    ),
    Scale("submissions", "submissions", lambda _, each: float(each.number)),
    Scale(
        "tokens", "charged tokens, millions", lambda _, each: None if each.tokens is None else each.tokens / 1e6,
        " Tokens are those of the agent's requests that the relay measured; runs without them are left out.",
    ),
)  # fmt: skip


NAMES = (*(f"best-over-{scale.name}" for scale in SCALES), "gains", "scaling", "stack-by-task", "expected-best")
"""The names of all figures."""


def draw_progress(board: Board, style: Style) -> Iterator[Figure]:
    """Draws the best score over each scale on which any submission has a place."""
    for scale in SCALES:
        if any(each.places for cell in board.cells for each in _placed(cell, scale)):
            yield _draw(board, style, scale)


def _draw(board: Board, style: Style, scale: Scale) -> Figure:
    from matplotlib.ticker import MaxNLocator

    drawing, axes = panels(board, style, scale.label, "best public score so far")
    rows: list[Row] = []
    for task, axis in axes.items():
        cells = [(cell, _placed(cell, scale)) for cell in board.cells if cell.task == task]
        ends = [place for _, runs in cells for each in runs for place in each.places]
        end = max(scale.least, BEYOND * (max(ends, default=1.0) or 1.0))
        for cell, runs in cells:
            rows += _draw_cell(axis, cell, runs, style[cell.stack], end) if runs else []
        baselines: dict[str, list[float]] = {}
        for each in (each for _, runs in cells for each in runs):
            baselines.setdefault(str(each.run.settings["model"]), []).append(each.baseline)
        for known in baselines.values():
            axis.axhline(median(known), color=THEME["soft"], linewidth=1, linestyle=(0, (2, 2)))
        axis.set(ylim=(0, 100), xlim=(0, end))
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=scale.name != "tokens"))
    caption = (
        "The best score that each agent had been told, by task. Thick: the median over runs; the band holds the middle "
        f"half of the runs; thin: single runs; dotted: each base model, the median over runs.{scale.note}"
    )
    return finish(drawing, f"best-over-{scale.name}", f"Best score over {scale.name}", caption, rows)


class _Placed(NamedTuple):
    """A run, and where each of its submissions stands."""

    run: RunSummary
    baseline: float
    """The public score of its base model."""
    places: list[float]


def _placed(cell: Cell, scale: Scale) -> list[_Placed]:
    """Returns the runs all of whose submissions have a place; a run without submissions stays at the base model.

    A run whose base model has no score is left out: it failed before, or its score would be unknown at first.
    """
    found = [
        _Placed(run, baseline, [place for each in run.tries if (place := scale.place(run, each)) is not None])
        for run in cell.runs
        if (baseline := run.public_baseline) is not None
    ]
    return [each for each in found if len(each.places) == len(each.run.tries)]


def _draw_cell(axis: "Axes", cell: Cell, runs: Sequence[_Placed], look: dict[str, Any], end: float) -> list[Row]:
    import numpy as np

    grid = np.linspace(0, end, GRID)
    curves = np.array([_best_so_far(each, grid) for each in runs])
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


def _best_so_far(placed: _Placed, grid: "Points") -> "Points":
    """Returns the best score up to each point of the grid; before the first submission, the base model's."""
    import numpy as np

    ordered = sorted(zip(placed.places, (each.score for each in placed.run.tries), strict=True))
    best = np.maximum.accumulate([placed.baseline, *(score for _, score in ordered)])
    return best[np.searchsorted([at for at, _ in ordered], grid, side="right")]


MOST_REVERSALS = 5
"""Rank reversals that are named below the heatmap; `report.json` has all."""


TILT = 40
"""Degrees by which the names of tasks are turned where they are wider than their columns."""


def draw_figures(board: Board) -> Iterator[Figure]:
    """Draws what a board has values for."""
    style = styles(board)
    yield from draw_progress(board, style)
    if board.cells:
        yield _forest(board, style)
    if any(len(points) > 1 for points in _by_size(board).values()):
        yield _scaling(board, style)
    if len(board.standings) > 1 and len(board.tasks) > 1:
        yield _heatmap(board)
    if any(len(cell.runs) > 1 for cell in board.cells):
        yield _expected_best(board, style)


def _forest(board: Board, style: Style) -> Figure:
    """Draws every mean gain with its interval, by task."""
    cells = sorted(board.cells, key=lambda cell: board.tasks.index(cell.task))
    bars = [Bar(cell.task, cell.stack, f"{cell.stack} ({len(cell.runs)})", cell.gain, *cell.ci) for cell in cells]
    rows: list[Row] = [
        {"task": cell.task, "stack": cell.stack, "runs": len(cell.runs), "gain": cell.gain, "low": cell.ci.low,
         "high": cell.ci.high}
        for cell in cells
    ]  # fmt: skip
    caption = "Mean gain with its 95% interval over runs and items; in brackets, the number of runs."
    return finish(draw_bars(bars, style, "gain over the base model, points"), "gains", "Gains", caption, rows)


def _heatmap(board: Board) -> Figure:
    """Draws the mean gain of each stack on each task."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    stacks = [each.stack for each in board.standings]
    values = np.full((len(stacks), len(board.tasks)), np.nan)
    width, left, right, bottom = 9.2, min(5.0, width_of(stacks)), 0.2, 0.4
    column, names = (width - left - right) / len(board.tasks), [width_of([task]) for task in board.tasks]
    tilted: dict[str, Any] = {}
    if max(names) > column:
        tilted = {"rotation": TILT, "ha": "right", "rotation_mode": "anchor"}
        reach = [name * cos(radians(TILT)) - (at + 0.5) * column for at, name in enumerate(names)]
        left, bottom = min(5.0, max(left, *reach)), min(5.0, max(names) * sin(radians(TILT)))
    drawing = new(width, 0.42 * len(stacks) + 0.6 + bottom)
    axis, rows = drawing.subplots(), []
    margins(drawing, left=left, right=right, bottom=bottom, top=0.15)
    for cell in board.cells:
        place = stacks.index(cell.stack), board.tasks.index(cell.task)
        values[place] = cell.gain
        axis.text(place[1], place[0], f"{cell.gain:+.1f}{cell.marks}", ha="center", va="center", fontsize=10)
        rows.append(
            {"task": cell.task, "stack": cell.stack, "gain": cell.gain, "best": cell.is_best, "worst": cell.is_worst,
             "reversed": cell.is_reversed}
        )  # fmt: skip
    colours = LinearSegmentedColormap.from_list("gain", ["#f9706666", "#98a2b322", "#47cd8966"])
    largest = float(np.nanmax(np.abs(values))) or 1.0
    edges = np.arange(len(board.tasks) + 1) - 0.5, np.arange(len(stacks) + 1) - 0.5
    axis.pcolormesh(*edges, values, cmap=colours, vmin=-largest, vmax=largest, edgecolors="none")
    axis.set_xticks(range(len(board.tasks)), board.tasks, **tilted)
    axis.set_yticks(range(len(stacks)), stacks)
    axis.invert_yaxis()
    axis.tick_params(length=0)
    for spine in axis.spines.values():
        spine.set_visible(False)
    reversals = "; ".join(map(str, board.reversals[:MOST_REVERSALS])) or "none"
    more = f" and {len(board.reversals) - MOST_REVERSALS} more" if len(board.reversals) > MOST_REVERSALS else ""
    caption = f"Mean gain in points. {MARKS} Rank reversals: {reversals}{more}."
    return finish(drawing, "stack-by-task", "Stacks and tasks", caption, rows)


def _expected_best(board: Board, style: Style) -> Figure:
    """Draws the expected best gain of several runs."""
    from matplotlib.ticker import MaxNLocator

    drawing, axes = panels(board, style, "number of runs", "expected best gain, points")
    rows: list[Row] = []
    for cell in board.cells:
        best = cell.expected_best
        axis = axes[cell.task]
        axis.plot(range(1, len(best) + 1), best, linewidth=2, marker="o", markersize=4, **style[cell.stack])
        rows += [{"task": cell.task, "stack": cell.stack, "k": k, "gain": gain} for k, gain in enumerate(best, 1)]
    for axis in axes.values():
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        low, high = axis.get_ylim()
        if high - low < 1.0:  # differences that small are none
            axis.set_ylim((low + high) / 2 - 0.5, (low + high) / 2 + 0.5)
    caption = "The gain to expect of the best of several runs: the mean over all choices of so many of the runs."
    return finish(drawing, "expected-best", "Best of several runs", caption, rows)


def _by_size(board: Board) -> dict[tuple[str, str], list[tuple[int, Cell]]]:
    """Returns the cells by task and stack without its model, each with the parameters of its model, smallest first."""
    found: dict[tuple[str, str], list[tuple[int, Cell]]] = {}
    for cell in board.cells:
        size, model = cell.runs[0].parameters, str(cell.runs[0].settings["model"])
        if size is not None and size > 0:  # a stranger's model may have a size that no logarithmic axis has
            family = " · ".join(part for part in cell.stack.split(" · ") if part != model)
            found.setdefault((cell.task, family), []).append((size, cell))
    return {key: sorted(points, key=lambda point: point[0]) for key, points in found.items()}


def _apart(sizes: Iterable[float]) -> list[float]:
    """Returns the sizes whose numbers have room beside each other on a logarithmic axis, from the smallest."""
    found: list[float] = []
    ordered = sorted(sizes)
    for size in ordered:
        if not found or log(size / found[-1]) >= 0.2 * log(ordered[-1] / ordered[0]):
            found.append(size)
    return found


def _scaling(board: Board, style: Style) -> Figure:
    """Draws the mean gain over the size of the base model, with a line for each stack whose models differ."""
    families: Style = {}
    for (_, family), points in _by_size(board).items():
        families.setdefault(family, style[points[0][1].stack])
    x_label, y_label = "parameters of the base model, billions", "gain over the base model, points"
    drawing, axes = panels(board, families, x_label, y_label)
    rows: list[Row] = []
    drawn: dict[str, set[float]] = {task: set() for task in axes}
    for (task, family), points in _by_size(board).items():
        look = families[family]
        sizes, gains = [size / 1e9 for size, _ in points], [cell.gain for _, cell in points]
        drawn[task].update(sizes)
        axes[task].plot(sizes, gains, linewidth=2, marker="o", markersize=4, **look)
        for size, (_, cell) in zip(sizes, points, strict=True):
            axes[task].plot([size, size], [cell.ci.low, cell.ci.high], linewidth=1, color=look["color"])
        rows += [
            {"task": task, "stack": family, "model": cell.runs[0].settings["model"], "parameters": size,
             "gain": cell.gain, "low": cell.ci.low, "high": cell.ci.high}
            for size, cell in points
        ]  # fmt: skip
    for task, axis in axes.items():
        axis.axhline(0, color=THEME["soft"], linewidth=1)
        axis.set(xscale="log")
        axis.set_xticks(ticks := _apart(drawn[task]), [f"{size:.3g}" for size in ticks])
        axis.minorticks_off()
    caption = (
        "Mean gain over the size of the base model, with 95% intervals. Models whose size is neither in their files "
        "nor in their name are left out."
    )
    return finish(drawing, "scaling", "Gain over model size", caption, rows)
