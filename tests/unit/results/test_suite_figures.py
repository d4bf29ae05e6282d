"""Tests the figures over tokens and over model size, and what gains cost."""

import csv
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure as Drawing

from a2rl.core.settings import Settings
from a2rl.llm.relay.request_log import tokens_at_submissions
from a2rl.results.suite.drawing import Bar, draw_bars, styles
from a2rl.results.suite.figures import NAMES, draw_figures, draw_progress
from a2rl.results.suite.files import SuiteReport, write_suite_report
from a2rl.results.suite.leaderboard import boards
from a2rl.results.suite.run_summary import RunSummary, summary_of
from a2rl.run.directory import RunDir
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run
from tests.written_ledger import accepted, entries

Rows = dict[str, list[dict[str, str]]]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return checkout(tmp_path)


def figures(settings: Settings) -> Rows:
    """Returns the values of each figure by its name; each has an SVG file, too."""
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    found = sorted((page.parent / "figures" / "mini").glob("*.csv"))
    assert {path.stem for path in found} <= set(NAMES)
    assert all(path.with_suffix(".svg").exists() for path in found)
    return {path.stem: list(csv.DictReader(path.open())) for path in found}


def test_the_tokens_of_a_submission_come_from_earlier_requests(settings: Settings) -> None:
    run = simulate_run(settings, 1, submissions=3, tokens=1000)
    # The ledger has one entry a second: the baseline, the agent's start, and then three for each submission.
    assert [each.tokens for each in summary_of(run).tries] == [5000, 8000, 11000]
    early = entries(accepted(1, 5.0))  # dated 1970, before any request
    assert tokens_at_submissions(run, early) == {1: 0}
    assert [each.tokens for each in summary_of(simulate_run(settings, 2)).tries] == [None] * 4


def test_scores_over_tokens_reach_the_best_score(settings: Settings) -> None:
    """Runs without a count are left out."""
    counted = simulate_run(settings, 1, agent="counted", tokens=100_000)
    simulate_run(settings, 2, agent="not-counted")
    rows = figures(settings)["best-over-tokens"]
    assert {row["stack"] for row in rows} == {"counted"}
    best = max(each.score for each in summary_of(counted).tries)
    assert float(rows[-1]["median"]) == pytest.approx(best)
    assert float(rows[-1]["at"]) >= max(each.tokens or 0 for each in summary_of(counted).tries) / 1e6


def test_a_run_without_a_baseline_is_no_score_of_zero(settings: Settings) -> None:
    """It failed before its base model was graded."""
    known = summary_of(simulate_run(settings, 1))
    none: dict[str, object] = {"public_baseline": None, "tries": (), "final": None, "gains": (), "verdict": "failed"}
    failed = summary_of(simulate_run(settings, 2, seed=1)).model_copy(update=none)
    [board] = boards([known, failed])
    over_time = next(draw_progress(board, styles(board)))
    assert over_time.rows[0]["lower"] == pytest.approx(known.public_baseline)


def test_each_base_model_has_a_line_of_its_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [summary_of(simulate_run(settings, each, model=f"model-{each % 2}", seed=each)) for each in range(4)]
    changed = [each.model_copy(update={"public_baseline": float(place)}) for place, each in enumerate(runs)]
    drawn: list[float] = []
    monkeypatch.setattr("matplotlib.axes.Axes.axhline", lambda _, y, **__: drawn.append(y))
    [board] = boards(changed)
    next(draw_progress(board, styles(board)))
    assert sorted(drawn) == [1.0, 2.0]


def test_gains_over_model_size_have_a_line_for_each_stack(settings: Settings) -> None:
    """They have a point for each size."""
    for number, model in enumerate(("Qwen/Qwen2.5-7B", "Qwen/Qwen2.5-0.5B", "nameless")):
        simulate_run(settings, number, model=model)
    rows = figures(settings)["scaling"]
    assert [(row["stack"], int(row["parameters"])) for row in rows] == [("noop", 500_000_000), ("noop", 7_000_000_000)]


def test_a_single_size_has_no_figure(settings: Settings) -> None:
    simulate_run(settings, 1, model="Qwen/Qwen2.5-7B")
    assert "scaling" not in figures(settings)


