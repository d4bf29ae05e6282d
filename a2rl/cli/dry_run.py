"""`a2rl bench --dry-run`: shows the runs of a suite, what they need, and what they can show.

How many seeds a suite needs to show a difference between two stacks follows from the runs of this checkout, if it has
any.
"""

from collections.abc import Sequence
from math import sqrt
from typing import Any

from pydantic import BaseModel, ConfigDict
from rich.text import Text

from a2rl.cli.console import out, print_json, print_table, say
from a2rl.config.estimate import LOST_SHARE, Estimate, estimate
from a2rl.config.params import Params
from a2rl.config.plan import cells_of, check_cells, plan_runs
from a2rl.config.suite import SETTINGS, Suite
from a2rl.core.settings import Settings
from a2rl.execution.preflight import CheckResult, examine_runs
from a2rl.results.suite.leaderboard import boards
from a2rl.results.suite.run_summary import RunSummary, summaries
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSettings
from a2rl.scoring.seeds import MOST_SEEDS, POWER, seeds_needed
from a2rl.task_api.contract import Variant

ASSUMED_DEVIATION = 10.0
"""The standard deviation between runs, in points, where too few are recorded. An assumption: 5 to 20 are common."""
FEWEST_FREEDOM = 4
"""A recorded deviation counts if it rests on this many runs besides the first of each stack."""


class SeedPlan(BaseModel):
    """The number of seeds for one task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    difference: float
    """Points between the mean gains of two stacks."""
    deviation: float
    """The standard deviation of the gains of one stack's runs, in points."""
    deviation_from: str
    """Where it is from, in words."""
    seeds: int | None
    """The number of runs of each stack; None if more than a thousand are needed."""


def seed_plan(task: str, variant: Variant, difference: float, recorded: Sequence[RunSummary]) -> SeedPlan:
    """Returns how many seeds show a difference with a probability of 80%, at 95% confidence, on the same items.

    Args:
        difference: The true difference between two stacks, in points; positive.
        recorded: Runs of any task.
    """
    deviation, source = _deviation(task, variant, recorded)
    return SeedPlan(
        difference=difference, deviation=deviation, deviation_from=source, seeds=seeds_needed(difference, deviation)
    )


def _deviation(task: str, variant: Variant, recorded: Sequence[RunSummary]) -> tuple[float, str]:
    """Returns the standard deviation within stacks, pooled over the stacks, and where it is from."""
    runs = [run for run in recorded if run.task == task and run.variant == variant and run.is_finished]
    groups = [[run.gain for run in cell.runs] for board in boards(runs) for cell in board.cells]
    freedom = sum(len(gains) - 1 for gains in groups)
    squares = sum((gain - sum(gains) / len(gains)) ** 2 for gains in groups for gain in gains)
    if freedom < FEWEST_FREEDOM or squares == 0:
        return ASSUMED_DEVIATION, "assumed"
    return sqrt(squares / freedom), f"{sum(len(gains) for gains in groups)} recorded runs"


ALWAYS_SHOWN = ("task", "agent", "budget_s")
GIB = 2**30


def show_dry_run(name: str, suite: Suite, params: Params, settings: Settings, difference: float, as_json: bool) -> None:
    """Prints what a suite would run, and starts nothing.

    Args:
        difference: The difference between two stacks for which seeds are counted, in points.
        as_json: Whether to print everything as JSON, too.

    Raises:
        UsageError: A task or an agent does not exist, or settings contradict each other.
    """
    cells = cells_of(suite, settings)
    agents = check_cells(cells, params, settings)
    cells = [cell.model_copy(update={"driver": cell.driver or agents[cell.agent].driver}) for cell in cells]
    found = estimate(name, suite, settings)
    checks = examine_runs(plan_runs(suite, name, params, settings), settings, only_free=True)
    _show_grid(cells)
    _show_totals(found)
    _show_tasks(found)
    recorded = summaries(RunDir.all(settings.runs)).runs
    plans = [seed_plan(each.task, each.variant, difference, recorded) for each in found.tasks]
    _show_seeds(found, plans)
    _show_checks(checks, len(cells))
    if as_json:
        runs = [cell.model_dump(mode="json", exclude_none=True) for cell in cells]
        shown = [{"check": each.what, "found": each.found, "problem": each.problem} for each in checks]
        tasks = [
            {**task.model_dump(mode="json"), "seeds": plan.model_dump(mode="json")}
            for task, plan in zip(found.tasks, plans, strict=True)
        ]
        print_json(found.model_dump(mode="json") | {"tasks": tasks, "grid": runs, "checks": shown})


