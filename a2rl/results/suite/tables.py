"""The tables of a board, which the report over many runs, a leaderboard, Prefect's pages and the terminal show."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from a2rl.results.suite.leaderboard import Board, StackComparison, differences
from a2rl.results.suite.leaderboard import Cell as Runs
from a2rl.results.suite.run_summary import RunSummary
from a2rl.results.table import NOTHING, Cell, Table, dollars, interval, points
from a2rl.run.budget import format_duration
from a2rl.run.records import VERDICTS, sum_known

MOST_COMPARED = 40
"""Stacks that are compared in pairs on a page: those with the most tasks, then the best ones."""
MAX_REASON = 200
NO_LINKS: Mapping[str, str] = {}


def standings(board: Board) -> Table:
    """Returns the gains of each stack, over all tasks and on each."""
    return Table(
        f"standings-{board.variant}",
        ("stack", "mean gain", "95% interval", *board.tasks),
        tuple(
            (
                Cell(each.stack), Cell(points(each.mean_gain, "+")), Cell(interval(each.ci, "+")),
                *(_gain(board.by_place.get((each.stack, task))) for task in board.tasks),
            )
            for each in board.standings
        ),
        right=("mean gain", *board.tasks),
    )  # fmt: skip


def _gain(cell: Runs | None) -> Cell:
    if cell is None:
        return Cell(NOTHING)
    about = f"95% interval {interval(cell.ci, '+')}, {len(cell.runs)} runs"
    return Cell(f"{points(cell.gain, '+')}{cell.marks}", title=about)


def costs(board: Board) -> Table:
    """Returns what the runs of each stack cost."""
    columns = ("runs", "without a result", "agent hours", "tokens", "cost", "points per hour", "points per dollar")
    return Table(
        f"costs-{board.variant}",
        ("stack", *columns),
        tuple(
            (
                Cell(each.stack), Cell(str(each.runs)), Cell(str(each.without_result or NOTHING)),
                Cell(f"{each.agent_hours:,.2f}"), Cell(NOTHING if each.tokens is None else f"{each.tokens:,}"),
                Cell(dollars(each.cost_usd)), Cell(points(each.points_per_hour)),
                Cell(NOTHING if each.points_per_dollar is None else f"{each.points_per_dollar:.2f}"),
            )
            for each in board.standings
        ),
        right=columns,
    )  # fmt: skip


def results(board: Board) -> Table:
    """Returns one row for each stack and task, with the gain over its runs."""
    signed = any(run.signed_by for run in _runs(board))
    return Table(
        f"results-{board.variant}",
        ("task", "stack", "gain", "95% interval", "runs", "driver", "protocol", "cost", "validity",
         *(("signed by",) if signed else ())),
        tuple(
            (
                Cell(cell.task), Cell(cell.stack, look="wrap"),
                Cell(f"{points(cell.gain, '+')}{cell.marks}", order=cell.gain), Cell(interval(cell.ci, "+")),
                Cell(str(len(cell.runs))), _of(cell, "driver"), _of(cell, "protocol"),
                Cell(dollars(cost), order=cost), _validity(cell),
                *((Cell(", ".join(sorted({run.signed_by for run in cell.runs})), look="name"),) if signed else ()),
            )
            for cell in sorted(board.cells, key=lambda cell: (cell.task, -cell.gain))
            for cost in [sum_known(run.cost_usd for run in cell.runs)]
        ),
        right=("gain", "runs", "cost"),
        filters=_unfiltered("task", "driver", "protocol", "validity", *(("signed by",) if signed else ())),
    )  # fmt: skip


def _of(cell: Runs, setting: str) -> Cell:
    """Returns the values of a setting that a stack's runs have on a task."""
    return Cell(", ".join(sorted({str(run.settings[setting] or NOTHING) for run in cell.runs})), look="name")


def _validity(cell: Runs) -> Cell:
    counts = Counter(run.validity or "not decided" for run in cell.runs)
    words = ", ".join(word if len(counts) == 1 else f"{count} {word}" for word, count in counts.most_common())
    worst = next((word for word in ("void", "flagged") if word in counts), "valid")
    return Cell(words, look=f"validity-{worst}")


