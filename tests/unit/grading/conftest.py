"""A workspace with a submission, and the copy that the service makes of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import Source
from a2rl.models.checkpoint import weights_digest
from tests.small_model import trained_copy


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "output").mkdir(parents=True)
    return tmp_path / "workspace"


@pytest.fixture
def submission(workspace: Path, base_model: Path) -> Path:
    """A valid submission, which each test breaks in its own way."""
    return trained_copy(base_model, workspace / "output" / "v1", seed=1)


@pytest.fixture
def submit(workspace: Path, base_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies a submission as the service does and returns the copy."""
    number = iter(range(100))

    def copy(model_path: str) -> Path:
        target = tmp_path / f"kept-{next(number)}"
        copy_submission(Source(workspace, model_path), target, Requirements(base_model))
        return target

    return copy


@pytest.fixture
def refused(submission: Path, submit: Callable[[str], Path]) -> Callable[[Callable[[Path], None], str], None]:
    """Spoils the submission and checks that it is then refused, in one line that matches the pattern."""

    def check(spoil: Callable[[Path], None], says: str) -> None:
        spoil(submission)
        with pytest.raises(InvalidSubmissionError, match=says) as refusal:
            weights_digest(submit("output/v1"))
        assert "\n" not in str(refusal.value)

    return check
