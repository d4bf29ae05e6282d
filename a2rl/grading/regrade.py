"""Grades a checkpoint of a run anew, with the run's own settings, and compares the results item by item.

    found = regrade(run, settings, submission=2)
    found.is_same, found.differences

Of the kept checkpoint, only the weights count: configuration, tokenizer and chat template are those of the base model.
The run is not changed: the new result is written to a temporary folder, and what the judge costs is not charged to the
run. Judgements that the run has paid for are in the cache and are not asked for again.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.core.files import FrozenModel, read_model
from a2rl.core.settings import Settings
from a2rl.grading.devices import held_device, planned_for
from a2rl.grading.grades import grade_job, judge_failed
from a2rl.grading.job import GradeResult, ids_of_run, score_items
from a2rl.grading.outputs import OnProgress, ignore_progress
from a2rl.grading.pool import grade_now
from a2rl.grading.submission_checks import restore_checkpoint
from a2rl.models.base_model import model_digest
from a2rl.models.checkpoint import weights_digest
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.inputs import check_inputs, how_to_get
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.scoring.score import ItemResult, TaskScore, Verdict, same
from a2rl.task_api.contract import Split


class ItemDifference(FrozenModel):
    """An item whose second result differs from the first."""

    id: str
    before: Verdict
    after: Verdict
    value_before: float
    value_after: float
    answer_before: str
    answer_after: str


class Regrade(FrozenModel):
    """The first and the second grade of a checkpoint."""

    run_id: str
    submission: int
    weights_digest: str
    split: Split
    before: TaskScore
    after: TaskScore
    differences: tuple[ItemDifference, ...]
    """The items with another verdict or value."""
    other_answers: int
    """The number of items whose recorded answer differs, also where verdict and value are the same."""

    @property
    def is_same(self) -> bool:
        """Whether both grades agree in the score and in the verdict and value of every item."""
        return not self.differences and same(self.before.score, self.after.score)


class _FirstGrade(NamedTuple):
    """A grade of a run, and the weights that got it."""

    submission: int
    """Its number; 0 is the base model."""
    weights_digest: str
    weights: Path
    """The folder with the weights."""
    split: Split
    result: GradeResult


def regrade(
    run: RunDir, settings: Settings, submission: int | None = None, on_progress: OnProgress = ignore_progress
) -> Regrade:
    """Grades the kept checkpoint of a submission again.

    Args:
        submission: The number of the submission, which is graded on the items whose score the agent was told. None:
            the submission that counts, on the items that decided the result.

    Raises:
        UsageError: There is no such submission or grade, or the checkpoint was not kept.
        IntegrityError: The checkpoint has changed.
        InfrastructureError: It cannot be graded on this machine now.
    """
    chosen, split = choose_grade(run, submission)
    result = _first_result(run, chosen, split)
    base, checkpoint = check_inputs(run).base_model, _kept(run, chosen)
    if base.resolve().is_relative_to(run.root.resolve()):
        raise UsageError(
            f"the base model {run.spec.model} is only in the run's own folder, whose files decide nothing: get it"
            f"{how_to_get(run.spec.model)} first"
        )
    first = _FirstGrade(chosen.submission_id, chosen.weights_digest, checkpoint, split, result)
    return _again(run, settings, first, base, on_progress)


def regrade_baseline(run: RunDir, settings: Settings, on_progress: OnProgress = ignore_progress) -> Regrade:
    """Grades the run's base model again, on the items that decide the result. Its number of a submission is 0.

    Raises:
        UsageError: It was not graded.
        IntegrityError: The base model is another.
        InfrastructureError: It cannot be graded on this machine now.
    """
    split, ready = run.spec.final_split, run.need("setup", SetupRecord)
    base, hidden = check_inputs(run)
    if model_digest(base) != ready.model_digest:
        raise IntegrityError(f"the model in {base} is not the one that run {run.id} started with")
    items = {item.id: item for item in read_model(run.baseline_items, GradeResult).items}
    chosen = [items[each] for each in ids_of_run(run.spec, hidden, split) if each in items]
    result = GradeResult(score=score_items(run.spec.task, hidden, chosen), items=tuple(chosen))
    first = _FirstGrade(0, ready.model_digest, base, split, result)
    return _again(run, settings, first, base, on_progress)


def _again(run: RunDir, settings: Settings, first: _FirstGrade, base: Path, on_progress: OnProgress) -> Regrade:
    """Grades the same weights with the base model's other files. Nothing is written to the run or charged to it."""
    before = first.result
    with tempfile.TemporaryDirectory(prefix="a2rl-regrade-") as name:
        scratch = Path(name)
        model = restore_checkpoint(first.weights, base, scratch / "model") if first.submission else base
        job = grade_job(run, model, first.split, scratch / "grade.json")
        account = scratch / "account.db" if job.account else None
        changes = {"log": scratch / "grader.log", "account": account, "judge_usd": run.spec.max_judge_usd}
        with held_device(run.spec.model, settings, run.spec.gpus_for_one) as device:
            planned = planned_for(device, job.model_copy(update=changes), base)
            after = grade_now(planned, settings, [device], on_progress)
        if judge_failed(job, after):
            raise InfrastructureError(f"the judge did not answer: {after.score.reason}")
    if [item.id for item in before.items] != [item.id for item in after.items]:
        raise IntegrityError(f"run {run.id} was graded on other items than those of its settings")
    pairs = list(zip(before.items, after.items, strict=True))
    return Regrade(
        run_id=run.id,
        submission=first.submission,
        weights_digest=first.weights_digest,
        split=first.split,
        before=before.score,
        after=after.score,
        differences=_differences(pairs),
        other_answers=sum(old.answer != new.answer for old, new in pairs),
    )


