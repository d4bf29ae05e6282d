"""Fresh twins of the eval items, on which the final checkpoint is graded once more, and what the comparison shows.

mini: another draw by the task's own generator. full: each problem with other numbers and names, where the task can make
such twins. Nobody could train on them: they are made after the agent has ended, from a seed that is drawn then.
Permutation tests say whether a model is better on the eval items by more than chance explains.
"""

import json
import math
import secrets
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from a2rl.contamination.sources import item_texts
from a2rl.core.files import canonical_json
from a2rl.core.settings import Settings
from a2rl.grading.grades import grade_job, grade_on_all_gpus
from a2rl.grading.job import GradeResult, selected_ids
from a2rl.run.directory import RunDir
from a2rl.task_api.catalog import load_grader, load_preparer, load_twins
from a2rl.task_api.contract import TWINS, CanonicalPreparer, DrawingPreparer

FOLDER = "twins"
SEED_FILE = "seed.txt"
TWIN_OF = "twin_of.json"


class Shared(NamedTuple):
    """Items that a draw has in common with the eval set, but for names. They are on neither side of a comparison.

    So what is compared are two draws without their common part, which are alike if the model has seen neither.
    """

    seen: frozenset[str]
    """Their ids in the eval set."""
    fresh: frozenset[str]
    """Their ids among the twins."""


class Twins(NamedTuple):
    """Fresh items."""

    hidden: Path
    """A folder like the grader's data."""
    seed: str
    of: Mapping[str, str] | None
    """For each of them, by id, the id of the item whose twin it is; None if they are another draw."""


def make_twins(task: str, variant: str, hidden: Path, folder: Path) -> Twins | None:
    """Makes twins of an eval set; None if the task cannot.

    Args:
        folder: Where to write them. Twins that are there already are used again.
    """
    target, seed_file = folder / "hidden", folder / SEED_FILE
    if not seed_file.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        target.mkdir(parents=True)
        seed = secrets.token_hex(16)
        items = _write(task, variant, hidden, seed, target)
        if items == []:
            return None
        (folder / TWIN_OF).write_text(canonical_json(items), encoding="utf-8")
        seed_file.write_text(seed, encoding="utf-8")
    known = json.loads((folder / TWIN_OF).read_text(encoding="utf-8"))
    of = None if known is None else dict(zip(load_grader(task).item_ids(target), known, strict=True))
    return Twins(target, seed_file.read_text(encoding="utf-8"), of)


def _write(task: str, variant: str, hidden: Path, seed: str, target: Path) -> list[str] | None:
    """Writes twins; returns whose twins they are, None for another draw, and nothing if there are none."""
    preparer, module = load_preparer(task), load_twins(task)
    if variant == "mini" and isinstance(preparer, DrawingPreparer):
        preparer.draw(seed + TWINS, target)
        return None
    return module.write_twins(hidden, seed, target) if module is not None else []


def shared_items(task: str, hidden: Path, twins: Twins) -> Shared:
    """Finds the items that another draw has in common with the eval set; twins of single items have none."""
    if twins.of is not None:
        return Shared(frozenset(), frozenset())
    preparer = load_preparer(task)
    canonical = preparer.canonical if isinstance(preparer, CanonicalPreparer) else str
    eval_set, drawn = (
        {each: canonical(text) for each, text in item_texts(folder).items()} for folder in (hidden, twins.hidden)
    )
    both = set(eval_set.values()) & set(drawn.values())
    return Shared(*(frozenset(each for each, text in texts.items() if text in both) for texts in (eval_set, drawn)))


def twins_graded(run: RunDir, twins: Twins, seen: Collection[str]) -> list[str]:
    """Returns the ids of the twins that are looked at: those of the items that were graded, or of another draw as many.

    Args:
        seen: The ids of the items that were graded.
    """
    if twins.of is not None:
        return [twin for twin, item in twins.of.items() if item in seen]
    limit = min(len(seen), len(load_grader(run.spec.task).item_ids(twins.hidden)))
    return selected_ids(run.spec.task, twins.hidden, "all", run.spec.split_seed, limit)


