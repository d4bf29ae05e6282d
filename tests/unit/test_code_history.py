"""The history of the agent's code: a commit per state, and nothing but the agent's own small regular files."""

import os
import subprocess
from pathlib import Path

import pytest

from a2rl.code_history import MAX_FILE_BYTES, MAX_FILES, snapshot_code


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "code").mkdir(parents=True)
    return tmp_path / "workspace" / "code"


@pytest.fixture
def repository_of_run(tmp_path: Path) -> Path:
    return tmp_path / "run" / "code"


def git(repository: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", *arguments], cwd=repository, capture_output=True, text=True, check=True
    ).stdout.strip()


def committed(repository: Path) -> set[str]:
    return set(git(repository, "ls-tree", "-r", "--name-only", "HEAD").splitlines())


def test_every_changed_state_is_one_commit(code: Path, repository_of_run: Path) -> None:
    (code / "train.py").write_text("v1")
    first = snapshot_code(code, repository_of_run, "submission 1")
    assert snapshot_code(code, repository_of_run, "submission 2") == first
    (code / "train.py").write_text("v2")
    third = snapshot_code(code, repository_of_run, "submission 3")
    assert third != first
    assert git(repository_of_run, "log", "--format=%s").splitlines() == ["submission 3", "submission 1"]
    assert git(repository_of_run, "show", f"{first}:train.py") == "v1"
    assert git(repository_of_run, "show", f"{third}:train.py") == "v2"


def test_a_file_that_was_removed_is_gone_from_the_next_state(code: Path, repository_of_run: Path) -> None:
    (code / "a" / "b").mkdir(parents=True)
    (code / "a" / "b" / "one.py").write_text("1")
    (code / "two.py").write_text("2")
    snapshot_code(code, repository_of_run, "1")
    (code / "two.py").unlink()
    snapshot_code(code, repository_of_run, "2")
    assert committed(repository_of_run) == {"a/b/one.py"}


def test_no_code_is_no_commit(code: Path, repository_of_run: Path) -> None:
    assert snapshot_code(code, repository_of_run, "1") is None
    assert snapshot_code(code / "absent", repository_of_run, "1") is None
    assert not repository_of_run.exists()


def test_links_large_files_caches_and_devices_are_left_out(code: Path, repository_of_run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "hidden.txt").write_text("secret")
    (code / "train.py").write_text("1")
    (code / "link.txt").symlink_to(tmp_path / "secret" / "hidden.txt")
    (code / "linked-folder").symlink_to(tmp_path / "secret")
    (code / "dangling").symlink_to("/nowhere")
    os.mkfifo(code / "fifo")
    (code / "large.bin").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    (code / "__pycache__").mkdir()
    (code / "__pycache__" / "train.pyc").write_bytes(b"x")
    snapshot_code(code, repository_of_run, "1")
    assert committed(repository_of_run) == {"train.py"}


def test_a_code_folder_that_is_itself_a_link_is_no_code(code: Path, repository_of_run: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "hidden.txt").write_text("secret")
    code.rmdir()
    code.symlink_to(tmp_path / "secret")
    assert snapshot_code(code, repository_of_run, "1") is None


def test_what_git_would_ignore_is_kept(code: Path, repository_of_run: Path) -> None:
    (code / ".gitignore").write_text("*\n")
    (code / "train.py").write_text("1")
    snapshot_code(code, repository_of_run, "1")
    assert committed(repository_of_run) == {".gitignore", "train.py"}


@pytest.mark.parametrize("name", [".git", "nested/.git", ".GIT", "nested/.Git"])
def test_a_planted_git_folder_and_its_hooks_are_ignored(
    code: Path, repository_of_run: Path, tmp_path: Path, name: str
) -> None:
    planted = code / name
    (planted / "hooks").mkdir(parents=True)
    for hook in ("pre-commit", "post-commit", "post-index-change"):
        (planted / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
        (planted / "hooks" / hook).chmod(0o755)
    (planted / "config").write_text(f"[core]\n\tfsmonitor = touch {tmp_path}/hooked\n")
    (planted / "HEAD").write_text("ref: refs/heads/main\n")
    (code / "train.py").write_text("1")
    (code / ".gitattributes").write_text("* filter=evil\n")
    revision = snapshot_code(code, repository_of_run, "1")
    assert revision
    assert committed(repository_of_run) == {".gitattributes", "train.py"}
    assert not (tmp_path / "hooked").exists()


def test_the_users_git_configuration_has_no_say(
    code: Path, repository_of_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".gitconfig").write_text("[commit]\n\tgpgsign = true\n[user]\n\tuseConfigOnly = true\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    (code / "train.py").write_text("1")
    revision = snapshot_code(code, repository_of_run, "1")
    monkeypatch.delenv("GIT_DIR")
    assert revision == git(repository_of_run, "rev-parse", "HEAD")
    assert git(repository_of_run, "log", "--format=%an") == "a2rl"


def test_a_flood_of_files_is_cut_off(code: Path, repository_of_run: Path) -> None:
    for number in range(MAX_FILES + 50):
        (code / f"{number:05}.py").write_text("")
    snapshot_code(code, repository_of_run, "1")
    assert len(committed(repository_of_run)) == MAX_FILES


@pytest.mark.parametrize("left", ["lock", "half-made repository"])
def test_a_service_that_was_killed_while_committing_leaves_nothing_that_stops_the_next(
    code: Path, repository_of_run: Path, left: str
) -> None:
    (code / "train.py").write_text("1")
    if left == "lock":
        snapshot_code(code, repository_of_run, "1")
        (repository_of_run / ".git" / "index.lock").write_bytes(b"")
        (code / "train.py").write_text("2")
    else:
        (repository_of_run / ".git").mkdir(parents=True)
    assert snapshot_code(code, repository_of_run, "2")
    assert git(repository_of_run, "log", "-1", "--format=%s") == "2"


def test_odd_file_names_are_kept(code: Path, repository_of_run: Path) -> None:
    for name in ("with space.py", "-rf", "ünï.py", "new\nline.py", "--help"):
        (code / name).write_text("x")
    snapshot_code(code, repository_of_run, "-m odd")
    assert len(list(repository_of_run.iterdir())) == 6  # with .git
    assert git(repository_of_run, "log", "--format=%s") == "-m odd"