def _differences(pairs: Sequence[tuple[ItemResult, ItemResult]]) -> tuple[ItemDifference, ...]:
    return tuple(
        ItemDifference(
            id=old.id,
            before=old.verdict,
            after=new.verdict,
            value_before=old.value,
            value_after=new.value,
            answer_before=old.answer,
            answer_after=new.answer,
        )
        for old, new in pairs
        if (old.verdict, old.value) != (new.verdict, new.value)
    )


def choose_grade(run: RunDir, number: int | None) -> tuple[SubmissionAccepted, Split]:
    """Returns a submission of a run and the split on which it was graded.

    Args:
        number: The number of the submission, whose grade is the one that its agent was told; None: the submission that
            counts, with the grade that decided the result.

    Raises:
        UsageError: The run has no such submission, or no result.
    """
    accepted = {event.submission_id: event for event in run.ledger.events(SubmissionAccepted)}
    if number is not None:
        if number not in accepted:
            known = f"it has 1 to {max(accepted)}" if accepted else "it has none"
            raise UsageError(f"run {run.id} has no submission {number}: {known}")
        return accepted[number], run.spec.public_split
    record = run.read("grade", GradeRecord)
    if record is None or record.submission_id is None or record.final is None:
        raise UsageError(f"run {run.id} has no result: give the number of a submission")
    return accepted[record.submission_id], run.spec.final_split


def _first_result(run: RunDir, chosen: SubmissionAccepted, split: Split) -> GradeResult:
    try:
        return read_model(run.items(chosen.weights_digest, split), GradeResult)
    except FileNotFoundError as error:
        raise UsageError(
            f"submission {chosen.submission_id} of run {run.id} has no grade that could be compared"
        ) from error


def _kept(run: RunDir, chosen: SubmissionAccepted) -> Path:
    checkpoint = run.checkpoint(chosen.weights_digest)
    if not checkpoint.is_dir():
        raise UsageError(
            f"the checkpoint of submission {chosen.submission_id} was not kept (--keep {run.spec.keep}), so it cannot "
            "be graded again; runs with --keep all keep every checkpoint"
        )
    if not any(checkpoint.glob("*.safetensors")):
        raise UsageError(
            f"the weights of submission {chosen.submission_id} are not here: ask for a bundle that was made with "
            "--with-weights"
        )
    if weights_digest(checkpoint) != chosen.weights_digest:
        raise IntegrityError(f"{checkpoint} was changed after it was submitted")
    return checkpoint
