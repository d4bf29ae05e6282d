"""Groups runs by stack (agent, driver and whatever else the runs compare) and task, and estimates each group's gain.

A run without a result counts as a gain of zero. Figures of mini and full variants are never combined. Two stacks are
compared on the tasks that both have runs of.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import combinations, product
from math import isfinite, sqrt
from typing import Any, NamedTuple

from a2rl.core.errors import UsageError
from a2rl.core.files import FrozenModel, canonical_json
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.results.suite.run_summary import RunSummary
from a2rl.run.budget import format_duration
from a2rl.run.records import RunVerdict, sum_known
from a2rl.sampling.generation import Generation
from a2rl.scoring.means import Interval
from a2rl.scoring.seeds import (
    Comparison,
    compare_agents,
    expected_best,
    holm,
    interquartile_mean,
    interval_over_runs,
    mean_gain,
)

NOT_COMPARED = ("agent", "seed", "seed_file", "source", "grading_port")
"""Settings that do not distinguish stacks."""
PLAIN = ("driver", "mode", "model", "protocol")
"""Settings whose values explain themselves, without their names."""
JUDGED_BY = ("model", "annotator", "annotator_digest", "decoding", "base_url", "serve")
"""What the verdicts of a judge depend on."""
FOLLOWS = {
    **dict.fromkeys(Generation.model_fields, ("model", "preset")),
    **dict.fromkeys((f"judge {name}" for name in JUDGED_BY), ("judge",)),
    **dict.fromkeys(("judge", "options"), ("preset",)),
    "trials": ("mode",),
}
"""Settings that follow from others on each task, unless they are given. They count if they differ where those agree."""
SIGNIFICANT = 0.05
MARKS = (
    "*: better than every other stack on the task; †: worse than every other one; ⇅: part of a rank reversal, where of "
    "two stacks one is better on one task and the other on another. All allow for the number of comparisons, and need "
    "two runs of each stack on the same items, under the strict protocol."
)
CHOSEN = (
    "results were chosen on the items that give them (protocol paper), so they cannot be compared item by item; with "
    "--protocol strict, they can"
)
"""Why stacks on the same items are not compared."""
APART = (
    "no finished runs of one task on the same items: start them in one launch, or give the second launch the draw of "
    "the first with --seed-file"
)
"""What stacks have that share no items."""
MOST_RUNS = 32
"""The expected best is computed for at most this number of runs; of more, it hardly rises."""


class Cell(NamedTuple):
    """The runs of one stack on one task."""

    stack: str
    task: str
    runs: tuple[RunSummary, ...]
    gain: float
    """Mean gain in points."""
    ci: Interval
    """Of several runs: over runs and items. Of one run: that of its items."""
    items: frozenset[str]
    """The digests of the items that give its results; empty if no run has one."""
    is_chosen: bool = False
    """Whether a result was chosen by its score on the items that give it."""
    is_best: bool = False
    """Whether it is better than every other stack on this task, corrected for the number of comparisons."""
    is_worst: bool = False
    """The opposite."""
    is_reversed: bool = False
    """Whether it is one side of a rank reversal."""

    @property
    def marks(self) -> str:
        """The signs that stand beside its gain; `MARKS` explains them."""
        return "*" * self.is_best + "†" * self.is_worst + "⇅" * self.is_reversed

    @property
    def verdicts(self) -> dict[RunVerdict, int]:
        """The number of runs with each verdict."""
        return dict(Counter(run.verdict for run in self.runs if run.verdict is not None))

    @property
    def expected_best(self) -> list[float]:
        """The expected best gain of 1, 2, ... runs, up to `MOST_RUNS`."""
        gains = [run.gain for run in self.runs]
        found = [expected_best(gains, count) for count in range(1, min(len(gains), MOST_RUNS) + 1)]
        return [each for each in found if each is not None]


class Standing(FrozenModel):
    """One stack over all its tasks."""

    variant: str
    stack: str
    runs: int
    without_result: int
    """The number of runs that ended without a result."""
    mean_gain: float
    """Mean over tasks of the mean gains."""
    ci: Interval
    iqm: float
    """Interquartile mean of the same."""
    agent_hours: float
    tokens: int | None
    """Of all runs; None if that of one of them is unknown, since that of the others is less."""
    cost_usd: float | None
    """The same of what the driver cost."""
    points_per_hour: float | None
    """Points gained per hour of the agents' time, over all runs."""
    points_per_dollar: float | None
    """Points gained per dollar that the driver cost, over all runs; None if it is unknown or free."""


class Reversal(FrozenModel):
    """Two stacks whose order on one task is not that on another."""

    variant: str
    stack: str
    other: str
    better_on: str
    """The task on which `stack` is better."""
    worse_on: str

    def __str__(self) -> str:
        return f"{self.stack} beats {self.other} on {self.better_on}, not on {self.worse_on}"


