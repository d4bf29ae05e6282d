"""One grading job: a checkpoint, a task's hidden data, a split; its result is a file, whole or absent."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict

from a2rl.catalog import load_grader, load_task
from a2rl.errors import InfrastructureError, UsageError
from a2rl.files import write_model
from a2rl.grading.limits import LONGEST_S, GradingLimits
from a2rl.judge.params import JudgeParams, Judging
from a2rl.sampling import Backend, Sampler, open_sampler
from a2rl.score import STATISTICS, ItemResult, Statistics, TaskScore, mean_value, summarise
from a2rl.settings import Settings
from a2rl.split import split_ids
from a2rl.task import HeadlineGrader, JudgedGrader, KindsGrader, Limits, Split, Variant

PROGRESS_EVERY_S = 0.5


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
    statistics: Statistics = STATISTICS
    """Decides how the halves are drawn and which score the items give."""
    limit: int | None = None
    """Only the first so many items."""
    backend: Backend = "transformers"
    exact: bool = False
    options: dict[str, str]
    """Every option of the task."""
    judge: JudgeParams | None = None
    """Who judges the answers; None where nobody has to, or where the task brings its own."""
    result: Path
    log: Path
    time_limit_s: float = LONGEST_S
    """It is ended by force when it has taken so long..."""
    silence_s: float = GradingLimits().silence_s
    """...or has given no sign of life for so long."""


class GradeResult(BaseModel):
    """A graded checkpoint, item by item."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    score: TaskScore
    items: tuple[ItemResult, ...]

    @classmethod
    def of(cls, items: list[ItemResult], seconds: float) -> "GradeResult":
        return cls(score=summarise(items, seconds), items=tuple(items))


def selected_ids(
    task: str,
    hidden: Path,
    split: Split,
    split_seed: int,
    limit: int | None = None,
    statistics: Statistics = STATISTICS,
) -> list[str]:
    """The ids of the items that a job grades.

    Raises:
        UsageError: the hidden data is not there.
    """
    if not hidden.is_dir():
        raise UsageError(f"the hidden data {hidden} is missing: `a2rl prepare --task {task}` makes it")
    grader = load_grader(task)
    kinds = grader.item_kinds(hidden) if isinstance(grader, KindsGrader) else None
    ids = split_ids(grader.item_ids(hidden), split, split_seed, kinds, statistics)
    return ids[:limit] if limit else ids


def run_job(job: GradeJob) -> None:
    """Grades and writes the result. A model that cannot be run scores nothing, with the reason; it does not raise."""
    task = load_task(job.task, job.root)
    limits = task.variant(job.variant).limits
    ids = selected_ids(job.task, job.hidden, job.split, job.split_seed, job.limit, job.statistics)
    started = time.monotonic()
    progress = _Progress(job, len(ids))
    judging = Judging.by(job.judge, Settings.load()) if job.judge else None
    with open_sampler(job.model, job.backend, exact=job.exact, on_end=progress.one_more) as sampler:
        items = _grade(job, sampler, ids, limits, judging)
    if [item.id for item in items] != ids:
        raise InfrastructureError(f"tasks/{job.task}/grade.py did not answer for every item")
    score = score_items(job.task, job.hidden, items, time.monotonic() - started, job.statistics)
    write_model(job.result, GradeResult(score=score, items=tuple(items)))
    progress_file(job).unlink(missing_ok=True)


def _grade(
    job: GradeJob, sampler: Sampler, ids: Sequence[str], limits: Limits, judging: Judging | None
) -> list[ItemResult]:
    grader = load_grader(job.task)
    if judging is None:
        return grader.grade(sampler, job.hidden, ids, limits, job.options)
    return cast(JudgedGrader, grader).grade(sampler, job.hidden, ids, limits, job.options, judging)


def score_items(
    task: str, hidden: Path, items: Sequence[ItemResult], seconds: float = 0.0, statistics: Statistics = STATISTICS
) -> TaskScore:
    """The score of a task's items: by the headline figure that the task defines, else by their mean value."""
    grader = load_grader(task)
    headline = partial(grader.headline, hidden=hidden) if isinstance(grader, HeadlineGrader) else mean_value
    return summarise(items, seconds, headline, statistics)


class _Progress:
    """A file beside the result that says how far the job is, for whoever shows it to a user."""

    def __init__(self, job: GradeJob, total: int) -> None:
        self._file = progress_file(job)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._done, self._total = 0, total
        self._next_write = 0.0

    def one_more(self) -> None:
        self._done = min(self._done + 1, self._total)
        if time.monotonic() >= self._next_write:
            self._next_write = time.monotonic() + PROGRESS_EVERY_S
            self._file.write_text(f"{self._done} {self._total}")


def progress_file(job: GradeJob) -> Path:
    return job.result.with_suffix(".progress")


def progress_of(job: GradeJob) -> tuple[int, int] | None:
    """Items done and items in all; None where nothing is known yet."""
    try:
        done, total = progress_file(job).read_text().split()
    except (FileNotFoundError, ValueError):  # it may be half written
        return None
    return int(done), int(total)


Grade = Callable[[GradeJob], GradeResult]
