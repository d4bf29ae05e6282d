"""One grading job: a checkpoint, a task's hidden data and a split. Its result is a file, complete or absent."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, cast

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import FrozenModel, StrictModel, write_model
from a2rl.core.settings import Settings
from a2rl.grading.outputs import ProgressFile, join_outputs, outputs_path, recorded
from a2rl.judge.account import Account
from a2rl.judge.failures import Failures
from a2rl.judge.params import JudgeConfig, JudgeParams
from a2rl.models.base_model import model_digest, resolve_model
from a2rl.models.checkpoint import unpacked_bytes
from a2rl.run.rules import LONGEST_S, GradingLimits
from a2rl.sampling import Backend, Sampler, open_sampler
from a2rl.sampling.engine_params import Dtype, DtypeSetting, EngineMemory, VllmParams, computing_type
from a2rl.sampling.generation import GeneratingSampler, Generation
from a2rl.sampling.vllm_backend import engine_start_of
from a2rl.sampling.vllm_process import EngineLease, EngineStart
from a2rl.scoring.score import ItemResult, TaskScore, errors_tolerated, mean_of_samples, mean_value, summarise
from a2rl.task_api.catalog import load_grader, load_task
from a2rl.task_api.contract import Grader, HeadlineGrader, JudgedGrader, KindsGrader, Limits, Split, Variant
from a2rl.task_api.split import check_limit, sample_ids, split_ids

if TYPE_CHECKING:
    from a2rl.judge.client import Asking, Judge
    from a2rl.run.spec import RunSpec


class Part(NamedTuple):
    """The items of a job that are graded, if several devices share them: those at `start`, `start + step`, ..."""

    start: int = 0
    step: int = 1


class GradeJob(StrictModel):
    """What to grade, and where to write the result."""

    root: Path
    task: str
    variant: Variant
    hidden: Path
    model: Path
    split: Split
    split_seed: int
    limit: int | None = None
    """The number of items in the sample of the eval set that is graded, or halved; None: the whole eval set."""
    ids: tuple[str, ...] | None = None
    """The items that are graded, instead of a split of such a sample."""
    part: Part = Part()
    """The part of these items that is graded."""
    backend: Backend = "transformers"
    exact: bool = False
    generation: Generation = Generation()
    """How the model answers."""
    dtype: Dtype | None = None
    """The dtype to compute with; None: bfloat16 on a GPU, float32 on a CPU."""
    vllm: VllmParams | None = None
    """Options of the back end vllm."""
    memory: EngineMemory | None = None
    """What its engine takes of a GPU's memory, and its context."""
    options: dict[str, str]
    """Every option of the task."""
    judge: JudgeParams | None = None
    """The judge of the answers; None if none is needed, or if the task has its own."""
    account: Path | None = None
    """The file that counts what the run pays for its judge; None outside of a run."""
    judge_usd: float | None = None
    """The grade ends without a score when the account has this many dollars."""
    judged_for: str = ""
    """The name of the grade in the account."""
    judge_failures: Path | None = None
    """The file in which the parts of the grade count what its judge did not answer; None: it has one part."""
    result: Path
    log: Path
    time_limit_s: float = LONGEST_S
    """The job is killed after this time..."""
    silence_s: float = GradingLimits().silence_s
    """...or after this time without a sign of life."""
    memory_wait_s: float = GradingLimits().memory_wait_s
    """A job that lacks memory is tried for this time."""


class GradeResult(StrictModel):
    """A graded checkpoint, item by item."""

    schema_version: Literal[1] = 1
    dtype: Dtype | None = None
    """The job's dtype. Results from before it was recorded have none either."""
    engine_start: EngineStart | None = None
    """How the engine got the weights, with the back end vllm."""
    score: TaskScore
    items: tuple[ItemResult, ...]


