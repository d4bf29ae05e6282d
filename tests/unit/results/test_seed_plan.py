"""Tests how many seeds are said to show a difference between two stacks."""

import numpy as np
import pytest
from scipy.stats import ttest_ind

from a2rl.cli.dry_run import ASSUMED_DEVIATION, seed_plan
from a2rl.core.settings import Settings
from a2rl.results.suite.run_summary import RunSummary, summaries
from a2rl.run.directory import RunDir
from a2rl.scoring.seeds import MOST_SEEDS, probability_of_difference, seeds_needed
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run


@pytest.mark.parametrize(("deviation", "seeds"), [(5, 6), (10, 17), (20, 64)])
def test_the_seeds_are_those_of_published_tables(deviation: float, seeds: int) -> None:
    assert seeds_needed(10.0, deviation) == seeds  # Cohen 1988, table 2.4.1, for effects of 2, 1 and 0.5


@pytest.mark.parametrize("deviation", [5.0, 12.0])
def test_these_seeds_show_the_difference_in_four_of_five_trials(deviation: float) -> None:
    seeds = seeds_needed(10.0, deviation)
    assert seeds is not None
    gains = np.random.default_rng(0).normal(0, deviation, (2, 4000, seeds)) + np.array([0, 10.0])[:, None, None]
    shown = float(np.mean(ttest_ind(*gains, axis=1).pvalue < 0.05))
    assert shown == pytest.approx(probability_of_difference(seeds, 10.0, deviation), abs=0.03)
    assert shown > 0.78


def test_a_difference_that_is_too_small_has_no_number() -> None:
    assert seeds_needed(0.1, 20.0) is None
    assert probability_of_difference(MOST_SEEDS, 0.1, 20.0) < 0.1


@pytest.fixture
def recorded(tmp_path_factory: pytest.TempPathFactory) -> list[RunSummary]:
    """Two agents, four seeds each, whose gains differ between the agents far more than between the seeds."""
    settings: Settings = checkout(tmp_path_factory.mktemp("checkout"))
    for number in range(8):
        agent, skill = (("strong", 0.9), ("weak", 0.2))[number % 2]
        simulate_run(settings, number, skill=skill, agent=agent, seed=number // 2)
    return summaries(RunDir.all(settings.runs)).runs


def test_the_deviation_is_that_between_runs_of_the_same_stack(recorded: list[RunSummary]) -> None:
    plan = seed_plan("gsm8k", "mini", 10.0, recorded)
    groups = [[run.gain for run in recorded if run.settings["agent"] == name] for name in ("strong", "weak")]
    assert plan.deviation == pytest.approx(np.sqrt(np.mean([np.var(gains, ddof=1) for gains in groups])))
    assert plan.deviation_from == "8 recorded runs"
    assert plan.seeds == seeds_needed(10.0, plan.deviation)


def test_with_too_few_runs_the_deviation_is_a_stated_assumption(recorded: list[RunSummary]) -> None:
    for runs, task in ((recorded[:4], "gsm8k"), (recorded, "humaneval")):
        plan = seed_plan(task, "mini", 10.0, runs)
        assert (plan.deviation, plan.deviation_from) == (ASSUMED_DEVIATION, "assumed")
