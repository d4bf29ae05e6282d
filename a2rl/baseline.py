"""Baselines: what the base model itself scores, graded once and kept under everything that the score depends on.

The key is made of contents, never of names: model digest, data digest, the digest of the grading code, the settings. A
baseline under another key is another baseline.
"""

from importlib.metadata import version
from math import isclose
from pathlib import Path
from typing import Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from a2rl.errors import InfrastructureError, IntegrityError
from a2rl.files import (
    canonical_json,
    digest_of,
    folder_digest,
    read_jsonl,
    read_model,
    write_atomically,
    write_jsonl,
    write_model,
)
from a2rl.grading.job import Grade, GradeJob, GradeResult, score_items
from a2rl.locks import held
from a2rl.score import ItemResult
from a2rl.settings import Settings

GRADING_TIMEOUT_S = 12 * 3600.0
"""Longer than any task takes to grade a base model that fits on one device."""

SECONDS = "seconds.txt"
"""What grading took, on this machine; so it is not versioned, as all else of a baseline is."""


class BaselineMetrics(BaseModel):
    """`score.json`: the figures alone, which is what `dvc metrics` shows and compares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    score: float
    ci_low: float
    ci_high: float
    total: int
    correct: int
    wrong: int
    truncated: int
    errored: int


class BaselineKey(BaseModel):
    """`key.json`: what a baseline is kept under. Written last, so its existence means that the baseline is whole."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    key: str
    depends_on: dict[str, str]


def baseline_key(job: GradeJob, model_digest: str, data_digest: str, settings: Settings) -> dict[str, str]:
    """All that a baseline's score depends on, name by name."""
    judge = {"judge": canonical_json(job.judge.identity())} if job.judge else {}
    return {
        "task": job.task,
        "model": model_digest,
        "data": data_digest,
        "grader": grader_digest(job.task, settings.root),
        "backend": job.backend,
        "exact": str(job.exact),
        "options": canonical_json(job.options),
        **judge,
        "libraries": ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "tokenizers")),
    }


def grader_digest(task_id: str, root: Path) -> str:
    """Digest of the code that grades a task: a changed grader makes baselines anew."""
    shared = ["a2rl/score.py", "a2rl/judge/*.py", "a2rl/sampling/*.py", f"tasks/{task_id}/**/*.py"]
    return folder_digest(root, shared)


class StoredBaseline(NamedTuple):
    """A baseline's items, whether they were there already, and how many seconds grading took."""

    items: list[ItemResult]
    reused: bool
    seconds: float | None


def load_or_grade(job: GradeJob, depends_on: dict[str, str], settings: Settings, grade: Grade) -> StoredBaseline:
    """The baseline under this key: a stored one if there is, else graded now and stored.

    Of runs that start side by side one grades it, and the others wait for its result.

    Raises:
        Interrupted: the user stopped the pipeline while another run graded it.
        InfrastructureError: it could not be graded; a failed baseline is no baseline, least of all a zero.
    """
    key = digest_of(depends_on)
    folder = settings.baselines / "cache" / key[:16]
    if (found := _find(job, key, settings.baselines)) is not None:
        return found
    with held(folder.with_name(f".{folder.name}.lock"), "another run grades the same baseline", GRADING_TIMEOUT_S):
        if (found := _find(job, key, settings.baselines)) is not None:
            return found
        result = grade(job)
        store(folder, depends_on, result)
    return StoredBaseline(list(result.items), False, result.score.seconds)


def store(folder: Path, depends_on: dict[str, str], result: GradeResult) -> BaselineMetrics:
    """Writes a baseline's files, and returns what it comes to."""
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


def _find(job: GradeJob, key: str, baselines: Path) -> StoredBaseline | None:
    for path in sorted(baselines.glob("**/key.json")):
        try:
            if read_model(path, BaselineKey).key != key:
                continue
            items = [ItemResult.model_validate(row) for row in read_jsonl(path.parent / "items.jsonl")]
            found = score_items(job.task, job.hidden, items).score
            if found is not None and isclose(found, read_model(path.parent / "score.json", BaselineMetrics).score):
                return StoredBaseline(items, True, _seconds(path.parent))
        except (IntegrityError, ValueError, FileNotFoundError):
            continue  # an older or damaged one is not this baseline
    return None


def _seconds(folder: Path) -> float | None:
    try:
        return float((folder / SECONDS).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
