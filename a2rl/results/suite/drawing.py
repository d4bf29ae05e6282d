"""What all figures of the report over many runs share: colours, files, panels for tasks, and rows with intervals."""

import io
import re
from collections.abc import Iterable, Sequence
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

from a2rl.results.suite.leaderboard import Board

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
PANEL = 3.1
"""The width of a panel with the room beside it, in inches."""
TITLE_SIZE = 10.5
"""Of the names of tasks above their panels; smaller if the longest is wider than a panel."""
LEGEND_ROW = 0.22
"""The height of a row of names above the panels, in inches."""
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
        width = PX_PER_PT * float(re.findall(r'width="([\d.]+)pt"', found)[0])
        found = re.sub(r'(<svg[^<>]*?) width="[^"]*"| height="[\d.]+pt"', r"\1", found, count=2)
        style = f"max-width: {width:.0f}px; min-width: {min(width, LEAST_WIDTH_PX):.0f}px"
        return found.replace("<svg", f'<svg style="{style}"', 1)


PX_PER_PT, LEAST_WIDTH_PX = 1.5, 720
"""How large figures are on a page, at most and at least: a small one must not fill it."""
Style = dict[str, dict[str, Any]]
"""Colour and dashes of each stack."""


def styles(board: Board) -> Style:
    """Returns the look of each stack, the same in all figures of a board."""
    return {
        each.stack: {
            "color": THEME[SERIES[place % len(SERIES)]],
            "linestyle": DASHES[place // len(SERIES) % len(DASHES)],
        }
        for place, each in enumerate(board.standings)
    }


def new(width: float, height: float) -> "Drawing":
    """Returns an empty drawing of this size, in inches."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Drawing

    mpl.rcParams.update(
        {
            "svg.fonttype": "none", "svg.hashsalt": "a2rl", "font.family": "sans-serif", "font.size": 10,
            "text.parse_math": False,  # names are texts of anybody, and one with a "$" would not be drawn
            "text.color": THEME["ink"], "axes.labelcolor": THEME["soft"], "axes.edgecolor": THEME["line"],
            "xtick.color": THEME["soft"], "ytick.color": THEME["soft"], "axes.titlecolor": THEME["ink"],
            "grid.color": THEME["line"], "axes.facecolor": "none", "figure.facecolor": "none",
            "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
            "axes.titley": 1.0,  # without it, matplotlib measures all ticks to find a place
        }
    )  # fmt: skip
    return Drawing(figsize=(width, height))


def finish(drawing: "Drawing", name: str, title: str, caption: str, rows: list[Row]) -> Figure:
    """Writes a drawing as SVG and as PDF."""
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    svg, pdf = io.StringIO(), io.BytesIO()
    # Not `savefig`, which draws everything a second time. The margins are given, because to compute them would draw
    # everything twice more.
    canvas: Any = FigureCanvasSVG(drawing)
    canvas.print_svg(svg, metadata={"Date": None})
    canvas = FigureCanvasPdf(drawing)
    canvas.print_pdf(pdf, metadata={"CreationDate": None})
    return Figure(name, title, caption, svg.getvalue(), pdf.getvalue(), rows)


def panels(board: Board, style: Style, x_label: str, y_label: str) -> "tuple[Drawing, dict[str, Axes]]":
    """Returns a drawing with one panel for each task, the labels of the axes, and the names of the stacks."""
    columns = min(COLUMNS, len(board.tasks))
    rows = ceil(len(board.tasks) / columns)
    width = PANEL * columns + 0.4
    in_a_row = max(1, int(width / (0.55 + width_of(style)))) if style else 1
    above = 0.1 + LEGEND_ROW * ceil(len(style) / in_a_row) if len(style) > 1 else 0.0
    drawing = new(width, 2.5 * rows + 0.5 + above)
    axes = drawing.subplots(rows, columns, squeeze=False).ravel().tolist()
    margins(drawing, left=0.7, right=0.2, bottom=0.6, top=0.3 + above)
    drawing.subplots_adjust(wspace=0.2, hspace=0.35)
    for unused in axes[len(board.tasks) :]:
        unused.set_axis_off()
    title_size = TITLE_SIZE * min(1.0, PANEL / width_of(board.tasks))
    for task, axis in zip(board.tasks, axes, strict=False):
        axis.set_title(task, fontsize=title_size)
        axis.grid(axis="y", linewidth=0.8)
        axis.tick_params(length=0)
        # They have no labels of their own: with a place for these, matplotlib need not measure all ticks.
        axis.xaxis.set_label_coords(0, 0)
        axis.yaxis.set_label_coords(0, 0)
    height = drawing.get_figheight()
    drawing.supxlabel(x_label, y=0.1 / height, va="bottom", color=THEME["soft"], fontsize=10)
    drawing.supylabel(y_label, x=0.1 / drawing.get_figwidth(), ha="left", color=THEME["soft"], fontsize=10)
    if above:
        _name_stacks(drawing, style, in_a_row)
    return drawing, dict(zip(board.tasks, axes, strict=False))


def margins(drawing: "Drawing", left: float, right: float, bottom: float, top: float) -> None:
    """Sets the margins of a drawing around its axes, in inches."""
    width, height = drawing.get_size_inches()
    drawing.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height)


def width_of(labels: Iterable[str]) -> float:
    """Returns the room for labels beside an axis, in inches: a character of this size is this wide on average."""
    return 0.25 + 0.083 * max(map(len, labels), default=0)


def _name_stacks(drawing: "Drawing", style: Style, in_a_row: int) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], linewidth=2, label=name, **look) for name, look in style.items()]
    place: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (0, 1), "borderaxespad": 0.2}
    drawing.legend(handles=handles, ncols=min(in_a_row, len(handles)), fontsize=9.5, **place)


class Bar(NamedTuple):
    """A value with its interval, and the stack that it belongs to."""

    task: str
    stack: str
    label: str
    value: float
    low: float
    high: float


SHORT_TASK = 16
"""Characters of the longest built-in task, for which there is room beside the bars."""


def draw_bars(bars: Sequence[Bar], style: Style, label: str) -> "Drawing":
    """Draws values with their intervals in rows, below the name of their task, which the bars are ordered by."""
    tasks = list(dict.fromkeys(bar.task for bar in bars))
    width, right = 9.2, 0.2
    drawing = new(width, 0.30 * (len(bars) + len(tasks)) + 0.9)
    axis, at, labels = drawing.subplots(), 0.0, []
    left = min(5.0, width_of([*(task[:SHORT_TASK] for task in tasks), *(bar.label for bar in bars)]))
    margins(drawing, left=left, right=right, bottom=0.55, top=0.1)
    for task in tasks:
        labels.append((at, task, True))
        for bar in [each for each in bars if each.task == task]:
            at += 1
            look = style[bar.stack]["color"]
            axis.plot([bar.low, bar.high], [at, at], color=look, linewidth=2, solid_capstyle="butt")
            axis.plot([bar.value], [at], "o", color=look, markersize=5.5)
            labels.append((at, bar.label, False))
        at += 1
    rows = [place for place, _, is_task in labels if not is_task]
    ends = [place - 0.5 for place in rows], [place + 0.5 for place in rows]
    axis.vlines([0.0] * len(rows), *ends, color=THEME["soft"], linewidth=1)  # beside the bars, not across names
    axis.set_yticks([each[0] for each in labels], [each[1] for each in labels])
    for text, (_, _, is_task) in zip(axis.get_yticklabels(), labels, strict=True):
        text.set_color(THEME["ink"] if is_task else THEME["soft"])
        text.set_fontweight("bold" if is_task else "normal")
        if is_task:  # from the left edge, and over the plot where it is long: there is no bar in its row
            text.set_horizontalalignment("left")
            text.set_x(0.1 / width - left / (width - left - right))
    axis.set(ylim=(at - 0.3, -0.7), xlabel=label)
    axis.grid(axis="x", linewidth=0.8)
    axis.tick_params(length=0)
    axis.spines["left"].set_visible(False)
    return drawing
