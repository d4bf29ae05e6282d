"""Compares a run with one that repeats it: weights, scores, and the versions of what computed them."""

from itertools import zip_longest

from pydantic import BaseModel, ConfigDict

from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted


class RepeatedSubmission(BaseModel):
    """One submission in both runs; what the other run has no submission for is empty."""

    model_config = ConfigDict(frozen=True)

    number: int
    weights: str
    weights_again: str
    score: float | None
    score_again: float | None

    @property
    def is_same(self) -> bool:
        """Whether both runs submitted the same weights and got the same score."""
        return self.weights == self.weights_again and self.score == self.score_again


class Repetition(BaseModel):
    """A run and its repetition."""

    model_config = ConfigDict(frozen=True)

    run_id: str
    again: str
    submissions: tuple[RepeatedSubmission, ...]
    changed: tuple[str, ...]
    """What else differs: the commit of this checkout, and versions of packages."""

    @property
    def is_same(self) -> bool:
        """Whether all submissions have the same weights and scores. A run without any repeats nothing."""
        return bool(self.submissions) and all(each.is_same for each in self.submissions)


def repetition(run: RunDir, again: RunDir) -> Repetition:
    """Compares two runs, submission by submission."""
    pairs = zip_longest(_submissions(run), _submissions(again), fillvalue=("", None))
    return Repetition(
        run_id=run.id,
        again=again.id,
        submissions=tuple(
            RepeatedSubmission(number=number, weights=one, weights_again=other, score=score, score_again=other_score)
            for number, ((one, score), (other, other_score)) in enumerate(pairs, start=1)
        ),
        changed=_changed(run, again),
    )


def _submissions(run: RunDir) -> list[tuple[str, float | None]]:
    grades = run.ledger.grades()
    accepted = run.ledger.events(SubmissionAccepted)
    return [
        (each.weights_digest, grade.result.score if (grade := grades.get(each.weights_digest)) else None)
        for each in accepted
    ]


def _changed(run: RunDir, again: RunDir) -> tuple[str, ...]:
    before, after = (each.spec.versions | {"commit": each.spec.git_commit} for each in (run, again))
    names = sorted(before.keys() | after.keys())
    return tuple(
        f"{name}: {before.get(name) or 'unknown'} before, {after.get(name) or 'unknown'} now"
        for name in names
        if before.get(name) != after.get(name)
    )