class EngineChoice(FrozenModel):
    """The part of a job that says how a model and everything trained from it is computed."""

    backend: Backend
    dtype: Dtype | None
    vllm: VllmParams | None

    @classmethod
    def of(cls, backend: Backend, dtype: DtypeSetting | None, vllm: VllmParams, base_model: Path) -> "EngineChoice":
        """Chooses for a base model.

        Args:
            dtype: The setting for all back ends; None for that of runs from before there was one.
            vllm: The options of vLLM; not used, and not part of the choice, with another back end.
        """
        if backend == "vllm" and vllm.dtype != "auto":
            dtype = vllm.dtype
        chosen = computing_type(dtype, base_model) if dtype else None
        return cls(backend=backend, dtype=chosen, vllm=vllm if backend == "vllm" else None)

    def memory(self, base_model: Path, limits: Limits, on_gpu: bool) -> EngineMemory | None:
        """Plans the memory of the engine for a base model and everything trained from it; None without an engine.

        Args:
            on_gpu: Whether GPUs grade.

        Raises:
            UsageError: The configuration does not say what must be known.
        """
        if self.vllm is None:
            return None
        dtype = self.dtype or ("bfloat16" if on_gpu else "float32")
        return EngineMemory.of(
            base_model, unpacked_bytes(base_model), self.vllm, dtype, limits.max_new_tokens, limits.max_steps
        )


def selected_ids(
    task: str,
    hidden: Path,
    split: Split,
    split_seed: int,
    limit: int | None = None,
) -> list[str]:
    """Returns the ids of the items that a job grades.

    Raises:
        UsageError: The hidden data is missing, or has too few items for the sample or for the halves.
    """
    if not hidden.is_dir():
        raise UsageError(f"the hidden data {hidden} is missing: run `a2rl prepare --task {task}`")
    grader = load_grader(task)
    kinds = grader.item_kinds(hidden) if isinstance(grader, KindsGrader) else None
    ids = grader.item_ids(hidden)
    if limit is not None:
        check_limit(limit, len(ids), task, halved=split != "all")
        ids = sample_ids(ids, limit, split_seed, kinds)
    return split_ids(ids, split, split_seed, kinds)


def ids_of_run(spec: "RunSpec", hidden: Path, split: Split) -> list[str]:
    """Returns the ids of the items in a split of a run's eval set, or of its sample.

    Raises:
        UsageError: As `selected_ids`.
    """
    return selected_ids(spec.task, hidden, split, spec.split_seed, spec.limit)


def ids_of_job(job: GradeJob) -> list[str]:
    """Returns the ids of the items that a job grades.

    Raises:
        UsageError: As `selected_ids`.
    """
    if job.ids is not None:
        return list(job.ids)
    return selected_ids(job.task, job.hidden, job.split, job.split_seed, job.limit)


def run_job(job: GradeJob, lease: EngineLease | None = None, on_answered: Callable[[], None] = lambda: None) -> None:
    """Grades a checkpoint and writes the result.

    Args:
        lease: A running engine of vLLM to use instead of starting one.
        on_answered: Called when the model has answered and the device is not needed any more.

    Raises:
        A2rlError: It could not be graded.
    """
    task = load_task(job.task, job.root)
    limits, samples = _limits(task.variant(job.variant).limits, job.generation), job.generation.samples
    all_ids = ids_of_job(job)
    ids, tolerated = all_ids[job.part.start :: job.part.step], errors_tolerated(len(all_ids))
    started = time.monotonic()
    progress = ProgressFile(job.result, len(ids) * samples, limits.max_steps)
    judging, failures = _judging(job), Failures(job.judge_failures)
    engine = open_sampler(
        job.model,
        job.backend,
        exact=job.exact,
        dtype=job.dtype,
        vllm=job.vllm,
        lease=lease,
        memory=job.memory,
        on_end=progress.add_item,
    )
    with _open_judge(job.task, judging) as judge:
        with engine as sampler:
            start = engine_start_of(sampler)
            rounds = [
                _round(
                    job, sampler, number, ids, limits, judge.asking(tolerated, failures) if judge else None, progress
                )
                for number in range(samples)
            ]
        if judging is None or judging.served is None:  # a model that judges here may need the device as well
            on_answered()
        items = mean_of_samples([results() for results in rounds])
    if [item.id for item in items] != ids:
        raise InfrastructureError(f"tasks/{job.task}/grade.py did not answer for every item")
    score = score_items(job.task, job.hidden, items, time.monotonic() - started)
    write_model(job.result, GradeResult(dtype=job.dtype, engine_start=start, score=score, items=tuple(items)))
    progress.remove()


