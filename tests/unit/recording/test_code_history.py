"""Tests the history of the agent's code: one commit for each state, and only the agent's own small regular files."""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.core.errors import InfrastructureError, IntegrityError
from a2rl.core.locks import file_lock
from a2rl.core.settings import Settings
from a2rl.recording import code_history, code_reading
from a2rl.recording.code_history import MAX_FILE_BYTES, MAX_FILES, code_state, commits, snapshot_code
from a2rl.recording.code_reading import State, changed_copies, code_diff, states
from a2rl.results.verify.check import check_code, made
from a2rl.run.directory import RunDir
from tests.as_nobody import as_nobody, folder_of_nobody
from tests.run_maker import spec


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


def test_files_whose_scrubbed_names_are_equal_are_all_recorded(code: Path, repository_of_run: Path) -> None:
    keys = [f"sk-{letter * 30}" for letter in "ab"]
    for key in keys:
        (code / f"{key}.py").write_text(key[-1])
        (code / f"in {key}").mkdir()
        (code / f"in {key}" / "x.py").write_text(f"x{key[-1]}")
        (code / "x" / key / key).mkdir(parents=True)
        (code / "x" / key / key / "z.py").write_text(f"z{key[-1]}")
    (code / "[secret]").mkdir()
    (code / "[secret]" / "y.py").write_text("y")
    (code / keys[0]).write_text("z")
    assert snapshot_code(code, repository_of_run, "submission 1") is not None
    names = committed(repository_of_run)
    texts = sorted(git(repository_of_run, "show", f"HEAD:{name}") for name in names)
    assert texts == ["a", "b", "xa", "xb", "y", "z", "za", "zb"]
    assert not any("sk-" in name for name in names)


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
    missed: list[str] = []
    snapshot_code(code, repository_of_run, "1", on_missed=missed.append)
    assert len(committed(repository_of_run)) == MAX_FILES
    assert missed == [f"{MAX_FILES:05}.py"]


@pytest.mark.parametrize("left", ["lock", "half-made repository"])
def test_a_service_killed_in_a_commit_does_not_stop_the_next(code: Path, repository_of_run: Path, left: str) -> None:
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
    assert len(list(repository_of_run.iterdir())) == 6  # including .git
    assert git(repository_of_run, "log", "--format=%s") == "-m odd"


@pytest.fixture
def hidden(tmp_path: Path) -> Path:
    """A folder outside the agent's workspace, with a secret."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden/rows.jsonl").write_text("secret")
    return tmp_path / "hidden"


def everything_in(repository: Path) -> str:
    """Returns the text of everything that was copied or committed."""
    copied = [path.read_text(errors="replace") for path in repository.rglob("*") if ".git" not in path.parts[-2:-1]
              and path.is_file() and "/.git/" not in str(path)]  # fmt: skip
    return "\n".join([*copied, git(repository, "log", "-p", "--text")])


def test_a_folder_that_becomes_a_link_while_read_leads_nowhere(
    code: Path, repository_of_run: Path, hidden: Path
) -> None:
    (code / "train.py").write_text("1")
    (code / "real").mkdir()
    (code / "real/rows.jsonl").write_text("harmless")
    (code / "link").symlink_to(hidden)
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for name in ("real", "link"):
                (code / name).rename(code / "pkg")
                (code / "pkg").rename(code / name)

    swapper = threading.Thread(target=swap)
    swapper.start()
    for number in range(12):
        (code / "train.py").write_text(f"{number}")
        snapshot_code(code, repository_of_run, "x")
    over.set()
    swapper.join()
    assert "secret" not in everything_in(repository_of_run)


def test_folders_and_files_that_become_equal_are_all_recorded(
    code: Path, repository_of_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their names become equal."""
    monkeypatch.setattr(code_history, "scrub", lambda text: re.sub("key-[12]", "[secret]", text))
    for name in ("key-1", "key-2/run.py", "a/key-1.py", "a/key-2.py", "same-name-2/x.py"):
        (code / name).parent.mkdir(exist_ok=True)
        (code / name).write_text(name)
    assert snapshot_code(code, repository_of_run, "state") is not None
    recorded = [path for path in repository_of_run.rglob("*") if path.is_file() and ".git" not in path.parts]
    assert len({path.read_text() for path in recorded}) == 5
    assert snapshot_code(code, repository_of_run, "the same") == commits(repository_of_run)[0]
    assert len(commits(repository_of_run)) == 1