def _show_checks(checks: Sequence[CheckResult], runs: int) -> None:
    """Prints the checks that are made before the first run starts, as far as they are free."""
    out.print()
    rows = [
        (each.what, f"{len(each.runs)} of {runs}", f"PROBLEM: {each.problem}" if each.problem else each.found)
        for each in checks
    ]
    print_table(("checked before the start", "runs", "found"), rows, right=("runs",))
    out.print("Judges and search engines are asked at the start; here, only their keys are checked.", style="dim")


def _show_grid(cells: Sequence[RunSettings]) -> None:
    """Prints the settings that all runs share, and then one row for each group of runs that differ only in the seed."""
    seeds: dict[tuple[str, ...], list[str]] = {}
    names = [each.name for each in SETTINGS if each.name != "seed"]
    for cell in cells:
        seeds.setdefault(tuple(_shown(name, getattr(cell, name)) for name in names), []).append(str(cell.seed))
    values = {name: {row[place] for row in seeds} for place, name in enumerate(names)}
    columns = [name for name in names if name in ALWAYS_SHOWN or len(values[name]) > 1]
    common = [f"{name} {next(iter(values[name]))}" for name in names if name not in columns and values[name] != {"-"}]
    say(f"All runs have: {', '.join(common)}.")
    titles = [name.removesuffix("_s") for name in columns]
    rows = [[*(row[names.index(name)] for name in columns), ", ".join(each)] for row, each in seeds.items()]
    print_table((*titles, "seeds"), rows, right=("budget",))
    out.print()


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    return format_duration(value) if name.endswith("_s") else str(value)


def _show_totals(found: Estimate) -> None:
    disk = "unknown" if found.disk_bytes is None else f"about {found.disk_bytes / GIB:,.1f} GiB"
    rows = [
        ("runs", f"{found.runs}, {found.concurrency} at a time"),
        ("agent hours", f"{found.agent_hours:,.1f}, the sum of the budgets"),
        ("wall hours", f"{found.wall_hours:,.1f} at least; baselines and grading come on top"),
        ("disk", f"{disk}: {found.disk_explained}"),
        ("store", f"{_store(found)}: with A2RL_STORE, the submissions that --keep keeps, and nothing of the workspace"),
    ]
    for size in found.models:
        gib = "size unknown" if size.bytes is None else f"{size.bytes / GIB:,.2f} GiB, {size.source}"
        rows.append(("base model", f"{size.model}: {gib}"))
    for title, text in rows:
        say(Text.assemble((f"{title:<13}", "bold"), text))
    out.print()


def _store(found: Estimate) -> str:
    if found.store_bytes is None:
        return "unknown"
    total, each = found.store_bytes / GIB, found.store_bytes / found.runs / GIB
    return f"at most about {total:,.2f} GiB, {each:,.2f} GiB a run"


def _show_tasks(found: Estimate) -> None:
    rows = [
        (
            f"{each.task}*" if each.is_approximate else each.task,
            each.variant,
            each.protocol,
            f"{each.items}, {each.sample}" if each.sample else str(each.items),
            _points(each.smallest_gain),
            _points(each.likely_gain),
        )
        for each in found.tasks
    ]
    likely = f"gain shown in {POWER:.0%} of runs"
    columns = ("task", "variant", "protocol", "items that decide", "smallest gain", likely)
    print_table(columns, rows, right=columns[3:])
    say(
        "Gains are in points over the base model, at 95% confidence, for one submission. Smallest gain: the least that "
        f"gets the verdict 'improved', if no item is lost. Gain shown in {POWER:.0%} of runs: the true gain that gets "
        f"this verdict in {POWER:.0%} of runs, if training loses {LOST_SHARE:.0%} of the items.",
        style="dim",
    )
    if any(each.is_approximate for each in found.tasks):
        out.print("* A guide only: this task compares win rates, not right and wrong answers.", style="dim")


def _show_seeds(found: Estimate, plans: Sequence[SeedPlan]) -> None:
    out.print()
    rows = {
        (
            task.task, task.variant, f"{plan.difference:g}", f"{plan.deviation:.1f}, {plan.deviation_from}",
            f"more than {MOST_SEEDS:,}" if plan.seeds is None else str(plan.seeds),
        ): None
        for task, plan in zip(found.tasks, plans, strict=True)
    }  # fmt: skip
    columns = ("task", "variant", "points between two stacks", "deviation between runs", "seeds for each stack")
    print_table(columns, rows, right=("points between two stacks", "seeds for each stack"))
    say(
        f"Seeds for each stack: with so many, a true difference of this size is shown in {POWER:.0%} of cases, at 95% "
        "confidence, on the same items. `a2rl compare` also allows for the choice of the items, which more seeds do "
        "not make smaller. Another difference: --difference.",
        style="dim",
    )


def _points(gain: float | None) -> str:
    return "none" if gain is None else f"{gain:.1f}"
