"""Compares two stacks on the tasks that both have runs of."""

from collections.abc import Sequence

from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import UsageError
from a2rl.results.suite.leaderboard import Board, Standing, boards, compare_cells
from a2rl.results.suite.run_summary import RunSummary
from a2rl.scoring.means import Interval
from a2rl.scoring.seeds import holm


class StackComparison(BaseModel):
    """The difference between two stacks on one task, in points."""

    model_config = ConfigDict(frozen=True)

    variant: str
    task: str
    stack: str
    other: str
    gain: float
    other_gain: float
    difference: float
    """The other stack's gain minus this one's."""
    ci: Interval
    p: float
    holm_p: float
    """The p-value corrected for the number of tasks (Holm)."""
    runs: int
    other_runs: int


def compare_stacks(one: str, other: str, runs: Sequence[RunSummary]) -> list[StackComparison]:
    """Returns the differences between two stacks, given by their names or unambiguous parts of them.

    Raises:
        UsageError: There is no such stack, more than one, or no task that both were run on with the same items.
    """
    shown = boards(runs)
    names = list(dict.fromkeys(each.stack for board in shown for each in board.standings))
    pair = _stack(one, names), _stack(other, names)
    if pair[0] == pair[1]:
        raise UsageError(f"{one!r} and {other!r} are both the stack {pair[0]!r}: name two of {', '.join(names)}")
    found = [row for board in shown for row in _rows(board, *pair)]
    if not found:
        raise UsageError(
            f"{pair[0]} and {pair[1]} have no finished runs of one task on the same items: "
            "start both in one suite, or give the second the draw of the first with --seed-file"
        )
    corrected = holm({f"{row.variant} {row.task}": row.p for row in found})
    return [row.model_copy(update={"holm_p": corrected[f"{row.variant} {row.task}"]}) for row in found]


def _stack(name: str, known: Sequence[str]) -> str:
    """Finds a stack by its name or a part of it."""
    if name in known:
        return name
    matching = [each for each in known if name in each]
    if len(matching) != 1:
        problem = f"{name!r} is part of {len(matching)} names" if matching else f"no stack {name!r}"
        raise UsageError(f"{problem}: choose one of {', '.join(known) or 'none, because no run has finished'}")
    return matching[0]


def _rows(board: Board, one: str, other: str) -> list[StackComparison]:
    by_name: dict[str, Standing] = {each.stack: each for each in board.standings}
    if one not in by_name or other not in by_name:
        return []
    rows = []
    for task in board.tasks:
        left, right = by_name[one].cells.get(task), by_name[other].cells.get(task)
        if left is None or right is None or (found := compare_cells(left, right)) is None:
            continue
        rows.append(
            StackComparison(
                variant=board.variant, task=task, stack=one, other=other, gain=left.gain, other_gain=right.gain,
                difference=found.points, ci=found.ci, p=found.p, holm_p=found.p, runs=len(left.runs),
                other_runs=len(right.runs),
            )
        )  # fmt: skip
    return rows
