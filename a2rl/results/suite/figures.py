"""The figures of the report over many runs, drawn with matplotlib: SVG for the page, SVG, PDF and CSV as files."""

import io
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from a2rl.config.estimate import likely_gain
from a2rl.results.suite.leaderboard import Board, Cell
from a2rl.results.suite.run_summary import RunSummary, Try

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

THEME = {
    "ink": "#1d2430", "soft": "#667085", "line": "#e4e7ec", "paper": "#fefefe",
    "c1": "#2456c7", "c2": "#c2570c", "c3": "#067647", "c4": "#a1288f", "c5": "#0e7490", "c6": "#8a6a00",
}  # fmt: skip
"""Colours by the name of the page's CSS variable, which also has a value for dark screens."""
SERIES = ("c1", "c2", "c3", "c4", "c5", "c6")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)))
"""With more stacks than colours, the dashes tell them apart."""
COLUMNS = 3
THIN_LINES = 12
"""The lines of single runs are drawn up to this number of runs of a stack."""
GRID = 60
"""Points at which the median over runs is computed."""
Row = dict[str, Any]


class Figure(NamedTuple):
    """A drawn figure."""

    name: str
    """The name of its files."""
    title: str
    caption: str
    svg: str
    pdf: bytes
    rows: list[Row]
    """The values that are drawn."""

    @property
    def inline(self) -> str:
        """The SVG element for the page, with the colours as CSS variables."""
        found = self.svg[self.svg.index("<svg") :]
        for name, colour in THEME.items():
            found = found.replace(colour, f"var(--{name})")
        return re.sub(r'(<svg[^>]*?) width="[^"]*"| height="[\d.]+pt"', r"\1", found, count=2)


def draw_figures(board: Board) -> Iterator[Figure]:
    """Draws what a board has values for."""
    style = _styles(board)
    if any(run.tries for cell in board.cells for run in cell.runs):
        yield _progress(board, style, "time", "charged time, share of the budget", _over_time)
        yield _progress(board, style, "submissions", "submissions", _over_submissions)
    if board.cells:
        yield _forest(board, style)
    if len(board.standings) > 1 and len(board.tasks) > 1:
        yield _heatmap(board)
    if any(len(cell.runs) > 1 for cell in board.cells):
        yield _expected_best(board, style)


Style = dict[str, dict[str, Any]]
"""Colour and dashes of each stack."""