class Board(NamedTuple):
    """The comparison of all stacks on one variant."""

    variant: str
    tasks: tuple[str, ...]
    standings: tuple[Standing, ...]
    """The best first. Stacks with results on more tasks come first, because means over different tasks cannot be
    compared."""
    by_place: dict[tuple[str, str], Cell]
    """The cells by stack and task."""
    unfinished: tuple[RunSummary, ...]
    reversals: tuple[Reversal, ...]
    names: dict[str, str]
    """The stack of each run, by run id."""

    @property
    def cells(self) -> list[Cell]:
        """All cells, in the order of stacks and tasks."""
        places = product((each.stack for each in self.standings), self.tasks)
        return [self.by_place[place] for place in places if place in self.by_place]


def boards(runs: Sequence[RunSummary]) -> list[Board]:
    """Returns a board for each variant, full before mini."""
    return [
        _board(each, [run for run in runs if run.variant == each]) for each in sorted({run.variant for run in runs})
    ]


def _board(variant: str, runs: Sequence[RunSummary]) -> Board:
    names = stack_names(runs)
    groups: dict[tuple[str, str], list[RunSummary]] = {}
    for run in runs:
        if run.is_finished:
            groups.setdefault((names[run.run_id], run.task), []).append(run)
    unmarked = [_cell(stack, task, members) for (stack, task), members in groups.items()]
    reversals = tuple(_reversals(variant, unmarked))
    of_stack: dict[str, list[Cell]] = {}
    for cell in _marked(unmarked, reversals):
        of_stack.setdefault(cell.stack, []).append(cell)
    standings = [_standing(variant, stack, cells) for stack, cells in of_stack.items()]
    standings.sort(key=lambda each: (-_tasks_with_result(of_stack[each.stack]), -each.mean_gain))
    return Board(
        variant,
        tasks=tuple(dict.fromkeys(task for _, task in groups)),
        standings=tuple(standings),
        by_place={(cell.stack, cell.task): cell for cells in of_stack.values() for cell in cells},
        unfinished=tuple(run for run in runs if not run.is_finished),
        reversals=reversals,
        names=names,
    )


def stack_names(runs: Sequence[RunSummary]) -> dict[str, str]:
    """Names the stack of each run, by run id: the agent, and each setting that differs within a task."""
    known = {run.run_id: _comparable(run.settings) for run in runs}
    values: dict[tuple[Any, ...], set[Any]] = {}
    for settings in known.values():
        for name, value in settings.items():
            same = ("task", "variant", *FOLLOWS.get(name, ()))
            values.setdefault((name, *(settings.get(each) for each in same)), set()).add(value)
    compared = {name for (name, *_), found in values.items() if len(found) > 1 and name not in NOT_COMPARED}
    return {run_id: _stack_name(settings, compared) for run_id, settings in known.items()}


