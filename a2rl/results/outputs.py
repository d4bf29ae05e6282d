"""What a model wrote for each item of a grade, in full, with the verdicts."""

from collections.abc import Iterator
from pathlib import Path

from a2rl.core.errors import UsageError
from a2rl.core.files import FrozenModel, read_model
from a2rl.grading.job import GradeResult
from a2rl.grading.outputs import Turn, outputs_path, read_outputs
from a2rl.grading.regrade import choose_grade
from a2rl.run.directory import RunDir
from a2rl.scoring.score import Verdict


class GradedOutput(FrozenModel):
    """The work on one item, and its grade."""

    item: str
    sample: int
    """0, 1, ... if the items are answered several times; verdict and value are those of all answers together."""
    verdict: Verdict | None
    """None for what belongs to no single item."""
    value: float | None
    group: str
    turns: tuple[Turn, ...]

    @property
    def tokens(self) -> int:
        """How many tokens the model wrote."""
        return sum(turn.tokens for turn in self.turns)


def outputs_of(run: RunDir, number: int | None = None, *, of_base_model: bool = False) -> Iterator[GradedOutput]:
    """Returns the outputs of one grade of a run, in the order in which each device worked on them.

    Args:
        number: The number of a submission, on the items whose score its agent was told; None: the submission that
            counts, on the items that decided the result.
        of_base_model: Those of the base model instead.

    Raises:
        UsageError: There is no such grade, or its outputs were not kept.
        IntegrityError: The file with the outputs is damaged.
    """
    if of_base_model:
        result, whose = run.baseline_items, "the base model"
    else:
        chosen, split = choose_grade(run, number)
        result, whose = run.items(chosen.weights_digest, split), f"submission {chosen.submission_id}"
    if not result.exists() or not outputs_path(result).exists():
        raise UsageError(f"the outputs of {whose} are not in run {run.id}: it has no grade there, or they were removed")
    return graded_outputs(result)


def graded_outputs(result: Path) -> Iterator[GradedOutput]:
    """Yields the outputs that belong to the file of a result; see `outputs_of`.

    Raises:
        FileNotFoundError: The outputs were not kept.
        IntegrityError: The file with the outputs is damaged.
    """
    known = {item.id: item for item in read_model(result, GradeResult).items}
    for each in read_outputs(outputs_path(result)):
        if each.item and each.item not in known:
            continue  # the base model was graded on the whole eval set, and this run grades a sample
        item = known.get(each.item)
        yield GradedOutput(
            item=each.item, sample=each.sample, verdict=item.verdict if item else None,
            value=item.value if item else None, group=item.group if item else "", turns=each.turns,
        )  # fmt: skip
