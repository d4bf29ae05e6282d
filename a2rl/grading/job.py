"""One grading job: a checkpoint, a task's hidden data, a split; its result is a file, whole or absent."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from a2rl.catalog import load_grader, load_task
from a2rl.errors import InfrastructureError, UsageError
from a2rl.files import write_model
from a2rl.sampling import Backend, open_sampler
from a2rl.score import ItemResult, TaskScore, summarise
from a2rl.split import split_ids
from a2rl.task import Split, Variant


class GradeJob(BaseModel):
    """What to grade, and where the result goes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    root: Path
    task: str
    variant: Variant
    hidden: Path
    model: Path
    split: Split
    split_seed: int
    limit: int | None = None
    """Only the first so many items."""
    backend: Backend = "transformers"
    exact: bool = False
    result: Path
    log: Path


class GradeResult(BaseModel):
    """A graded checkpoint, item by item."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    score: TaskScore
    items: tuple[ItemResult, ...]

    @classmethod
    def of(cls, items: list[ItemResult], seconds: float) -> "GradeResult":
        return cls(score=summarise(items, seconds), items=tuple(items))


def selected_ids(task: str, hidden: Path, split: Split, split_seed: int, limit: int | None = None) -> list[str]:
    """The ids of the items that a job grades.

    Raises:
        UsageError: the hidden data is not there.
    """
    if not hidden.is_dir():
        raise UsageError(f"the hidden data {hidden} is missing: `a2rl prepare --task {task}` makes it")
    ids = split_ids(load_grader(task).item_ids(hidden), split, split_seed)
    return ids[:limit] if limit else ids


def run_job(job: GradeJob) -> None:
    """Grades and writes the result. A model that cannot be run scores nothing, with the reason; it does not raise."""
    task = load_task(job.task, job.root)
    limits = task.variant(job.variant).limits
    ids = selected_ids(job.task, job.hidden, job.split, job.split_seed, job.limit)
    started = time.monotonic()
    with open_sampler(job.model, job.backend, exact=job.exact) as sampler:
        items = load_grader(job.task).grade(sampler, job.hidden, ids, limits)
    if [item.id for item in items] != ids:
        raise InfrastructureError(f"tasks/{job.task}/grade.py did not answer for every item")
    write_model(job.result, GradeResult.of(items, time.monotonic() - started))


Grade = Callable[[GradeJob], GradeResult]