def judge_of(params: JudgeParams, settings: Settings) -> JudgeConfig:
    """Configures a judge of params.yaml, with its key and its local model.

    Raises:
        UsageError: The key is not set, or the model does not exist.
    """
    served = resolve_model(params.serve, settings) if params.serve else None
    return JudgeConfig.by(params, settings, served, model_digest(served) if served else "")


@contextmanager
def _open_judge(task: str, judging: JudgeConfig | None) -> "Iterator[Judge | None]":
    """Opens the judge of a task, or the task's own; yields None if its answers need none."""
    grader = cast(Grader | JudgedGrader, load_grader(task))
    if not isinstance(grader, JudgedGrader):
        yield None
        return
    from a2rl.judge.local import open_judge  # its HTTP library takes a fifth of a second, for every command

    with open_judge(judging, *grader.OWN_JUDGE) as judge:
        yield judge


def _judging(job: GradeJob) -> JudgeConfig | None:
    """Returns the judge of a job, before anything is generated that it could not judge."""
    if job.judge is None:
        return None
    config = judge_of(job.judge, Settings.load())
    if job.account is None:
        return config
    Account(job.account, job.judge_usd).require_money()
    return replace(config, account=job.account, limit_usd=job.judge_usd, job=job.judged_for)


def _limits(limits: Limits, generation: Generation) -> Limits:
    return limits.model_copy(update={"max_new_tokens": generation.max_new_tokens or limits.max_new_tokens})


def _round(
    job: GradeJob,
    sampler: Sampler,
    number: int,
    ids: Sequence[str],
    limits: Limits,
    asking: "Asking | None",
    progress: ProgressFile,
) -> Callable[[], Sequence[ItemResult]]:
    """Answers all items once, and returns a function that waits until they are judged.

    Rounds, and parts of a round, have different random numbers.
    """
    grader, seed = load_grader(job.task), number * job.part.step + job.part.start
    with recorded(sampler, job.result, ids, number, progress.add_answer) as recording:
        answering = GeneratingSampler(recording, job.generation, seed=seed)
        if asking is not None:
            return cast(JudgedGrader, grader).grade(answering, job.hidden, ids, limits, job.options, asking)
        results = grader.grade(answering, job.hidden, ids, limits, job.options)
        return lambda: results


def score_items(task: str, hidden: Path, items: Sequence[ItemResult], seconds: float = 0.0) -> TaskScore:
    """Returns the score of a task's items: the headline figure that the task defines, or else their mean value."""
    grader = load_grader(task)
    headline = partial(grader.headline, hidden=hidden) if isinstance(grader, HeadlineGrader) else mean_value
    return summarise(items, seconds, headline)


Grade = Callable[[GradeJob], GradeResult]


def parts_of(job: GradeJob, most: int) -> list[GradeJob]:
    """Returns the jobs that together grade what a job grades: at most this many, and only the job itself if it is one.

    Raises:
        UsageError: The hidden data is missing.
    """
    if most == 1:
        return [job]
    items = len(ids_of_job(job))
    count = max(1, min(most, items))
    return [
        job.model_copy(update={"part": Part(place, count), "result": _part_of(job, place, count)})
        for place in range(count)
    ]


def merged(job: GradeJob, parts: Sequence[GradeJob], results: Sequence[GradeResult]) -> GradeResult:
    """Returns the result of a job from those of its parts, and writes it in their place."""
    if parts == [job]:
        return results[0]
    rounds = zip_longest(*(result.items for result in results))
    items = [item for one_of_each in rounds for item in one_of_each if item is not None]
    # The sum of the parts is the time that one device would have needed, from which the limits of grades are computed.
    seconds = sum(result.score.seconds for result in results)
    score = score_items(job.task, job.hidden, items, seconds)
    whole = GradeResult(dtype=job.dtype, engine_start=results[0].engine_start, score=score, items=tuple(items))
    join_outputs([outputs_path(part.result) for part in parts], outputs_path(job.result))
    write_model(job.result, whole)
    for part in parts:
        part.result.unlink(missing_ok=True)
    return whole


def _part_of(job: GradeJob, place: int, count: int) -> Path:
    return job.result.with_name(f"{job.result.stem}-part-{place + 1}-of-{count}.json")
