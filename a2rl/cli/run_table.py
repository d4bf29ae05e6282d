"""The table of `a2rl runs`: which runs it lists, in which order, and its rows."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from a2rl.cli.console import out, print_table
from a2rl.cli.results import run_object, state_of
from a2rl.core.errors import A2rlError, UsageError
from a2rl.results.mirror import behind
from a2rl.run.directory import RunDir

COLUMNS = (
    "run", "suite", "driver", "mode", "seed", "state", "baseline", "result", "gain", "95% interval", "submissions",
    "verdict", "validity", "sandbox",
)  # fmt: skip
NUMBERS = ("seed", "baseline", "result", "gain", "submissions")
ORDERS = ("run", "created", "suite", "task", "agent", "driver", "seed", "gain", "submissions")
"""What runs can be sorted by."""
FILTERS = ("suite", "launch", "task", "agent", "driver", "mode", "state", "verdict", "validity")


class Listed(NamedTuple):
    """A run in the list."""

    run: RunDir
    state: str
    facts: dict[str, Any]
    """The JSON object of the run; empty for one that cannot be read."""


def list_runs(runs: Iterable[RunDir], order: str = "run", reverse: bool = False, **wanted: str | None) -> list[Listed]:
    """Returns the runs that have all wanted values (of `FILTERS`), sorted.

    Runs that cannot be read are at the end; they are left out if anything particular is wanted.

    Raises:
        UsageError: There is no such order.
    """
    if order not in ORDERS:
        raise UsageError(f"runs cannot be sorted by {order!r}: choose one of {', '.join(ORDERS)}")
    filters = {name: value for name, value in wanted.items() if value is not None}
    found = [_listed(run) for run in runs]
    readable = [each for each in found if each.facts and _is_wanted(each, filters)]
    known = [each for each in readable if _value(each, order) is not None]
    known.sort(key=lambda each: _value(each, order), reverse=reverse)
    unknown = [each for each in readable if _value(each, order) is None]
    return [*known, *unknown, *([] if filters else [each for each in found if not each.facts])]


def show_list(found: Iterable[Listed]) -> None:
    """Prints the table."""
    listed = list(found)
    print_table(COLUMNS, [_row(each) for each in listed], right=NUMBERS)
    for each in listed:
        if late := behind(each.run):
            out.print(late, style="yellow", soft_wrap=True, markup=False)


def _listed(run: RunDir) -> Listed:
    try:
        run.check_plain()
        spec = run.spec
        more = {"suite": spec.suite, "driver": spec.driver, "created": spec.created_at}
        return Listed(run, state_of(run), {**run_object(run), **more})
    except A2rlError as error:
        return Listed(run, f"damaged: {error}", {})


def _value(listed: Listed, name: str) -> Any:
    return listed.state if name == "state" else listed.run.id if name == "run" else listed.facts.get(name)


def _is_wanted(listed: Listed, filters: dict[str, str]) -> bool:
    return all(str(_value(listed, name) or "-") == value for name, value in filters.items())


def _row(listed: Listed) -> tuple[str, ...]:
    facts = listed.facts
    if not facts:
        return listed.run.id, "-", "-", "-", "-", listed.state, *["-"] * 8
    ci = f"[{facts['ci'][0]:+.1f}, {facts['ci'][1]:+.1f}]" if facts["ci"] else "-"
    final = facts["private"] if facts["protocol"] == "strict" else facts["best"]
    return (
        listed.run.id,
        facts["suite"],
        facts["driver"] or "-",
        facts["mode"],
        str(facts["seed"]),
        listed.state,
        _figure(facts["baseline"]),
        _figure(final),
        _figure(facts["gain"], "+"),
        ci,
        str(facts["submissions"]),
        "; ".join(filter(None, (facts["verdict"], facts["selection"], facts["sample"]))) or "-",
        facts["validity"] or "-",
        facts["sandbox"] or "-",
    )


def _figure(value: float | None, sign: str = "") -> str:
    return "-" if value is None else f"{value:{sign}.1f}"
