"""`a2rl bench --dry-run`: shows the runs of a suite, what they need, and what they can show."""

from collections.abc import Sequence
from typing import Any

from rich.text import Text

from a2rl.cli.console import out, print_json, print_table, say
from a2rl.config.estimate import HOUR_S, Estimate, estimate
from a2rl.config.params import Params
from a2rl.config.plan import cells_of, check_cells, plan_runs
from a2rl.config.suite import SETTINGS, Suite
from a2rl.core.settings import Settings
from a2rl.execution.preflight import CheckResult, examine_runs
from a2rl.run.budget import format_duration
from a2rl.run.disk import format_bytes
from a2rl.run.spec import RunSettings

ALWAYS_SHOWN = ("task", "agent", "budget_s")


def show_dry_run(name: str, suite: Suite, params: Params, settings: Settings, as_json: bool) -> None:
    """Prints what a suite would run, and starts nothing.

    Args:
        as_json: Whether to print everything as JSON, too.

    Raises:
        UsageError: A task or an agent does not exist, or settings contradict each other.
    """
    cells = cells_of(suite, settings)
    agents = check_cells(cells, params, settings)
    cells = [cell.model_copy(update={"driver": cell.driver or agents[cell.agent].driver}) for cell in cells]
    found = estimate(name, suite, settings)
    checks = examine_runs(plan_runs(suite, name, params, settings), settings, lambda check: check.is_free)
    _show_grid(cells)
    _show_totals(found)
    _show_tasks(found)
    _show_checks(checks, len(cells))
    if as_json:
        runs = [cell.model_dump(mode="json", exclude_none=True) for cell in cells]
        shown = [{"check": each.what, "found": each.found, "problem": each.problem} for each in checks]
        print_json(found.model_dump(mode="json") | {"grid": runs, "checks": shown})


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
    if value is None or value == "":
        return "-"
    return format_duration(value) if name.endswith("_s") else str(value)


def _show_totals(found: Estimate) -> None:
    disk = "unknown" if found.disk_bytes is None else f"about {format_bytes(found.disk_bytes)}"
    wall = format_duration(found.wall_hours * HOUR_S)
    shortage = f" But {found.disk_shortage}." if found.disk_shortage else ""
    rows = [
        ("runs", f"{found.runs}, {found.concurrency} at a time"),
        ("agent time", f"{format_duration(found.agent_hours * HOUR_S)}, the sum of the budgets"),
        ("wall time", f"{wall} if each agent uses its whole budget; baselines and grading come on top"),
        ("disk", f"{disk}: {found.disk_explained}{shortage}"),
    ]
    for size in found.models:
        text = "size unknown" if size.bytes is None else f"{format_bytes(size.bytes)}, {size.source}"
        rows.append(("base model", f"{size.model}: {text}"))
    for title, text in rows:
        say(Text.assemble((f"{title:<13}", "bold"), text))
    out.print()


def _show_tasks(found: Estimate) -> None:
    rows = [
        (
            f"{each.task}*" if each.is_approximate else each.task,
            each.variant,
            each.protocol,
            f"{each.items}, {each.sample}" if each.sample else str(each.items),
            _points(each.smallest_gain),
        )
        for each in found.tasks
    ]
    columns = ("task", "variant", "protocol", "items that decide", "smallest gain")
    print_table(columns, rows, right=columns[3:])
    say(
        "Smallest gain: the points over the base model that get the verdict 'improved' at 95% confidence, for one "
        "submission, if no item is lost.",
        style="dim",
    )
    if any(each.is_approximate for each in found.tasks):
        out.print("* A guide only: this task compares win rates, not right and wrong answers.", style="dim")


def _points(gain: float | None) -> str:
    return "none" if gain is None else f"{gain:.1f}"