def grade_twins(
    run: RunDir, settings: Settings, model: Path, twins: Twins, ids: Sequence[str], name: str
) -> GradeResult:
    """Grades a model on some twins. An existing grade is reused.

    Raises:
        InfrastructureError: They could not be graded on this machine.
    """
    result = run.grades / f"{name}-twins.json"
    job = grade_job(run, model, "all", result).model_copy(update={"hidden": twins.hidden, "ids": tuple(ids)})
    return grade_on_all_gpus(job, run, settings)


ROUNDS, BATCH = 20_000, 500
SEED = 0
FEWEST = 20
"""With fewer items on one side, nothing is concluded."""


class Gap(NamedTuple):
    """How much better a model is on the eval items."""

    difference: float
    """The mean of the eval items less that of the fresh ones, in the unit of the values."""
    p: float
    """The share of random divisions of all results into two groups that show at least this gap."""
    seen: int
    """The number of eval items."""
    fresh: int
    """The number of fresh items."""

    @property
    def points(self) -> float:
        """The difference in percentage points, for values from 0 to 1."""
        return 100 * self.difference


def gap_between(seen: Mapping[str, float], fresh: Mapping[str, float], of: Mapping[str, str] | None) -> Gap | None:
    """Compares the values of eval items with those of their twins; None if there is too little of either.

    Args:
        of: For each twin, by id, the id of its item; None if they are another draw.
    """
    if of is None:
        enough = min(len(seen), len(fresh)) >= FEWEST
        return unpaired_gap([*seen.values()], [*fresh.values()]) if enough else None
    pairs = [(seen[of[twin]], value) for twin, value in fresh.items() if of[twin] in seen]
    return paired_gap([old for old, _ in pairs], [new for _, new in pairs]) if len(pairs) >= FEWEST else None


def unpaired_gap(seen: Sequence[float], fresh: Sequence[float]) -> Gap:
    """Compares the values of eval items with those of fresh items from the same source.

    Without a leak, the two are draws from one population, so every division of the results is equally likely. If all
    values are 0 or 1, the divisions are counted exactly (Fisher's test); otherwise random ones are tried.
    """
    values = np.asarray([*seen, *fresh], dtype=np.float64)
    observed = float(values[: len(seen)].mean() - values[len(seen) :].mean())
    p = _exact(values, len(seen)) if np.isin(values, (0.0, 1.0)).all() else _sampled(values, len(seen))
    return Gap(observed, p, len(seen), len(fresh))


def _exact(values: NDArray[np.float64], seen: int) -> float:
    from scipy.stats import hypergeom

    return float(hypergeom.sf(values[:seen].sum() - 1, len(values), values.sum(), seen))


def _sampled(values: NDArray[np.float64], seen: int) -> float:
    rng, observed, beyond = np.random.default_rng(SEED), values[:seen].sum(), 0
    for _ in range(ROUNDS // BATCH):
        shuffled = rng.permuted(np.broadcast_to(values, (BATCH, len(values))), axis=1)
        beyond += int((shuffled[:, :seen].sum(axis=1) >= observed - 1e-9).sum())
    return (beyond + 1) / (ROUNDS + 1)


def paired_gap(seen: Sequence[float], fresh: Sequence[float]) -> Gap:
    """Compares each eval item with its own twin.

    Args:
        fresh: The values of their twins, in the same order.
    """
    differences = np.asarray(seen, dtype=np.float64) - np.asarray(fresh, dtype=np.float64)
    observed = float(differences.mean())
    rng = np.random.default_rng(SEED)
    moved = differences[differences != 0]
    sums = rng.choice((-1.0, 1.0), size=(ROUNDS, len(moved))) @ moved
    beyond = int((sums >= moved.sum() - 1e-9).sum())
    return Gap(observed, (beyond + 1) / (ROUNDS + 1), len(seen), len(fresh))


def selection_bonus(tries: int, items: int) -> float:
    """Returns by how many points the best of several equally good tries is expected to be too high, at most.

    Args:
        items: The number of items on which the best was chosen.
    """
    return 100 * 0.5 / math.sqrt(max(1, items)) * math.sqrt(2 * math.log(max(1, tries)))
