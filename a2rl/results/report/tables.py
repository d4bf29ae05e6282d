"""The tables of a run's page, and the layout of its chart.

The tables: what the LLM and the judge were asked, kinds of items, settings, and example items with the answers of the
base model and of the result. The chart of scores is laid out in SVG units; the template only draws it.
"""

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from markupsafe import Markup

from a2rl.core.errors import IntegrityError
from a2rl.core.files import read_model
from a2rl.grading.job import GradeResult
from a2rl.grading.outputs import outputs_path, read_outputs
from a2rl.results.figures import result_items
from a2rl.results.report.data import Submitted
from a2rl.results.table import NOTHING, points
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.ledger import Entry
from a2rl.run.records import ExecuteRecord, GradeRecord, LlmUse, SetupRecord, Usage
from a2rl.scoring.means import Interval
from a2rl.scoring.score import ItemResult

UNSEEN = "Its requests to the LLM could not be measured, so its tokens and their cost are not known."
MAX_CHARS = 700
"""Longer answers are cut off."""


class Compared(NamedTuple):
    """A figure for the base model and for the result."""

    name: str
    before: str
    after: str


def kinds(grade: GradeRecord) -> list[Compared]:
    """Returns the scores for each kind of item, if the task has kinds."""
    after = grade.final.groups if grade.final else {}
    return [
        Compared(f"{name} ({group.total})", points(group.score), points(after[name].score if name in after else None))
        for name, group in grade.baseline.groups.items()
    ]


def measures(grade: GradeRecord) -> list[Compared]:
    """Returns the other figures of the task."""
    before, after = grade.baseline.measures, grade.final.measures if grade.final else {}
    return [
        Compared(name, *(f"{each[name]:.2f}" if name in each else NOTHING for each in (before, after)))
        for name in {**before, **after}
    ]


def judge_figures(grade: GradeRecord | None) -> list[tuple[str, str]]:
    """Returns what the judge was asked, what it cost, and its noise."""
    if grade is None or grade.judge is None:
        return []
    judge = grade.judge
    shown = {
        "judge": judge.name or judge.model,
        "model": judge.model,
        "asked by": judge.annotator,
        "requests": f"{judge.use.requests:,}",
        "tokens in": f"{judge.use.prompt_tokens:,}",
        "tokens out": f"{judge.use.completion_tokens:,}",
        "paid": f"${judge.use.dollars:.4f}",
    }
    if judge.limit_usd is not None:
        shown["limit"] = f"${judge.limit_usd:.4f}"
    if judge.for_agent.requests or judge.searches:
        shown["of which for the agent"] = f"{judge.for_agent.requests:,} requests, ${judge.for_agent.dollars:.4f}"
        shown["the agent's searches"] = f"{judge.searches:,}"
    return list(shown.items())


def usage_figures(usage: Usage | None) -> list[tuple[str, str]]:
    """Returns the figures that an agent system reports of its own work."""
    if usage is None:
        return []
    figures = [
        ("steps", usage.steps),
        ("tool calls", usage.tool_calls),
        *([("lines not understood", usage.unreadable)] if usage.unreadable else []),
    ]
    return [(name, f"{value:,}") for name, value in figures]


def settings_and_versions(run: RunDir, ready: SetupRecord) -> list[tuple[str, str]]:
    """Returns what the run was made with."""
    spec = run.spec
    shown = {
        "run": spec.run_id,
        "suite": spec.suite,
        "launch": spec.launch or "-",
        "driver": spec.driver or "-",
        "model digest": ready.model_digest[:16],
        **({"base model not tried": ready.base_not_tried} if ready.base_not_tried else {}),
        "data digest": ready.data_digest[:16],
        **ready.data_about,
        "grading": f"{spec.backend}{', exact' if spec.exact else ''}",
        "answers": spec.generation.in_words(),
        **spec.options,
        "draw of the eval set": spec.draw.commitment[:16] if spec.draw else f"split seed {spec.split_seed}",
        "created": spec.created_at,
        "git commit": spec.git_commit or "-",
        **spec.versions,
    }
    return list(shown.items())