def _comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings with those of the generation, the judge and vllm one by one, and the judge by its name."""
    judge = settings["judge"] or {}
    parts = {f"judge {name}": judge.get(name) for name in JUDGED_BY} if judge else {}
    if settings["backend"] == "vllm":
        parts |= {f"vllm {name}": value for name, value in settings["vllm"].items()}
    whole = {**settings, "judge": judge.get("name") or judge.get("model"), **parts, **settings["generation"]}
    return {name: _in_words(value) for name, value in whole.items() if name not in ("generation", "vllm")}


def _in_words(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{key} {canonical_json(inner)}" for key, inner in sorted(value.items())) or None
    return canonical_json(value) if isinstance(value, list | tuple) else value


def _stack_name(settings: dict[str, Any], compared: set[str]) -> str:
    parts = [str(settings["agent"])]
    for name, value in settings.items():
        if name in compared and value not in (None, ""):
            label = "" if name in PLAIN else f"{name.removesuffix('_s')} "
            is_plain_time = name.endswith("_s") and float(value).is_integer()  # others stay different when written
            parts.append(f"{label}{format_duration(value) if is_plain_time else value}")
    return printable(scrub(" · ".join(parts)))


def _cell(stack: str, task: str, runs: Sequence[RunSummary]) -> Cell:
    graded = [run for run in runs if run.final is not None]
    items = frozenset(run.items_digest for run in graded)
    # What was chosen by its score on the items that give it cannot be compared item by item.
    is_chosen = any(run.cross_fitted is not None for run in graded)
    if len(runs) == 1 and runs[0].ci is not None:
        ci = runs[0].ci
    elif len(items) == 1 and graded[0].gains and not is_chosen:
        ci = mean_gain(_table(runs, len(graded[0].gains))).ci
    elif not graded:
        ci = Interval(0.0, 0.0)  # a run without a result counts as zero
    else:  # only the differences between runs are known, and the intervals of each
        of_items: dict[str, list[Interval]] = {}
        for run in runs:
            if run.ci is not None:
                of_items.setdefault(run.items_digest, []).append(run.ci)
        ci = interval_over_runs([run.gain for run in runs], list(of_items.values()))
    return Cell(stack, task, tuple(runs), _mean(runs), ci, items, is_chosen)


def _mean(runs: Sequence[RunSummary]) -> float:
    return sum(run.gain for run in runs) / len(runs)


def _table(runs: Sequence[RunSummary], items: int) -> list[tuple[float, ...]]:
    """Returns the gain of each item in each run: zeros for a run without a result."""
    return [(0.0,) * items if run.final is None else run.gains for run in runs]


def _reversals(variant: str, cells: Sequence[Cell]) -> Iterator[Reversal]:
    """Yields the pairs of stacks that differ in opposite directions on two tasks, with Holm's correction for all."""
    of_stack: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        of_stack.setdefault(cell.stack, {})[cell.task] = cell
    compared: dict[tuple[str, str], dict[str, Comparison]] = {}
    for one, other in combinations(of_stack, 2):
        shared = [task for task in of_stack[one] if task in of_stack[other]]
        found = {task: _compare_repeated(of_stack[other][task], of_stack[one][task]) for task in shared}
        compared[one, other] = {task: each for task, each in found.items() if each is not None}
    corrected = holm({(*pair, task): each.p for pair, of_pair in compared.items() for task, each in of_pair.items()})
    for pair, of_pair in compared.items():
        sure = {task: each.points for task, each in of_pair.items() if corrected[*pair, task] < SIGNIFICANT}
        ahead, behind = [task for task in sure if sure[task] > 0], [task for task in sure if sure[task] < 0]
        for better, worse in product(ahead, behind):
            yield Reversal(variant=variant, stack=pair[0], other=pair[1], better_on=better, worse_on=worse)


def _marked(cells: Sequence[Cell], reversals: Sequence[Reversal]) -> list[Cell]:
    """Marks the cells that are better or worse than every other one of their task, and those of rank reversals."""
    best, worst = set(), set()
    for task in {cell.task for cell in cells}:
        first, *rest = sorted((cell for cell in cells if cell.task == task), key=lambda cell: -cell.gain)
        if rest and all(_is_better(first, other, len(rest)) for other in rest):
            best.add((first.stack, task))
        if rest and all(_is_better(other, rest[-1], len(rest)) for other in (first, *rest[:-1])):
            worst.add((rest[-1].stack, task))
    crossed = {
        place for each in reversals for place in product((each.stack, each.other), (each.better_on, each.worse_on))
    }
    return [
        cell._replace(is_best=place in best, is_worst=place in worst, is_reversed=place in crossed)
        for cell in cells
        for place in [(cell.stack, cell.task)]
    ]


def _is_better(one: Cell, other: Cell, comparisons: int) -> bool:
    """Returns whether one cell is better, with Bonferroni's correction for the comparisons with the best."""
    found = _compare_repeated(other, one)
    return found is not None and found.points > 0 and found.p * comparisons < SIGNIFICANT


def _compare_repeated(one: Cell, other: Cell) -> Comparison | None:
    """Compares cells for a mark: a single run does not show how much the runs of its stack differ."""
    found = _compare_cells(one, other)
    return found.difference if found and min(len(found.runs), len(found.other_runs)) > 1 else None


class Compared(NamedTuple):
    """The difference between two cells, and the runs that it is of."""

    difference: Comparison
    runs: list[RunSummary]
    other_runs: list[RunSummary]


def _compare_cells(one: Cell, other: Cell) -> Compared | None:
    """Returns the gain of `other` minus that of `one`, on the items that most runs of both have in common.

    Returns:
        None if they have no items in common, or if results were chosen on the items that give them.
    """
    # A stack without any result has gained nothing on the items of the other.
    shared = (one.items & other.items if one.items and other.items else one.items | other.items) - {""}
    if not shared or one.is_chosen or other.is_chosen:
        return None
    of_launch: dict[str, set[str]] = {}
    for run in (*one.runs, *other.runs):
        of_launch.setdefault(run.launch, set()).update({run.items_digest} - {""})
    pairs = [[_runs_on(items, cell, of_launch) for cell in (one, other)] for items in sorted(shared)]
    left, right = max(pairs, key=lambda pair: (min(map(len, pair)), sum(map(len, pair))))
    if not left or not right:
        return None
    count = max(len(run.gains) for run in (*left, *right))
    return Compared(compare_agents(_table(left, count), _table(right, count)), left, right)