def _styles(board: Board) -> Style:
    return {
        each.stack: {
            "color": THEME[SERIES[place % len(SERIES)]],
            "linestyle": DASHES[place // len(SERIES) % len(DASHES)],
        }
        for place, each in enumerate(board.standings)
    }


def _new(width: float, height: float) -> "Drawing":
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    mpl.rcParams.update(
        {
            "svg.fonttype": "none", "svg.hashsalt": "a2rl", "font.family": "sans-serif", "font.size": 10,
            "text.color": THEME["ink"], "axes.labelcolor": THEME["soft"], "axes.edgecolor": THEME["line"],
            "xtick.color": THEME["soft"], "ytick.color": THEME["soft"], "axes.titlecolor": THEME["ink"],
            "grid.color": THEME["line"], "axes.facecolor": "none", "figure.facecolor": "none",
            "axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 10.5, "legend.frameon": False,
        }
    )  # fmt: skip
    return Drawing(figsize=(width, height), layout="constrained")


def _finish(drawing: "Drawing", name: str, title: str, caption: str, rows: list[Row]) -> Figure:
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg, pdf = io.StringIO(), io.BytesIO()
    # Not `savefig`, which draws everything a second time, and computes the layout for each file.
    canvas: Any = FigureCanvasSVG(drawing)
    canvas.print_svg(svg, metadata={"Date": None})
    drawing.set_layout_engine("none")
    canvas = FigureCanvasPdf(drawing)
    canvas.print_pdf(pdf, metadata={"CreationDate": None})
    return Figure(name, title, caption, svg.getvalue(), pdf.getvalue(), rows)


def _panels(board: Board, height: float = 2.5) -> "tuple[Drawing, dict[str, Axes]]":
    """Returns a drawing with one panel for each task."""
    columns = min(COLUMNS, len(board.tasks))
    rows = ceil(len(board.tasks) / columns)
    drawing = _new(3.1 * columns + 0.4, height * rows + 0.5)
    axes = drawing.subplots(rows, columns, squeeze=False).ravel().tolist()
    for unused in axes[len(board.tasks) :]:
        unused.set_axis_off()
    for axis in axes[: len(board.tasks)]:
        axis.grid(axis="y", linewidth=0.8)
        axis.tick_params(length=0)
    return drawing, dict(zip(board.tasks, axes, strict=False))


def _over_time(run: RunSummary, each: Try) -> float:
    return min(100.0, 100 * each.elapsed_s / float(run.settings["budget_s"]))


def _over_submissions(run: RunSummary, each: Try) -> float:
    return float(each.number)


Place = Callable[[RunSummary, Try], float]


def _progress(board: Board, style: Style, name: str, label: str, place: Place) -> Figure:
    """Draws the best public score so far."""
    from matplotlib.ticker import MaxNLocator

    drawing, panels = _panels(board)
    rows: list[Row] = []
    for task, axis in panels.items():
        cells = [cell for cell in board.cells if cell.task == task]
        end = max((place(run, each) for cell in cells for run in cell.runs for each in run.tries), default=1.0)
        end = 100.0 if place is _over_time else max(end, 2.0)
        for cell in cells:
            rows += _draw_cell(axis, cell, style[cell.stack], place, end)
        baselines = [run.public_baseline for cell in cells for run in cell.runs if run.public_baseline is not None]
        if baselines:
            axis.axhline(baselines[0], color=THEME["soft"], linewidth=1, linestyle=(0, (2, 2)))
        axis.set(title=task, ylim=(0, 100), xlim=(0, end))
        axis.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    drawing.supxlabel(label, color=THEME["soft"], fontsize=10)
    drawing.supylabel("best public score so far", color=THEME["soft"], fontsize=10)
    _legend(drawing, board, style)
    caption = (
        "The best score that each agent had been told, by task. Thick: the median over runs; the band holds the middle "
        "half of the runs; thin: single runs; dotted: the base model."
    )
    return _finish(drawing, f"best-over-{name}", f"Best score over {name}", caption, rows)


def _draw_cell(axis: "Axes", cell: Cell, look: dict[str, Any], place: Place, end: float) -> list[Row]:
    import numpy as np

    grid = np.linspace(0, end, GRID)
    curves = np.array([_best_so_far(run, place, grid.tolist()) for run in cell.runs])
    low, middle, high = np.percentile(curves, [25, 50, 75], axis=0)
    if 1 < len(cell.runs) <= THIN_LINES:
        for curve in curves:
            axis.step(grid, curve, where="post", linewidth=0.6, alpha=0.5, color=look["color"])
    if len(cell.runs) > 1:
        axis.fill_between(grid, low, high, step="post", alpha=0.14, color=look["color"], linewidth=0)
    axis.step(grid, middle, where="post", linewidth=2, **look)
    return [
        {"task": cell.task, "stack": cell.stack, "at": round(float(at), 3), "median": m, "lower": a, "upper": b}
        for at, a, m, b in zip(grid, low.tolist(), middle.tolist(), high.tolist(), strict=True)
    ]


def _best_so_far(run: RunSummary, place: Place, grid: Sequence[float]) -> list[float]:
    """Returns the best score up to each place; before the first submission, the base model's."""
    ordered = sorted((place(run, each), each.score) for each in run.tries)
    best = list(accumulate((score for _, score in ordered), max, initial=run.public_baseline or 0.0))
    places = [at for at, _ in ordered]
    return [best[bisect_right(places, at)] for at in grid]


def _legend(drawing: "Drawing", board: Board, style: Style) -> None:
    from matplotlib.lines import Line2D

    if len(board.standings) > 1:
        handles = [Line2D([], [], linewidth=2, label=name, **look) for name, look in style.items()]
        drawing.legend(handles=handles, loc="outside upper left", ncols=min(3, len(handles)), fontsize=9.5)


def _forest(board: Board, style: Style) -> Figure:
    """Draws every mean gain with its interval, beside the gain that a single run could show."""
    rows = [(task, [cell for cell in board.cells if cell.task == task]) for task in board.tasks]
    lines = sum(len(cells) + 1 for _, cells in rows)
    drawing = _new(9.2, 0.30 * lines + 0.9)
    axis, at, labels, table = drawing.subplots(), 0.0, [], []
    for task, cells in rows:
        labels.append((at, task, True))
        items = max(len(run.gains) for cell in cells for run in cell.runs)
        smallest = likely_gain(items) if items else None
        top = at
        for cell in cells:
            at += 1
            look = style[cell.stack]["color"]
            axis.plot([cell.ci.low, cell.ci.high], [at, at], color=look, linewidth=2, solid_capstyle="butt")
            axis.plot([cell.gain], [at], "o", color=look, markersize=5.5)
            labels.append((at, f"{cell.stack} ({len(cell.runs)})", False))
            table.append(_forest_row(cell, smallest))
        if smallest is not None:
            axis.plot([smallest] * 2, [top + 0.5, at + 0.5], color=THEME["soft"], linewidth=1, linestyle=(0, (1, 1.5)))
        at += 1
    axis.axvline(0, color=THEME["soft"], linewidth=1)
    axis.set_yticks([each[0] for each in labels], [each[1] for each in labels])
    for text, (_, _, is_task) in zip(axis.get_yticklabels(), labels, strict=True):
        text.set_color(THEME["ink"] if is_task else THEME["soft"])
        text.set_fontweight("bold" if is_task else "normal")
    axis.set(ylim=(at - 0.3, -0.7), xlabel="gain over the base model, points")
    axis.grid(axis="x", linewidth=0.8)
    axis.tick_params(length=0)
    axis.spines["left"].set_visible(False)
    caption = (
        "Mean gain with its 95% interval over runs and items; in brackets, the number of runs. Dotted: the true gain "
        "that a single run calls improved in 80% of cases."
    )
    return _finish(drawing, "gains", "Gains", caption, table)


def _forest_row(cell: Cell, smallest: float | None) -> Row:
    return {
        "task": cell.task, "stack": cell.stack, "runs": len(cell.runs), "gain": cell.gain, "low": cell.ci.low,
        "high": cell.ci.high, "likely_detected_gain": smallest,
    }  # fmt: skip


def _heatmap(board: Board) -> Figure:
    """Draws the mean gain of each stack on each task."""
    import numpy as np
    from matplotlib.colors import LinearSegmentedColormap

    stacks = [each.stack for each in board.standings]
    values = np.full((len(stacks), len(board.tasks)), np.nan)
    drawing = _new(9.2, 0.42 * len(stacks) + 1.0)
    axis, rows = drawing.subplots(), []
    for cell in board.cells:
        place = stacks.index(cell.stack), board.tasks.index(cell.task)
        values[place] = cell.gain
        star = "*" if cell.is_best else ""
        axis.text(place[1], place[0], f"{cell.gain:+.1f}{star}", ha="center", va="center", fontsize=10)
        rows.append({"task": cell.task, "stack": cell.stack, "gain": cell.gain, "best": cell.is_best})
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
    caption = "Mean gain in points. A star: better than every other stack on this task, allowing for all comparisons."
    return _finish(drawing, "stack-by-task", "Stacks and tasks", caption, rows)


def _expected_best(board: Board, style: Style) -> Figure:
    """Draws the expected best gain of several runs."""
    from matplotlib.ticker import MaxNLocator

    drawing, panels = _panels(board)
    rows: list[Row] = []
    for cell in board.cells:
        best = cell.expected_best
        axis = panels[cell.task]
        axis.plot(range(1, len(best) + 1), best, linewidth=2, marker="o", markersize=4, **style[cell.stack])
        rows += [{"task": cell.task, "stack": cell.stack, "k": k, "gain": gain} for k, gain in enumerate(best, 1)]
    for task, axis in panels.items():
        axis.set(title=task)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    drawing.supxlabel("number of runs", color=THEME["soft"], fontsize=10)
    drawing.supylabel("expected best gain, points", color=THEME["soft"], fontsize=10)
    _legend(drawing, board, style)
    caption = "The gain to expect of the best of several runs: the mean over all choices of so many of the runs."
    return _finish(drawing, "expected-best", "Best of several runs", caption, rows)