def seen_figures(seen: LlmUse | None) -> list[tuple[str, str]]:
    """Returns the figures that the relay measured: of requests, and of their tokens."""
    if seen is None:
        return []
    counts = {
        "requests": seen.requests,
        "tokens in": seen.prompt_tokens,
        "of which cached": seen.cached_tokens,
        "tokens out": seen.completion_tokens,
        "refused by a2rl": seen.refused,
        "answered with an error": seen.failed,
        "requests with estimated tokens": seen.estimated,
    }
    always = ("requests", "tokens in", "tokens out")
    figures = [(name, f"{value:,}") for name, value in counts.items() if value or name in always]
    figures.append(("cost at list prices", dollars(seen.cost_usd)))
    models = [
        (
            name,
            f"{use.requests:,} requests, {use.prompt_tokens:,} tokens in, {use.completion_tokens:,} out, "
            f"{dollars(use.cost_usd)}",
        )
        for name, use in seen.models.items()
    ]
    return [*figures, *models]


def dollars(cost: float | None) -> str:
    """Returns a cost in words."""
    return "price unknown" if cost is None else f"${cost:.4f}"


def remarks(executed: ExecuteRecord | None, driver: str | None, calls_llm: bool) -> list[str]:
    """Returns the remarks that a reader must know, one sentence each."""
    if executed is None or not calls_llm:
        return []
    seen = executed.seen
    if seen is None:
        return [UNSEEN]
    sentences = []
    if others := seen.other_models(driver):
        sentences.append(f"It also used models other than its driver {driver}: {', '.join(others)}.")
    for requested, answered in seen.answered.items():
        sentences.append(f"It requested {requested}, but the provider answered with {answered}.")
    if seen.server_tools:
        tools = ", ".join(f"{name} ({count:,} requests)" for name, count in seen.server_tools.items())
        sentences.append(f"It asked for more than text of the provider, outside of the sandbox: {tools}.")
    return sentences


class Example(NamedTuple):
    """An item on the page."""

    item: str
    title: str
    before: str
    """The base model's answer."""
    after: str
    """The result's answer."""
    asked: str = ""
    """The end of what the model was first asked; empty if the outputs were removed."""


def examples_of(run: RunDir, entries: Sequence[Entry], counts: int | None) -> list[Example]:
    """Returns no examples if the run has no result, or if its items were deleted."""
    path = result_items(run, entries, counts)
    if path is None or not path.is_file() or not run.baseline_items.is_file():
        return []
    chosen = choose(read_model(run.baseline_items, GradeResult).items, read_model(path, GradeResult).items)
    asked = _asked(path, {example.item for example in chosen})
    return [example._replace(asked=asked.get(example.item, "")) for example in chosen]


def choose(baseline: Sequence[ItemResult], result: Sequence[ItemResult]) -> list[Example]:
    """Chooses the item with the largest gain and the item with the result's worst score. Of equal items, the first one
    is chosen.

    Args:
        baseline: The base model's results, at least for the items of `result`.
    """
    before = {item.id: item for item in baseline}
    judged = [item for item in result if "errored" not in (item.verdict, before[item.id].verdict)]
    if not judged:
        return []
    best = max(judged, key=lambda item: item.value - before[item.id].value)
    worst = min(judged, key=lambda item: item.value)
    improved = best.value > before[best.id].value
    chosen = [("better than before", best)] if improved else []
    if worst.value < 1 and not (improved and worst is best):
        chosen.append(("not solved", worst))
    return [Example(item.id, title, _cut(before[item.id]), _cut(item)) for title, item in chosen]


