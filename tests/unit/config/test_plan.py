"""Tests what a plan records of the code that runs."""

import subprocess
from pathlib import Path

import pytest

from a2rl.config.plan import CHANGED, git_commit


@pytest.fixture
def repository_of_another(tmp_path: Path) -> Path:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for arguments in (("init", "-q"), ("add", "."), (*who, "commit", "-qm", "first")):
        (tmp_path / "file").write_text("first")
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_a_repository_around_a_project_says_nothing_of_its_code(repository_of_another: Path) -> None:
    project = repository_of_another / "project"
    project.mkdir()
    assert git_commit(project) == ""
    assert len(git_commit(repository_of_another)) == 40
    (repository_of_another / "file").write_text("second")
    assert git_commit(repository_of_another).endswith(CHANGED)
