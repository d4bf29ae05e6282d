"""Fresh twins of the eval items, on which the final checkpoint is graded once more.

mini: another draw by the task's own generator. full: each problem with other numbers and names, where the task can make
such twins. Nobody could train on them: they are made after the agent has ended, from a seed that is drawn then.
"""

import json
import secrets
import shutil
from pathlib import Path
from typing import NamedTuple

from a2rl.contamination.items import item_texts
from a2rl.core.files import canonical_json
from a2rl.core.settings import Settings
from a2rl.grading.devices import devices_of
from a2rl.grading.job import GradeResult, selected_ids
from a2rl.grading.pool import grade_now
from a2rl.grading.service import grade_job
from a2rl.run.directory import RunDir
from a2rl.run.gpu_share import check_gpus
from a2rl.task_api.catalog import load_preparer, load_twins
from a2rl.task_api.contract import CanonicalPreparer, DrawingPreparer

FOLDER = "twins"
SEED = "seed.txt"
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
    of: tuple[str, ...] | None
    """The ids of the items whose twins they are, in order; None if they are another draw."""


def make_twins(task: str, variant: str, hidden: Path, folder: Path) -> Twins | None:
    """Makes twins of an eval set; None if the task cannot.

    Args:
        task: The task's id.
        variant: Its variant.
        hidden: The grader's data.
        folder: Where to write them. Twins that are there already are used again.
    """
    target, seed_file = folder / "hidden", folder / SEED
    if not seed_file.is_file():
        shutil.rmtree(folder, ignore_errors=True)
        target.mkdir(parents=True)
        seed = secrets.token_hex(16)
        of = _write(task, variant, hidden, seed, target)
        if of == []:
            return None
        (folder / TWIN_OF).write_text(canonical_json(of), encoding="utf-8")
        seed_file.write_text(seed, encoding="utf-8")
    known = json.loads((folder / TWIN_OF).read_text(encoding="utf-8"))
    return Twins(target, seed_file.read_text(encoding="utf-8"), None if known is None else tuple(known))


def _write(task: str, variant: str, hidden: Path, seed: str, target: Path) -> list[str] | None:
    """Writes twins; returns whose twins they are, None for another draw, and nothing if there are none."""
    preparer, module = load_preparer(task), load_twins(task)
    if variant == "mini" and isinstance(preparer, DrawingPreparer):
        preparer.draw(f"{seed}/twins", target)
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


def twins_graded(run: RunDir, twins: Twins, items: int) -> list[str]:
    """Returns the ids of the twins that are looked at: no more than there are eval items."""
    limit = _limit(run.spec.task, twins, items)
    return selected_ids(run.spec.task, twins.hidden, "all", run.spec.split_seed, limit)


def _limit(task: str, twins: Twins, items: int) -> int | None:
    return items if items < len(selected_ids(task, twins.hidden, "all", 0)) else None


def grade_twins(run: RunDir, settings: Settings, model: Path, twins: Twins, items: int, name: str) -> GradeResult:
    """Grades a model on at most `items` twins. An existing grade is reused.

    Raises:
        InfrastructureError: They could not be graded on this machine.
    """
    result = run.grades / f"{name}-twins.json"
    job = grade_job(run, settings.root, model, "all", result).model_copy(
        update={"hidden": twins.hidden, "limit": _limit(run.spec.task, twins, items)}
    )
    return grade_now(job, settings, devices=devices_of(check_gpus(run, settings).all))
