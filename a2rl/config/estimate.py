"""Estimates what a suite needs and what it can show, before anything starts: `a2rl bench SUITE --dry-run`."""

import heapq
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Literal

from a2rl.config.plan import cells_of
from a2rl.config.suite import Suite
from a2rl.core.files import StrictModel
from a2rl.core.settings import Settings
from a2rl.models.base_model import local_folder
from a2rl.models.checkpoint import parameters_in_name
from a2rl.models.pretrained import CATALOGUE
from a2rl.run.disk import disk_of_runs, disk_of_suite, suite_shortage
from a2rl.run.ranking import sample_in_words
from a2rl.run.rules import TYPICAL_SUBMISSIONS
from a2rl.run.spec import Protocol, RunSettings
from a2rl.scoring.paired import LEVEL, difference_interval
from a2rl.task_api.catalog import load_task
from a2rl.task_api.contract import Task, Variant

HOUR_S = 3600
BYTES_PER_PARAMETER = 2

SizeSource = Literal["on this machine", "by its name", "unknown"]
DISK_EXPLAINED = (
    "each base model once, for each run the submissions that are kept and as many checkpoints in the agent's workspace "
    "as it submits ({submissions}, unless limited), and what runs at work need besides. Sizes by name: 2 bytes a "
    "parameter."
)


class CheckpointSize(StrictModel):
    """The size of a checkpoint of a base model."""

    model: str
    bytes: int | None
    """None if it is unknown."""
    source: SizeSource


class TaskResolution(StrictModel):
    """The smallest gain that a run of a task can show, in points."""

    task: str
    variant: Variant
    protocol: Protocol
    items: int
    """The number of items that decide: the held-out half under the strict protocol, otherwise all that are graded."""
    sample: str = ""
    """The remark for a sample of the eval set; empty for all of it."""
    smallest_gain: float | None
    """The smallest gain with the verdict `improved`, if no item is lost. None: there are too few items for any gain."""
    is_approximate: bool
    """Whether the task compares other values than right and wrong answers. This figure is then only a guide."""


class Estimate(StrictModel):
    """What a suite needs and what it can show."""

    suite: str
    runs: int
    concurrency: int
    agent_hours: float
    """The sum of the budgets."""
    wall_hours: float
    """The time until the last agent ends, with runs in parallel, if each uses its whole budget. Grading and baselines
    take additional time."""
    disk_bytes: int | None
    """None if the size of a base model is unknown."""
    disk_explained: str
    disk_shortage: str
    """What to do if what is kept may not fit on the disk; empty if it does."""
    models: tuple[CheckpointSize, ...]
    tasks: tuple[TaskResolution, ...]


def estimate(name: str, suite: Suite, settings: Settings) -> Estimate:
    """Estimates what a suite needs. It starts, downloads and installs nothing.

    Raises:
        UsageError: A task does not exist.
    """
    cells = cells_of(suite, settings)
    sizes = {model: model_size(model, settings) for model in dict.fromkeys(cell.model for cell in cells)}
    graded = dict.fromkeys((cell.task, cell.variant, cell.protocol, cell.limit) for cell in cells)
    return Estimate(
        suite=name,
        runs=len(cells),
        concurrency=suite.concurrency,
        agent_hours=sum(cell.budget_s for cell in cells) / HOUR_S,
        wall_hours=_wall_s([cell.budget_s for cell in cells], suite.concurrency) / HOUR_S,
        disk_bytes=_disk_bytes(cells, suite.concurrency, sizes),
        disk_explained=DISK_EXPLAINED.format(submissions=TYPICAL_SUBMISSIONS),
        disk_shortage=disk_shortage(cells, suite.concurrency, settings),
        models=tuple(sizes.values()),
        tasks=tuple(
            resolution(load_task(task, settings.root), variant, protocol, limit)
            for task, variant, protocol, limit in graded
        ),
    )


def _wall_s(budgets_s: Sequence[float], concurrency: int) -> float:
    """Returns the time until all runs have ended, if the longest start first, as in the flow."""
    ends = [0.0] * concurrency
    for budget_s in sorted(budgets_s, reverse=True):
        heapq.heappush(ends, heapq.heappop(ends) + budget_s)
    return max(ends)


def model_size(model: str, settings: Settings) -> CheckpointSize:
    """Returns the size of a base model.

    It is the size of its files if they are on this machine; otherwise it is estimated from the number of parameters in
    its name.
    """
    folder = local_folder(model, settings)
    weights = list(folder.glob("*.safetensors")) if folder is not None else []
    if weights:
        return CheckpointSize(model=model, bytes=sum(path.stat().st_size for path in weights), source="on this machine")
    if model in CATALOGUE:
        return CheckpointSize(model=model, bytes=CATALOGUE[model].weights_bytes, source="by its name")
    parameters = parameters_in_name(model)
    if parameters is None:
        return CheckpointSize(model=model, bytes=None, source="unknown")
    return CheckpointSize(model=model, bytes=parameters * BYTES_PER_PARAMETER, source="by its name")


def _disk_bytes(cells: Sequence[RunSettings], concurrency: int, sizes: dict[str, CheckpointSize]) -> int | None:
    """Returns what base models and runs take together; None if the size of a model is unknown."""
    known = {model: size.bytes for model, size in sizes.items() if size.bytes is not None}
    if len(known) < len(sizes):
        return None
    return sum(known.values()) + disk_of_suite([(cell, known[cell.model]) for cell in cells], concurrency)


def disk_shortage(runs: Iterable[RunSettings], concurrency: int, settings: Settings) -> str:
    """Says what to do if the checkpoints of runs may not fit on the disk together; empty if they do.

    Runs with a base model of unknown size are left out.
    """
    size_of = cache(lambda model: model_size(model, settings).bytes)
    sized = [(run, size) for run in runs if (size := size_of(run.model))]
    return suite_shortage(sized, concurrency, disk_of_runs(settings))


def resolution(task: Task, variant: Variant, protocol: Protocol, limit: int | None = None) -> TaskResolution:
    """Returns the smallest gain that a run of a task can show, by the test that decides the verdict.

    It is valid for one submission. Under the paper protocol, more submissions make it larger, because the best of them
    is chosen on the same items.
    """
    whole = task.variant(variant).eval_items
    items = limit or whole
    if protocol == "strict":
        items -= items // 2
    return TaskResolution(
        task=task.id,
        variant=variant,
        protocol=protocol,
        items=items,
        sample=sample_in_words(limit, whole),
        smallest_gain=smallest_gain(items),
        is_approximate=task.level == 2,
    )


@lru_cache
def smallest_gain(items: int) -> float | None:
    """Returns the smallest gain in points that the test distinguishes from chance, if no item is lost.

    It is None if the test cannot distinguish even the largest gain from chance.
    """
    for gained in range(1, items + 1):
        differences = [1.0] * gained + [0.0] * (items - gained)
        if difference_interval(differences, LEVEL).low > 0:
            return 100 * gained / items
    return None
