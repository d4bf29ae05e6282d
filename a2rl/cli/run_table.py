"""The table of `a2rl runs`: which runs it lists, in which order, and its rows."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from a2rl.cli.console import out, print_table
from a2rl.cli.results import run_object, state_of
from a2rl.core.errors import A2rlError, UsageError
from a2rl.results.mirror import behind
from a2rl.run.directory import RunDir

ORDERS = ("run", "created", "suite", "task", "agent", "driver", "seed", "gain", "submissions")
"""What runs can be sorted by."""


class ListedRun(NamedTuple):
    """A run in the list."""

    run: RunDir
    state: str
    facts: dict[str, Any]
    """The JSON object of the run; empty for one that cannot be read."""


class Column(NamedTuple):
    """A column of the table."""

    title: str
    text: Callable[[dict[str, Any]], str | None]
    """Takes the facts of a run; what is empty is shown as a dash."""
    is_number: bool = False


def _figure(value: float | None, sign: str = "") -> str | None:
    return None if value is None else f"{value:{sign}.1f}"


COLUMNS = (
    Column("suite", lambda run: run["suite"]),
    Column("driver", lambda run: run["driver"]),
    Column("mode", lambda run: run["mode"]),
    Column("seed", lambda run: str(run["seed"]), is_number=True),
    Column("state", lambda run: run["state"]),
    Column("baseline", lambda run: _figure(run["baseline"]), is_number=True),
    Column("result", lambda run: _figure(run["private" if run["protocol"] == "strict" else "best"]), is_number=True),
    Column("gain", lambda run: _figure(run["gain"], "+"), is_number=True),
    Column("95% interval", lambda run: run["ci"] and f"[{run['ci'][0]:+.1f}, {run['ci'][1]:+.1f}]"),
    Column("submissions", lambda run: str(run["submissions"]), is_number=True),
    Column("verdict", lambda run: "; ".join(filter(None, (run["verdict"], run["selection"], run["sample"])))),
    Column("validity", lambda run: run["validity"]),
    Column("sandbox", lambda run: run["sandbox"]),
)


def list_runs(
    runs: Iterable[RunDir], order: str = "run", reverse: bool = False, **wanted: str | None
) -> list[ListedRun]:
    """Returns the runs that have all wanted values, sorted.

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


def show_list(found: Iterable[ListedRun]) -> None:
    """Prints the table."""
    listed = list(found)
    titles = ("run", *(column.title for column in COLUMNS))
    numbers = [column.title for column in COLUMNS if column.is_number]
    print_table(titles, [_row(each) for each in listed], right=numbers)
    for each in listed:
        if late := behind(each.run):
            out.print(late, style="yellow", soft_wrap=True, markup=False)


def _listed(run: RunDir) -> ListedRun:
    try:
        run.check_plain()
        spec = run.spec
        more = {"suite": spec.suite, "driver": spec.driver, "created": spec.created_at}
        return ListedRun(run, state_of(run), {**run_object(run), **more})
    except A2rlError as error:
        return ListedRun(run, f"damaged: {error}", {})


def _value(listed: ListedRun, name: str) -> Any:
    return listed.state if name == "state" else listed.run.id if name == "run" else listed.facts.get(name)


def _is_wanted(listed: ListedRun, filters: dict[str, str]) -> bool:
    return all(str(_value(listed, name) or "-") == value for name, value in filters.items())


def _row(listed: ListedRun) -> tuple[str, ...]:
    if not listed.facts:
        return listed.run.id, *(listed.state if column.title == "state" else "-" for column in COLUMNS)
    facts = {**listed.facts, "state": listed.state}
    return listed.run.id, *(column.text(facts) or "-" for column in COLUMNS)
