"""The best score so far over charged time, over submissions and over charged tokens."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from a2rl.results.suite.drawing import THEME, Figure, Row, Style, finish, panels
from a2rl.results.suite.leaderboard import Board, Cell
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
        cells = [(cell, _placed(cell, scale)) for cell in board.cells if cell.task == task]
        ends = [place for _, runs in cells for each in runs for place in each.places]
        end = scale.end or BEYOND * (max(ends, default=1.0) or 1.0)
        for cell, runs in cells:
            rows += _draw_cell(axis, cell, runs, style[cell.stack], end) if runs else []
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


class _Placed(NamedTuple):
    """A run, and where each of its submissions stands."""

    run: RunSummary
    places: list[float]


def _placed(cell: Cell, scale: Scale) -> list[_Placed]:
    """Returns the runs all of whose submissions have a place; a run without submissions stays at the base model."""
    found = [
        _Placed(run, [place for each in run.tries if (place := scale.place(run, each)) is not None])
        for run in cell.runs
    ]
    return [each for each in found if len(each.places) == len(each.run.tries)]


def _draw_cell(axis: "Axes", cell: Cell, runs: Sequence[_Placed], look: dict[str, Any], end: float) -> list[Row]:
    import numpy as np

    grid = np.linspace(0, end, GRID)
    curves = np.array([_best_so_far(run, places, grid) for run, places in runs])
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


def _best_so_far(run: RunSummary, places: Sequence[float], grid: "Points") -> "Points":
    """Returns the best score up to each point of the grid; before the first submission, the base model's."""
    import numpy as np

    ordered = sorted(zip(places, (each.score for each in run.tries), strict=True))
    best = np.maximum.accumulate([run.public_baseline or 0.0, *(score for _, score in ordered)])
    return best[np.searchsorted([at for at, _ in ordered], grid, side="right")]
