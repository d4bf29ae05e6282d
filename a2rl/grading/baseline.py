"""Baselines: the scores of base models, graded once and stored under a key of everything that they depend on."""

from collections.abc import Callable, Sequence
from math import isclose
from pathlib import Path
from typing import Literal, NamedTuple

from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.core.files import StrictModel, digest_of, read_jsonl, read_model, write_atomically, write_jsonl, write_model
from a2rl.core.locks import file_lock
from a2rl.core.settings import Settings
from a2rl.grading.dependencies import SAMPLE
from a2rl.grading.job import Grade, GradeJob, GradeResult, ids_of_job, score_items
from a2rl.grading.outputs import BASELINE_NAME, keep_copy, outputs_path
from a2rl.scoring.score import ItemResult

GRADING_TIMEOUT_S = 12 * 3600.0
"""How long to wait while another run grades the same baseline. Grading a base model on one device takes less than this
for every task."""

SECONDS = "seconds.txt"
"""The file with the grading time; it depends on the machine, so it is the only file of a baseline without a version."""


class BaselineMetrics(StrictModel):
    """`score.json`: the figures that `dvc metrics` shows and compares."""

    score: float
    ci_low: float
    ci_high: float
    total: int
    correct: int
    wrong: int
    truncated: int
    errored: int


class BaselineKey(StrictModel):
    """`key.json`: the key of a baseline. It is written last, so its existence means that the baseline is complete."""

    schema_version: Literal[1] = 1
    key: str
    depends_on: dict[str, str]


class StoredBaseline(NamedTuple):
    """A baseline's items, whether they were stored before, and how many seconds grading took."""

    items: list[ItemResult]
    reused: bool
    seconds: float | None
    outputs: Path | None = None
    """The file with what the model answered in full; None if it was graded by a version that did not keep it."""


def load_or_grade(
    job: GradeJob,
    depends_on: dict[str, str],
    settings: Settings,
    grade: Grade,
    problem: Callable[[Sequence[ItemResult]], str] = lambda _: "",
) -> StoredBaseline:
    """Returns the baseline under this key: a stored one, or a new one that is graded and stored now.

    A stored baseline of the whole eval set also serves for a sample of it: the sample's items are taken from it.

    If several runs start at the same time, one grades the baseline and the others wait for it.

    Args:
        problem: Says why a baseline with these items is of no use, so that it is graded again; empty if it is.

    Raises:
        InterruptedByUserError: The user stopped the pipeline while another run graded it.
        InfrastructureError: It could not be graded. A failed baseline is never stored, in particular not as zero.
    """
    key = digest_of(depends_on)
    folder = settings.baselines / "cache" / key[:16]

    def usable() -> StoredBaseline | None:
        found = _stored(job, depends_on, settings.baselines)
        return None if found is None or problem(found.items) else found

    if (found := usable()) is not None:
        return found
    with file_lock(folder.with_name(f".{folder.name}.lock"), "another run grades the same baseline", GRADING_TIMEOUT_S):
        if (found := usable()) is not None:
            return found
        result = grade(job)
        if why := result.score.reason or problem(result.items):
            job.result.unlink(missing_ok=True)  # another try grades again; what was judged is in the judge's cache
            raise InfrastructureError(f"the baseline could not be graded: {why}")
        store(folder, depends_on, result)
        outputs = keep_copy(outputs_path(job.result), folder / BASELINE_NAME)
    return StoredBaseline(list(result.items), False, result.score.seconds, outputs)


def store(folder: Path, depends_on: dict[str, str], result: GradeResult) -> BaselineMetrics:
    """Writes a baseline's files.

    Raises:
        InfrastructureError: The result has no score.
    """
    score = result.score
    if score.score is None or score.ci is None:
        raise InfrastructureError(f"the baseline could not be graded: {score.reason}")
    counts = {name: getattr(score, name) for name in ("total", "correct", "wrong", "truncated", "errored")}
    metrics = BaselineMetrics(score=score.score, ci_low=score.ci.low, ci_high=score.ci.high, **counts)
    write_jsonl(folder / "items.jsonl", (item.model_dump() for item in result.items))
    write_model(folder / "score.json", metrics)
    write_atomically(folder / SECONDS, f"{score.seconds}\n")
    write_model(folder / "key.json", BaselineKey(key=digest_of(depends_on), depends_on=depends_on))
    return metrics


def _stored(job: GradeJob, depends_on: dict[str, str], baselines: Path) -> StoredBaseline | None:
    """Returns the stored baseline under this key, or that of the whole eval set, reduced to the sample."""
    found = _find(job, digest_of(depends_on), baselines)
    if found is not None or SAMPLE not in depends_on:
        return found
    of_all = digest_of({name: value for name, value in depends_on.items() if name != SAMPLE})
    if (whole := _find(job, of_all, baselines)) is None:
        return None
    ids = set(ids_of_job(job))
    items = [item for item in whole.items if item.id in ids]
    seconds = None if whole.seconds is None else whole.seconds * len(items) / len(whole.items)
    return StoredBaseline(items, True, seconds, whole.outputs)


def _find(job: GradeJob, key: str, baselines: Path) -> StoredBaseline | None:
    for path in sorted(baselines.glob("**/key.json")):
        try:
            if read_model(path, BaselineKey).key != key:
                continue
            items = [ItemResult.model_validate(row) for row in read_jsonl(path.parent / "items.jsonl")]
            found = score_items(job.task, job.hidden, items).score
            if found is not None and isclose(found, read_model(path.parent / "score.json", BaselineMetrics).score):
                outputs = path.parent / BASELINE_NAME
                return StoredBaseline(items, True, _seconds(path.parent), outputs if outputs.exists() else None)
        except (IntegrityError, ValueError, FileNotFoundError):
            continue  # written by an older version, or damaged
    return None


def _seconds(folder: Path) -> float | None:
    try:
        return float((folder / SECONDS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
