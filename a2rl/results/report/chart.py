"""Computes the layout of the score chart in SVG units; the template only draws it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from a2rl.results.report.data import Submitted
from a2rl.run.budget import format_duration
from a2rl.scoring.means import Interval

WIDTH, HEIGHT = 920, 368
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 16, 52
_Scale = Callable[[float], float]
TICK_STEPS_S = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


class Mark(NamedTuple):
    """The position of a submission in the chart."""

    x: float
    y: float
    low: float
    high: float
    label: str
    counts: bool


class Tick(NamedTuple):
    """A labelled line of the grid."""

    at: float
    label: str


class Band(NamedTuple):
    """The position of the baseline and its interval."""

    y: float
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything to draw."""

    marks: list[Mark]
    best: str
    """Points of the line that shows the best score so far."""
    baseline: Band | None
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    end_s: float
    """The time at the right end."""
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM

    def x(self, seconds: float) -> float:
        """Returns the position of a time."""
        return round(self.left + (self.right - self.left) * min(1.0, seconds / self.end_s), 1)


def draw(submissions: Sequence[Submitted], baseline: float | None, baseline_ci: Interval | None, end_s: float) -> Chart:
    """Lays out a chart of scores over time.

    Args:
        submissions: The submissions in order; those without a score are left out.
        baseline: The base model's score.
        baseline_ci: Its interval.
        end_s: The end of the time axis, in seconds since the agent's start.
    """
    points = [(each, each.score) for each in submissions if each.score is not None]
    end_s = max([end_s, 1.0, *(each.elapsed_s for each, _ in points)])
    highs = [each.ci.high if each.ci else score for each, score in points] + [baseline or 0.0]
    top_score = min(100.0, 10 * math.ceil(max(highs) / 10 + 0.5))

    def x(seconds: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * seconds / end_s, 1)

    def y(score: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * score / top_score, 1)

    def mark(each: Submitted, score: float) -> Mark:
        low, high = each.ci or (score, score)
        interval = f" [{low:.1f}, {high:.1f}]" if each.ci else ""
        label = f"#{each.number}: {score:.1f}{interval} after {format_duration(each.elapsed_s)}"
        return Mark(x(each.elapsed_s), y(score), y(low), y(high), label, each.is_result)

    band = None
    if baseline is not None:
        low, high = baseline_ci or (baseline, baseline)
        band = Band(y(baseline), y(high), round(y(low) - y(high), 1))
    return Chart(
        marks=[mark(each, score) for each, score in points],
        best=_best_line(points, baseline, x, y, end_s),
        baseline=band,
        x_ticks=_x_ticks(end_s, x),
        y_ticks=_y_ticks(top_score, y),
        end_s=end_s,
    )


def _best_line(
    points: Sequence[tuple[Submitted, float]], baseline: float | None, x: _Scale, y: _Scale, end_s: float
) -> str:
    best = baseline or 0.0
    path = [(x(0), y(best))]
    for each, score in points:
        path.append((x(each.elapsed_s), y(best)))
        best = max(best, score)
        path.append((x(each.elapsed_s), y(best)))
    path.append((x(end_s), y(best)))
    return " ".join(f"{a},{b}" for a, b in path)


def _x_ticks(end_s: float, x: _Scale) -> list[Tick]:
    step = next((step for step in TICK_STEPS_S if end_s / step <= 9), TICK_STEPS_S[-1])
    return [Tick(x(at), format_duration(at)) for at in range(0, int(end_s) + 1, step)]


def _y_ticks(top_score: float, y: _Scale) -> list[Tick]:
    if top_score > 50:
        step = 20
    elif top_score > 20:
        step = 10
    else:
        step = 5
    return [Tick(y(score), str(score)) for score in range(0, int(top_score) + 1, step)]