def _asked(result: Path, items: Collection[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    with suppress(FileNotFoundError, IntegrityError):
        for output in read_outputs(outputs_path(result)):
            if output.item in items and output.turns:
                prompt = output.turns[0].prompt
                text = (prompt if isinstance(prompt, str) else prompt[-1].content).strip()
                found.setdefault(output.item, text if len(text) <= MAX_CHARS else f"... {text[-MAX_CHARS:].lstrip()}")
            if len(found) == len(items):
                break
    return found


def _cut(item: ItemResult) -> str:
    text = item.answer.strip()
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS].rstrip()} ..."


WIDTH, HEIGHT = 920, 368
LEFT, RIGHT, TOP, BOTTOM = 52, WIDTH - 24, 16, HEIGHT - 52
"""The edges of the plot within the chart."""
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


class Chart:
    """The layout of a chart of scores over time.

    Args:
        submissions: The submissions in order; those without a score are left out.
        end_s: The end of the time axis, in seconds since the agent's start.
    """

    width, height, left, right, top, bottom = WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM

    def __init__(
        self, submissions: Sequence[Submitted], baseline: float | None, baseline_ci: Interval | None, end_s: float
    ) -> None:
        scored = [(each, each.score) for each in submissions if each.score is not None]
        self._end_s = max([end_s, 1.0, *(each.elapsed_s for each, _ in scored)])
        highs = [each.ci.high if each.ci else score for each, score in scored]
        highs.append(baseline_ci.high if baseline_ci else baseline or 0.0)
        self._top_score = min(100.0, 10 * math.ceil(max(highs) / 10 + 0.5))
        self.marks = [self._mark(each, score) for each, score in scored]
        self.best = self._best_line(scored, baseline or 0.0)
        self.baseline = None if baseline is None else self._band(baseline, baseline_ci or Interval(baseline, baseline))

    def x(self, seconds: float) -> float:
        """Returns the position of a time."""
        return round(LEFT + (RIGHT - LEFT) * min(1.0, seconds / self._end_s), 1)

    def y(self, score: float) -> float:
        """Returns the position of a score."""
        return round(BOTTOM - (BOTTOM - TOP) * score / self._top_score, 1)

    @property
    def x_ticks(self) -> list[Tick]:
        """The labels of the time axis."""
        longest = TICK_STEPS_S[-1] * math.ceil(self._end_s / TICK_STEPS_S[-1] / 9)
        step = next((step for step in TICK_STEPS_S if self._end_s / step <= 9), longest)
        return [Tick(self.x(at), format_duration(at)) for at in range(0, int(self._end_s) + 1, step)]

    @property
    def y_ticks(self) -> list[Tick]:
        """The lines of the grid, with the labels of their scores."""
        step = 20 if self._top_score > 50 else 10 if self._top_score > 20 else 5
        return [Tick(self.y(score), str(score)) for score in range(0, int(self._top_score) + 1, step)]

    def _mark(self, each: Submitted, score: float) -> Mark:
        low, high = each.ci or (score, score)
        interval = f" [{low:.1f}, {high:.1f}]" if each.ci else ""
        label = f"#{each.number}: {score:.1f}{interval} after {format_duration(each.elapsed_s)}"
        return Mark(self.x(each.elapsed_s), self.y(score), self.y(low), self.y(high), label, each.is_result)

    def _band(self, baseline: float, ci: Interval) -> Band:
        return Band(self.y(baseline), self.y(ci.high), round(self.y(ci.low) - self.y(ci.high), 1))

    def _best_line(self, scored: Sequence[tuple[Submitted, float]], best: float) -> Markup:
        """Returns the points of the line that shows the best score so far: numbers, which no page may cut as a text."""
        path = [(self.x(0), self.y(best))]
        for each, score in scored:
            path.append((self.x(each.elapsed_s), self.y(best)))
            best = max(best, score)
            path.append((self.x(each.elapsed_s), self.y(best)))
        path.append((self.x(self._end_s), self.y(best)))
        return Markup(" ".join(f"{a},{b}" for a, b in path))