def test_a_run_of_unknown_cost_makes_its_stacks_cost_unknown(settings: Settings) -> None:
    for number, cost in enumerate((1.0, None, 3.0)):
        simulate_run(settings, number, seed=number, cost_usd=cost)
    page = write_suite_report("sim", RunDir.all(settings.runs), settings)
    [standing] = SuiteReport.model_validate_json((page.parent / "report.json").read_text()).standings
    assert (standing.cost_usd, standing.points_per_dollar) == (None, None)


def test_the_gains_of_all_runs_are_divided_by_all_that_they_cost(settings: Settings) -> None:
    runs = [simulate_run(settings, number, seed=number, cost_usd=cost) for number, cost in enumerate((1.0, 3.0))]
    page = write_suite_report("sim", runs, settings)
    [standing] = SuiteReport.model_validate_json((page.parent / "report.json").read_text()).standings
    gain = sum(summary_of(run).gain for run in runs)
    assert standing.points_per_dollar == pytest.approx(gain / 4.0)
    assert standing.points_per_hour == pytest.approx(gain / (2 * 600 / 3600))


def test_the_line_at_zero_does_not_cross_the_names_of_tasks() -> None:
    bars = [Bar("a long name of a group of tasks", stack, stack, 5.0, 1.0, 9.0) for stack in ("one", "other")]
    [axis] = draw_bars(bars, {bar.stack: {"color": "red"} for bar in bars}, "points").axes
    [line] = axis.collections
    assert isinstance(line, LineCollection)
    assert [sorted(segment[:, 1]) for segment in line.get_segments()] == [[0.5, 1.5], [1.5, 2.5]]
    assert axis.get_xlim()[0] < 0


def drawings(runs: Sequence[RunSummary], monkeypatch: pytest.MonkeyPatch) -> dict[str, Drawing]:
    """Returns the drawing of each figure by its name."""
    found: dict[str, Drawing] = {}
    monkeypatch.setattr("a2rl.results.suite.figures.finish", lambda drawing, name, *_: found.update({name: drawing}))
    [board] = boards(runs)
    list(draw_figures(board))
    return found


def changed(run: RunSummary, **changes: Any) -> RunSummary:
    """Returns a run with other settings, as those of `RunSettings`, or of another number of `parameters`."""
    parameters = changes.pop("parameters", run.parameters)
    settings, name = {**run.settings, **changes}, "-".join(map(str, changes.values()))
    return run.model_copy(update={"run_id": name, "settings": settings, "parameters": parameters})


TWELVE = [f"reasoning_gym_fraction_simplification_{place:02}-3f2a91c4" for place in range(12)]


@pytest.mark.parametrize(("tasks", "angle"), [(["gsm8k", "alfworld"], 0.0), (TWELVE, 40.0), (["a" * 300, "b"], 40.0)])
def test_names_of_tasks_wider_than_their_columns_are_turned(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, tasks: list[str], angle: float
) -> None:
    run = summary_of(simulate_run(settings, 1))
    drawing = drawings([changed(run, task=task, agent=each) for task in tasks for each in "xy"], monkeypatch)[
        "stack-by-task"
    ]
    labels = drawing.axes[0].get_xticklabels()
    assert {label.get_rotation() for label in labels} == {angle}
    FigureCanvasAgg(drawing)
    inside = [drawing.bbox.contains(*label.get_window_extent().min) for label in labels]
    assert all(inside) is (len(tasks[0]) < 100)  # there is no room for a name without end, but a figure


def test_names_above_panels_do_not_run_into_each_other(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    run = summary_of(simulate_run(settings, 1))
    drawing = drawings([changed(run, task=task) for task in TWELVE], monkeypatch)["best-over-time"]
    FigureCanvasAgg(drawing)
    boxes = [axis.title.get_window_extent() for axis in drawing.axes]
    assert [axis.get_title() for axis in drawing.axes] == TWELVE
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ((7_615_616_512, 8_190_735_360), ["7.62", "8.19"]),
        ((494_032_768, 7_615_616_512, 8_190_735_360, 70_000_000_000), ["0.494", "7.62", "70"]),
        ((0, 1_000_000_000, 3_000_000_000), ["1", "3"]),
    ],
)
def test_the_axis_of_model_sizes_has_the_sizes_that_occur(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], shown: list[str]
) -> None:
    run = summary_of(simulate_run(settings, 1))
    drawing = drawings([changed(run, model=f"m{size}", parameters=size) for size in sizes], monkeypatch)["scaling"]
    [axis] = drawing.axes
    assert [label.get_text() for label in axis.get_xticklabels()] == shown
