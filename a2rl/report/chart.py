"""The trajectory chart: where every mark goes, in SVG units. The template only draws."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from a2rl.budget import format_duration
from a2rl.score import Interval

WIDTH, HEIGHT = 920, 360
LEFT, RIGHT, TOP, BOTTOM = 52, 24, 16, 44
_Scale = Callable[[float], float]
TICK_STEPS_S = (5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


class Point(NamedTuple):
    """A scored submission."""

    number: int
    elapsed_s: float
    score: float
    ci: Interval | None
    counts: bool
    """Whether it is the one that the result comes from."""


class Mark(NamedTuple):
    """A submission on the page."""

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
    """The baseline: its line and its interval."""

    y: float
    top: float
    height: float


@dataclass(frozen=True, slots=True)
class Chart:
    """Everything to draw."""

    marks: list[Mark]
    best: str
    """Points of the line of the best score so far."""
    baseline: Band | None
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    right: int = WIDTH - RIGHT
    top: int = TOP
    bottom: int = HEIGHT - BOTTOM


def draw(points: Sequence[Point], baseline: float | None, baseline_ci: Interval | None, end_s: float) -> Chart:
    """Lays out scores (0-100) over seconds since the agent's start."""
    end_s = max([end_s, 1.0, *(point.elapsed_s for point in points)])
    highs = [point.ci.high if point.ci else point.score for point in points] + [baseline or 0.0]
    top_score = min(100.0, 10 * math.ceil(max(highs) / 10 + 0.5))

    def x(seconds: float) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * seconds / end_s, 1)

    def y(score: float) -> float:
        return round(HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * score / top_score, 1)

    marks = [
        Mark(
            x(point.elapsed_s),
            y(point.score),
            y(point.ci.low if point.ci else point.score),
            y(point.ci.high if point.ci else point.score),
            f"#{point.number}: {point.score:.1f}"
            + (f" [{point.ci.low:.1f}, {point.ci.high:.1f}]" if point.ci else "")
            + f" after {format_duration(point.elapsed_s)}",
            point.counts,
        )
        for point in points
    ]
    band = None
    if baseline is not None:
        low, high = baseline_ci or (baseline, baseline)
        band = Band(y(baseline), y(high), round(y(low) - y(high), 1))
    return Chart(
        marks, _best_line(points, baseline, x(0), x, y, end_s), band, _x_ticks(end_s, x), _y_ticks(top_score, y)
    )


def _best_line(
    points: Sequence[Point], baseline: float | None, start: float, x: _Scale, y: _Scale, end_s: float
) -> str:
    best = baseline or 0.0
    path = [(start, y(best))]
    for point in points:
        path.append((x(point.elapsed_s), y(best)))
        best = max(best, point.score)
        path.append((x(point.elapsed_s), y(best)))
    path.append((x(end_s), y(best)))
    return " ".join(f"{a},{b}" for a, b in path)


def _x_ticks(end_s: float, x: _Scale) -> list[Tick]:
    step = next((step for step in TICK_STEPS_S if end_s / step <= 9), TICK_STEPS_S[-1])
    return [Tick(x(at), format_duration(at)) for at in range(0, int(end_s) + 1, step)]


def _y_ticks(top_score: float, y: _Scale) -> list[Tick]:
    step = 20 if top_score > 50 else 10 if top_score > 20 else 5
    return [Tick(y(score), str(score)) for score in range(0, int(top_score) + 1, step)]