def runs(board: Board, links: Mapping[str, str] = NO_LINKS) -> Table:
    """Returns one row for each run.

    Args:
        links: The pages of the runs, by run id.
    """
    signed = any(run.signed_by for run in _runs(board))
    shown = [(cell.stack, run) for cell in board.cells for run in cell.runs]
    shown += [(board.names[run.run_id], run) for run in board.unfinished]
    return Table(
        f"runs-{board.variant}",
        ("run", "task", "stack", "seed", "verdict", "validity", "gain", "95% interval", "final", "route", "failures",
         "submissions", "agent time", *(("signed by", "graded anew") if signed else ()), "reason"),
        tuple(
            (
                Cell(run.run_id, link=links.get(run.run_id, "")), Cell(run.task), Cell(stack, look="wrap"),
                Cell(str(run.settings["seed"])), *_outcome(run), Cell(" > ".join(run.route) or NOTHING),
                Cell(", ".join(run.failures)), Cell(str(run.submissions)),
                Cell(format_duration(run.agent_s) if run.is_finished else "", order=run.agent_s),
                *((Cell(run.signed_by), Cell("yes" if run.graded_anew else "no")) if signed else ()),
                Cell(run.reason[:MAX_REASON], look="wrap"),
            )
            for stack, run in shown
        ),
        right=("seed", "gain", "final", "submissions"),
        filters=_unfiltered("task", "verdict", "validity", "route", *(("signed by", "graded anew") if signed else ())),
    )  # fmt: skip


def _outcome(run: RunSummary) -> tuple[Cell, ...]:
    """Returns the cells from the verdict to the final score."""
    if run.verdict is None:
        return Cell("not finished"), *(Cell(),) * 4
    word = run.validity or "unknown"
    return (
        Cell(run.verdict, title=VERDICTS[run.verdict], look=run.verdict),
        Cell(run.validity or NOTHING, look=f"validity-{word.replace(' ', '-')}"),
        Cell(points(run.gain, "+"), order=run.gain),
        Cell(interval(run.ci, "+")),
        Cell(points(run.final)),
    )


def comparison(name: str, rows: Iterable[StackComparison], chosen: Sequence[str] = ("", "")) -> Table:
    """Returns one row for each difference between two stacks on a task.

    Args:
        chosen: The two stacks that a page shows at first.
    """
    return Table(
        name,
        ("variant", "task", "stack", "other stack", "gain", "other's gain", "difference", "95% interval", "p, Holm",
         "runs"),
        tuple(
            (
                Cell(row.variant), Cell(row.task), Cell(row.stack, look="wrap"), Cell(row.other, look="wrap"),
                Cell(points(row.gain, "+")), Cell(points(row.other_gain, "+")), Cell(points(row.difference, "+")),
                Cell(interval(row.ci, "+")), Cell(f"{row.holm_p:.2g}"), Cell(_used(row)),
            )
            for row in rows
        ),
        right=("gain", "other's gain", "difference", "p, Holm"),
        filters=(("stack", chosen[0]), ("other stack", chosen[1])),
    )  # fmt: skip


def _used(row: StackComparison) -> str:
    """Returns how many runs of both stacks are compared, and of how many if some are left out."""
    both = ((row.runs, row.left_out), (row.other_runs, row.other_left_out))
    return " and ".join(f"{runs} of {runs + left_out}" if left_out else f"{runs}" for runs, left_out in both)


def comparisons(board: Board) -> Table:
    """Returns the differences between any two stacks of a board; each pair is there in both orders."""
    stacks = [each.stack for each in board.standings[:MOST_COMPARED]]
    rows = [row for one, other in permutations(stacks, 2) for row in differences(board, one, other)]
    chosen = (rows[0].stack, rows[0].other) if rows else ("", "")
    return comparison(f"comparisons-{board.variant}", rows, chosen)


def left_out(reasons: Mapping[str, str]) -> Table:
    """Returns what is not in a report, with the reason."""
    rows = tuple((Cell(name, look="wrap"), Cell(why, look="wrap")) for name, why in reasons.items())
    return Table("left-out", ("what", "why"), rows)


def _runs(board: Board) -> list[RunSummary]:
    return [run for cell in board.cells for run in cell.runs]


def _unfiltered(*columns: str) -> tuple[tuple[str, str], ...]:
    return tuple((column, "") for column in columns)