def test_many_files_whose_names_become_equal_take_no_time(code: Path, repository_of_run: Path) -> None:
    for number in range(1_000):
        (code / f"sk-ant-api03-{'a' * 40}{number:04}").touch()
    begun = time.process_time()
    assert snapshot_code(code, repository_of_run, "state") is not None
    assert len(committed(repository_of_run)) == 1_000
    assert time.process_time() - begun < 10


@pytest.mark.parametrize("depth", [16, 24], ids=["only of the copy", "of the file itself"])
def test_a_path_that_is_too_long_leaves_out_only_its_file(code: Path, repository_of_run: Path, depth: int) -> None:
    (code / "train.py").write_text("print()")
    here = os.open(code, os.O_DIRECTORY)
    for _ in range(depth):
        os.mkdir("d" * 250, dir_fd=here)
        below = os.open("d" * 250, os.O_DIRECTORY, dir_fd=here)
        os.close(here)
        here = below
    os.close(os.open("e" * 60 + ".py", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    missed: list[str] = []
    assert snapshot_code(code, repository_of_run, "state", on_missed=missed.append) is not None
    assert len(missed) == 1
    assert (repository_of_run / "train.py").read_text() == "print()"


def test_a_hard_link_to_what_is_not_the_agents_is_left_out(code: Path, repository_of_run: Path, hidden: Path) -> None:
    (code / "train.py").write_text("1")
    (code / "rows.jsonl").hardlink_to(hidden / "rows.jsonl")
    snapshot_code(code, repository_of_run, "1")
    assert committed(repository_of_run) == {"train.py"}


HOSTILE_NAMES = [
    b"git~1", b".git ", b".git.", b".git::$INDEX_ALLOCATION", ".g\u200cit".encode(), b"a\\.git", b"\xff\xfe",
    b"new\nline", b'quote"', b"back\\slash", b"\x1b[2J", b"x" * 255, b"-rf", b"\xe2\x80\xae",
]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_no_name_keeps_the_code_from_being_recorded(code: Path, repository_of_run: Path, name: bytes) -> None:
    (code / "train.py").write_text("1")
    (code / os.fsdecode(name)).write_text("x")
    assert snapshot_code(code, repository_of_run, "1")
    assert "train.py" in committed(repository_of_run)
    assert changed_copies(repository_of_run) == []


def test_copies_that_differ_from_the_last_commit_are_found(code: Path, repository_of_run: Path) -> None:
    assert changed_copies(repository_of_run) == []
    for name in ("kept.py", "edited.py", "removed.py", "linked.py"):
        (code / name).write_text("1")
    snapshot_code(code, repository_of_run, "1")
    (repository_of_run / "edited.py").write_text("2")
    (repository_of_run / "removed.py").unlink()
    (repository_of_run / "linked.py").unlink()
    (repository_of_run / "linked.py").symlink_to("kept.py")
    (repository_of_run / os.fsdecode(b"\xff")).write_text("added")
    assert changed_copies(repository_of_run) == ["\\xff", "edited.py", "linked.py", "removed.py"]


@pytest.fixture
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hides git from what runs in this process."""
    monkeypatch.setattr("os.defpath", "/none")
    monkeypatch.setenv("PATH", "/none")


def test_git_is_found_where_the_user_has_it(
    code: Path, repository_of_run: Path, tmp_path: Path, no_git: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come from conda or a module, and still gets an environment without anything of the user's."""
    program, called = tmp_path / "own" / "bin" / "git", tmp_path / "called"
    program.parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\necho "$MINE $*" >>{called}\nexec git "$@"\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(program.parent))
    monkeypatch.setenv("MINE", "leaked")
    (code / "train.py").write_text("v1")
    commit = snapshot_code(code, repository_of_run, "submission 1")
    assert commit is not None
    assert (diff := code_diff(repository_of_run, None, commit)) is not None
    assert "+v1" in diff.lines
    calls = called.read_text()
    assert " fast-import " in calls
    assert " diff " in calls
    assert "leaked" not in calls


def test_without_git_the_code_of_a_run_is_not_checked(
    settings: Settings, code: Path, request: pytest.FixtureRequest
) -> None:
    """That says nothing against the run; a history that git cannot read does."""
    run = RunDir.create(settings.runs, spec())
    (code / "train.py").write_text("v1")
    snapshot_code(code, run.code, "submission 1")
    for found in (run.code / ".git" / "objects").glob("*/*"):
        found.chmod(0o600)
        found.write_bytes(b"")
    assert "cannot be used: git fsck" in made("code", lambda: check_code(run)).problem
    request.getfixturevalue("no_git")
    unchecked = made("code", lambda: check_code(run))
    assert (unchecked.problem, unchecked.not_checked[:20]) == ("", "git is not installed")


def test_only_small_files_are_compared_line_by_line(code: Path, repository_of_run: Path) -> None:
    """On two files of random short lines, git takes seconds."""
    (code / "data.txt").write_text("x\n" * (code_reading.LARGE_BYTES // 2 + 1))
    (code / "train.py").write_text("v1")
    commit = snapshot_code(code, repository_of_run, "submission 1")
    assert commit is not None
    assert (diff := code_diff(repository_of_run, None, commit)) is not None
    assert "Binary files /dev/null and b/data.txt differ" in diff.lines
    assert "+v1" in diff.lines
    assert "+x" not in diff.lines


def test_a_git_that_prints_nothing_is_not_awaited(
    code: Path, repository_of_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "train.py").write_text("v1")
    commit = snapshot_code(code, repository_of_run, "submission 1")
    assert commit is not None
    (program := tmp_path / "git").write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setattr(code_reading, "git_program", lambda: str(program))
    monkeypatch.setattr(code_reading, "DIFF_TIMEOUT_S", 0.2)
    start = time.monotonic()
    assert code_diff(repository_of_run, None, commit) is None
    assert time.monotonic() - start < 40


def _git(repository: Path, *arguments: str, given: str = "") -> str:
    git = ["git", "-C", str(repository), "-c", "user.name=a", "-c", "user.email=a@localhost", *arguments]
    return subprocess.run(git, input=given, capture_output=True, check=True, text=True).stdout.strip()


def test_a_small_history_of_billions_of_files_fills_no_memory(
    repository_of_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_reading, "MAX_MEMORY_BYTES", 256 << 20)
    repository_of_run.mkdir(parents=True)
    _git(repository_of_run, "init", "--quiet", "--template=", "--initial-branch=main")
    found, kind = _git(repository_of_run, "hash-object", "-w", "--stdin", given="x"), "100644 blob"
    for _ in range(10):
        listed = "".join(f"{kind} {found}\t{number}\n" for number in range(10))
        found, kind = _git(repository_of_run, "mktree", given=listed), "040000 tree"
    commit = _git(repository_of_run, "commit-tree", found, "-m", "x")
    _git(repository_of_run, "update-ref", "refs/heads/main", commit)
    assert changed_copies(repository_of_run) == []
    assert code_diff(repository_of_run, None, commit) is None
    (repository_of_run / "train.py").write_text("1")
    with pytest.raises(IntegrityError, match="more files than a2rl records"):
        changed_copies(repository_of_run)


@pytest.mark.parametrize(
    ("written", "at"),
    [("9 +0000\n\na\u2028b", 9.0), ("9 +0000\n\na\x1cb\x85c", 9.0), ("\n\nno date", 0.0), ("now +0000\n\n", 0.0)],
)
def test_states_are_read_whatever_somebody_else_committed(repository_of_run: Path, written: str, at: float) -> None:
    repository_of_run.mkdir(parents=True)
    git(repository_of_run, "init", "--quiet", "--template=", "--initial-branch=main")
    tree, who = git(repository_of_run, "hash-object", "-t", "tree", "-w", os.devnull), "a <a@b>"
    (commit := repository_of_run.with_name("commit")).write_text(
        f"tree {tree}\nauthor {who} 9 +0000\ncommitter {who} {written}", encoding="utf-8"
    )
    name = git(repository_of_run, "hash-object", "-t", "commit", "-w", "--literally", str(commit))
    git(repository_of_run, "update-ref", "refs/heads/main", name)
    assert states(repository_of_run) == [State(name, at)]


def test_a_history_without_copies_has_none_that_differ(code: Path, repository_of_run: Path) -> None:
    (code / "train.py").write_text("1")
    snapshot_code(code, repository_of_run, "1")
    (repository_of_run / "train.py").unlink()
    assert changed_copies(repository_of_run) == []


SETTINGS_OF_GIT = {
    ".gitattributes": "* text working-tree-encoding=UTF-16 filter=evil diff=evil ident\n",
    ".gitmodules": "[submodule\n not a configuration",
    ".gitignore": "*\n",
    ".mailmap": "A <a@b> <c@d>\n",
    ".lfsconfig": "[lfs]\n\turl = http://evil\n",
}


@pytest.mark.parametrize("name", SETTINGS_OF_GIT)
def test_nothing_in_the_code_is_a_setting_for_git(code: Path, repository_of_run: Path, name: str) -> None:
    (code / name).write_text(SETTINGS_OF_GIT[name])
    (code / "train.py").write_bytes(b"$Id$ \r\n\xff")
    assert snapshot_code(code, repository_of_run, "1")
    assert committed(repository_of_run) == {name, "train.py"}
    stored = subprocess.run(["git", "cat-file", "blob", "HEAD:train.py"], cwd=repository_of_run, capture_output=True, check=True)  # fmt: skip  # noqa: E501
    assert stored.stdout == b"$Id$ \r\n\xff"


@pytest.mark.parametrize(
    "lock", ["index.lock", "HEAD.lock", "refs/heads/main.lock", "refs/a2rl/seen.lock", "config.lock"]
)
def test_a_lock_of_a_git_that_was_killed_is_removed(code: Path, repository_of_run: Path, lock: str) -> None:
    (code / "train.py").write_text("1")
    snapshot_code(code, repository_of_run, "1")
    (repository_of_run / ".git" / lock).touch()
    (code / "train.py").write_text("2")
    assert snapshot_code(code, repository_of_run, "2") == git(repository_of_run, "rev-parse", "HEAD")


def test_git_that_hangs_is_an_error_in_time(
    code: Path, repository_of_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/git").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "bin/git").chmod(0o755)
    monkeypatch.setattr(code_history, "GIT_TIMEOUT_S", 0.3)
    monkeypatch.setattr("os.defpath", f"{tmp_path}/bin")
    (code / "train.py").write_text("1")
    started = time.monotonic()
    with pytest.raises(InfrastructureError, match="timed out"):
        snapshot_code(code, repository_of_run, "1")
    assert time.monotonic() - started < 10


def test_another_recorder_is_not_awaited_longer_than_asked(code: Path, repository_of_run: Path) -> None:
    (code / "train.py").write_text("1")
    repository_of_run.parent.mkdir()
    lock = repository_of_run.with_name(".code.lock")
    with file_lock(lock, "nobody", 0), pytest.raises(InfrastructureError, match="locked"):
        snapshot_code(code, repository_of_run, "1", timeout_s=0.1)


def take_back_all(code: Path) -> None:
    code.chmod(0)


def take_back_a_folder(code: Path) -> None:
    (code / "pkg").mkdir()
    (code / "pkg").chmod(0)


def take_back_a_file(code: Path) -> None:
    (code / "shut.py").touch()
    (code / "shut.py").chmod(0)


@pytest.mark.parametrize("take_back", [take_back_all, take_back_a_folder, take_back_a_file])
def test_permissions_that_a_user_takes_back_are_no_error(take_back: Callable[[Path], None]) -> None:
    def work() -> None:
        code, repository = root / "workspace/code", root / "run/code"
        code.mkdir(parents=True)
        (code / "train.py").write_text("1")
        first = snapshot_code(code, repository, "1")
        assert first
        take_back(code)
        assert snapshot_code(code, repository, "2") in {first, None}

    with folder_of_nobody() as root:
        as_nobody(work)


@pytest.mark.parametrize("kind", ["file", "fifo", "link"])
def test_what_is_no_folder_is_no_code(code: Path, repository_of_run: Path, kind: str) -> None:
    code.rmdir()
    if kind == "file":
        code.touch()
    elif kind == "fifo":
        os.mkfifo(code)
    else:
        code.symlink_to("/dev/zero")
    before = signal.alarm(20)
    assert snapshot_code(code, repository_of_run, "1") is None
    with pytest.raises(OSError, match="Not a directory"):
        code_state(code)
    signal.alarm(before)


def test_a_history_that_is_full_takes_no_more_code(
    code: Path, repository_of_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code / "train.py").write_text("lr = 1\n")
    assert snapshot_code(code, repository_of_run, "first")
    monkeypatch.setattr(code_history, "MAX_HISTORY_BYTES", 100)
    (code / "train.py").write_text("lr = 2\n")
    assert snapshot_code(code, repository_of_run, "second") is None
    assert len(commits(repository_of_run)) == 1


def test_contents_that_are_no_text_are_left_out(code: Path, repository_of_run: Path) -> None:
    (code / "train.py").write_text("lr = 1\n")
    (code / "weights.bin").write_bytes(b"x\0" * 10)
    snapshot_code(code, repository_of_run, "first")
    assert [path.name for path in repository_of_run.iterdir() if path.name != ".git"] == ["train.py"]