def _runs_on(items: str, cell: Cell, of_launch: Mapping[str, Set[str]]) -> list[RunSummary]:
    """Returns the runs on these items. A run without a result is on those of its launch, or on any if none is known."""
    return [
        run
        for run in cell.runs
        if run.items_digest == items
        or (run.final is None and not run.items_digest and items in (of_launch[run.launch] or {items}))
    ]


def _standing(variant: str, stack: str, cells: Sequence[Cell]) -> Standing:
    mean = sum(cell.gain for cell in cells) / len(cells)
    # The tasks' estimates are independent, so that their squared errors add.
    low = sqrt(sum((cell.gain - cell.ci.low) ** 2 for cell in cells)) / len(cells)
    high = sqrt(sum((cell.ci.high - cell.gain) ** 2 for cell in cells)) / len(cells)
    runs = [run for cell in cells for run in cell.runs]
    gain, hours = sum(run.gain for run in runs), sum(run.agent_s for run in runs) / 3600
    tokens, cost_usd = sum_known(run.tokens for run in runs), sum_known(run.cost_usd for run in runs)
    return Standing(
        variant=variant,
        stack=stack,
        runs=len(runs),
        without_result=sum(run.final is None for run in runs),
        mean_gain=mean,
        ci=Interval(mean - low, mean + high),
        iqm=interquartile_mean([cell.gain for cell in cells]),
        agent_hours=hours,
        tokens=None if tokens is None else int(tokens),
        cost_usd=cost_usd,
        points_per_hour=_ratio(gain, hours),
        points_per_dollar=_ratio(gain, cost_usd),
    )


def _ratio(gain: float, spent: float | None) -> float | None:
    """Returns what was gained for each unit; None if that is unknown, or no number."""
    return gain / spent if spent and isfinite(gain / spent) else None


def _tasks_with_result(cells: Sequence[Cell]) -> int:
    return sum(any(run.final is not None for run in cell.runs) for cell in cells)


class StackComparison(FrozenModel):
    """The difference between two stacks on one task, in points. All figures are of the runs that are compared."""

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
    """The p-value corrected for the number of tasks of the variant (Holm)."""
    runs: int
    other_runs: int
    left_out: int
    """Runs of this stack on other items, which are not compared."""
    other_left_out: int


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
    found = [row for board in shown for row in differences(board, *pair)]
    if found:
        return found
    if any(cell.is_chosen for board in shown for _, *cells in _shared(board, *pair) for cell in cells):
        raise UsageError(f"{pair[0]} and {pair[1]}: {CHOSEN}")
    raise UsageError(f"{pair[0]} and {pair[1]} have {APART}")


def unfinished_of(stacks: Collection[str], runs: Sequence[RunSummary]) -> list[str]:
    """Returns the ids of the runs of some stacks that have not finished, which no comparison counts."""
    shown = boards(runs)
    return [run.run_id for board in shown for run in board.unfinished if board.names[run.run_id] in stacks]


def _stack(name: str, known: Sequence[str]) -> str:
    """Finds a stack by its name or a part of it."""
    if name in known:
        return name
    matching = [each for each in known if name in each]
    if len(matching) != 1:
        problem = f"{name!r} is part of {len(matching)} names" if matching else f"no stack {name!r}"
        choices = ", ".join(matching or known) or "none, because no run has finished"
        raise UsageError(f"{problem}: choose one of {choices}")
    return matching[0]


def differences(board: Board, one: str, other: str) -> list[StackComparison]:
    """Returns the differences between two stacks on the tasks of a board that both have runs of, on the same items.

    If a stack has runs on several draws, only those on one draw are compared.
    """
    rows = []
    for task, left, right in _shared(board, one, other):
        if (found := _compare_cells(left, right)) is None:
            continue
        points, ci, p = found.difference
        rows.append(
            StackComparison(
                variant=board.variant, task=task, stack=one, other=other, gain=_mean(found.runs),
                other_gain=_mean(found.other_runs), difference=points, ci=ci, p=p, holm_p=p, runs=len(found.runs),
                other_runs=len(found.other_runs), left_out=len(left.runs) - len(found.runs),
                other_left_out=len(right.runs) - len(found.other_runs),
            )
        )  # fmt: skip
    corrected = holm({row.task: row.p for row in rows})
    return [row.model_copy(update={"holm_p": corrected[row.task]}) for row in rows]


def _shared(board: Board, one: str, other: str) -> Iterator[tuple[str, Cell, Cell]]:
    """Yields the tasks that two stacks have runs of, with the cells of both."""
    for task in board.tasks:
        left, right = board.by_place.get((one, task)), board.by_place.get((other, task))
        if left is not None and right is not None:
            yield task, left, right
