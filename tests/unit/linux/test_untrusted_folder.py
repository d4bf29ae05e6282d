"""Tests a folder that others can write to: whatever they put there, no file outside is read, and no call waits."""

import fcntl
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from a2rl.linux import untrusted_folder
from a2rl.linux.untrusted_folder import FileChangedError, Limits, UntrustedFolder, copy_open_file, printable_name
from tests.as_nobody import as_nobody, folder_of_nobody
from tests.deep import dig, fill_in


@pytest.fixture(params=["openat2", "step by step"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs each test with both ways of opening files."""
    if request.param == "step by step":
        monkeypatch.setattr(untrusted_folder, "has_openat2", lambda: False)
    elif not untrusted_folder.has_openat2():
        pytest.skip("this kernel has no openat2")


@pytest.fixture
def theirs(tmp_path: Path) -> Path:
    """The folder that others can write to, next to a secret."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("secret")
    (tmp_path / "theirs").mkdir()
    return tmp_path / "theirs"


@pytest.fixture
def folder(theirs: Path) -> Iterator[UntrustedFolder]:
    with UntrustedFolder.at(theirs) as opened:
        yield opened


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def fifo(path: Path, secret: Path) -> None:
    os.mkfifo(path)


def local_socket(path: Path, secret: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def hard_link(path: Path, secret: Path) -> None:
    path.hardlink_to(secret)


def folder_link(path: Path, secret: Path) -> None:
    path.symlink_to(secret.parent)


def directory(path: Path, secret: Path) -> None:
    path.mkdir()


def zeros(path: Path, secret: Path) -> None:
    path.symlink_to("/dev/zero")


def device(path: Path, secret: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root makes devices")
    os.mknod(path, 0o600 | 0o020000, os.makedev(1, 5))


PLANTS = [link, folder_link, fifo, local_socket, hard_link, directory, zeros, device]


@pytest.mark.parametrize("plant", PLANTS)
def test_what_is_no_regular_file_is_not_read_and_not_waited_for(
    theirs: Path, folder: UntrustedFolder, plant: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    plant(theirs / "file", tmp_path / "outside/secret")
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.read("file", 100)
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.copy("file", tmp_path / "copy", 100)
    assert not (tmp_path / "copy").exists()
    assert not any(entry.is_file for entry in folder.walk())


@pytest.mark.parametrize("path", ["way/secret", "../outside/secret", "way/../outside/secret", "/etc/passwd"])
def test_no_path_leads_out(theirs: Path, folder: UntrustedFolder, path: str) -> None:
    (theirs / "way").symlink_to("../outside")
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.read(path, 100)
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.folder(os.path.dirname(path))  # noqa: PTH120 - a name, not a path


@pytest.mark.parametrize("name", ["\0", "a\0b", "\ud800", "x" * 300, "a/" * 3000 + "b"])
def test_an_impossible_file_name_is_the_expected_error(folder: UntrustedFolder, name: str) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.read(name, 100)
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.walk(name)


def test_a_folder_that_is_a_link_is_not_opened(theirs: Path) -> None:
    theirs.rmdir()
    theirs.symlink_to("outside")
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        UntrustedFolder.at(theirs)


def test_a_walk_finds_top_files_first_and_follows_no_link(theirs: Path, folder: UntrustedFolder) -> None:
    (theirs / "a/b").mkdir(parents=True)
    (theirs / "skipped").mkdir()
    for name in ("a/b/deep", "a/middle", "top", "skipped/x"):
        (theirs / name).write_text("x")
    link(theirs / "link", theirs / "top")
    (theirs / "around").symlink_to(".")
    found = folder.walk(skip=frozenset({"skipped"}))
    assert [(entry.path, entry.is_file) for entry in found] == [
        ("around", False), ("link", False), ("top", True), ("a/middle", True), ("a/b/deep", True)
    ]  # fmt: skip


def test_a_walk_is_limited_in_number_depth_and_time(
    theirs: Path, folder: UntrustedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(50):
        (theirs / f"{number}").touch()
    assert len(folder.walk(limits=Limits(entries=10))) == 10
    (theirs / "0-folder").mkdir()
    (theirs / "0-folder/file").touch()
    assert not any("folder" in entry.path for entry in folder.walk(limits=Limits(depth=0)))
    assert folder.walk(limits=Limits(seconds=0)) == []


@pytest.fixture
def deep(theirs: Path) -> Iterator[Path]:
    """A folder with more levels than a path or a recursion can reach."""
    dig(theirs / "d", 3_000)
    yield theirs / "d"
    for place in theirs.iterdir():
        if place.is_dir():
            fill_in(place)


def test_thousands_of_levels_take_no_time_and_hide_nothing(theirs: Path, folder: UntrustedFolder, deep: Path) -> None:
    (theirs / "z").write_text("seen")
    started = time.monotonic()
    assert [entry.path for entry in folder.walk()] == ["z"]
    folder.write("d", "a file where a folder was")  # avoids removing thousands of folders
    assert time.monotonic() - started < 5
    assert deep.read_text().startswith("a file")


def test_names_of_any_bytes_are_walked_read_and_shown(theirs: Path, folder: UntrustedFolder, tmp_path: Path) -> None:
    names = [b"\xff\xfe", b"new\nline", b"\x1b[2J", b"\xe2\x80\xae", b"x" * 255]
    for name in names:
        (theirs / os.fsdecode(name)).write_text("x")
    found = folder.walk()
    assert {os.fsencode(entry.path) for entry in found} == set(names)
    for number, entry in enumerate(found):
        assert folder.read(entry.path, 10) == b"x"
        folder.copy(entry.path, tmp_path / f"{number}", 10)
        printable_name(entry.path).encode()


def test_a_leased_file_is_an_error_at_once(theirs: Path, folder: UntrustedFolder) -> None:
    (theirs / "leased").write_text("x")
    before = signal.signal(signal.SIGIO, lambda *_: None)
    with (theirs / "leased").open("r+") as holder:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        started = time.monotonic()
        try:
            with pytest.raises(BlockingIOError):
                folder.read("leased", 10)
        finally:
            fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            signal.signal(signal.SIGIO, before)
        assert time.monotonic() - started < 1


def test_a_huge_sparse_file_is_read_only_as_far_as_asked(theirs: Path, folder: UntrustedFolder) -> None:
    """It counts as what it says."""
    with (theirs / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    assert folder.walk()[0].size == 1 << 40
    assert len(folder.read("sparse", 1000)) == 1000


def test_a_growing_file_is_copied_as_it_was(theirs: Path, folder: UntrustedFolder, tmp_path: Path) -> None:
    """One that shrinks is refused."""
    (theirs / "file").write_bytes(b"x" * 100)
    with folder.open("file") as source, (tmp_path / "copy").open("wb") as copy:
        with (theirs / "file").open("ab") as more:
            more.write(b"y" * 100)
        copy_open_file(source, copy, 100)
    assert (tmp_path / "copy").read_bytes() == b"x" * 100
    with folder.open("file") as source, (tmp_path / "copy").open("wb") as copy:
        os.truncate(theirs / "file", 10)
        with pytest.raises(FileChangedError):
            copy_open_file(source, copy, 200)


def test_a_read_that_drags_on_ends(theirs: Path, folder: UntrustedFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_folder, "COPY_TIMEOUT_S", -1.0)
    (theirs / "file").write_bytes(b"x")
    with pytest.raises(TimeoutError):
        folder.read("file", 100)


def test_a_folder_constantly_swapped_for_a_link_never_leads_out(theirs: Path, folder: UntrustedFolder) -> None:
    (theirs / "real").mkdir()
    (theirs / "real/secret").write_text("harmless")
    (theirs / "link").symlink_to("../outside")
    over = threading.Event()

    def swap() -> None:
        while not over.is_set():
            for name in ("real", "link"):
                os.rename(theirs / name, theirs / "way")  # noqa: PTH104 - quick
                os.rename(theirs / "way", theirs / name)  # noqa: PTH104 - quick

    swapper = threading.Thread(target=swap)
    swapper.start()
    read = set()
    for _ in range(2000):
        try:
            read.add(folder.read("way/secret", 100))
        except OSError:
            continue
    over.set()
    swapper.join()
    assert read <= {b"harmless"}


def test_patterns_find_what_they_found_as_paths(theirs: Path, folder: UntrustedFolder) -> None:
    for name in ("s/2026/01/r-1.jsonl", "s/r-2.jsonl", "s/2026/other", "t/a/chats/x.json", "t/a/b/chats/x.json", "top"):
        (theirs / name).parent.mkdir(parents=True, exist_ok=True)
        (theirs / name).touch()
    for pattern in ("s/**/r-*.jsonl", "t/*/chats/x.json", "top", "absent/**/x"):
        expected = {path.relative_to(theirs).as_posix() for path in theirs.glob(pattern)}
        try:
            found = {entry.path for entry in folder.match(pattern)}
        except FileNotFoundError:
            found = set()
        assert found == expected


@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("place", ["home", "home/deep", "home/deep/file"])
def test_what_is_written_replaces_what_was_planted(
    theirs: Path, folder: UntrustedFolder, plant: Callable[[Path, Path], None], place: str, tmp_path: Path
) -> None:
    """It lands nowhere else."""
    (theirs / place).parent.mkdir(parents=True, exist_ok=True)
    plant(theirs / place, tmp_path / "outside/secret")
    folder.write("home/deep/file", "ours")
    path = theirs / "home/deep/file"
    assert path.read_text() == "ours"
    assert not any(part.is_symlink() for part in (path, *path.parents[:2]))
    assert (tmp_path / "outside/secret").read_text() == "secret"
    assert sorted(each.name for each in (tmp_path / "outside").iterdir()) == ["secret"]


def test_nothing_is_left_of_a_file_that_could_not_be_written(theirs: Path, folder: UntrustedFolder) -> None:
    with pytest.raises(OSError):  # noqa: PT011 - any of them
        folder.write("x" * 300, "text")
    assert list(theirs.iterdir()) == []


def test_locked_folders_are_opened_to_write_and_skipped_to_read() -> None:
    """This is tested as an ordinary user."""

    def work() -> None:
        (root / "home/.tool").mkdir(parents=True)
        (root / "home/.tool/secret").write_text("x")
        (root / "shut").touch()
        (root / "shut").chmod(0)
        for name in ("home/.tool", "home", "."):
            (root / name).chmod(0)
        with UntrustedFolder.at(root) as opened:
            with pytest.raises(PermissionError):
                opened.walk()
            opened.write("home/.tool/settings", "ours")
            (root / "home/.tool").chmod(0)
            assert [entry.path for entry in opened.walk()] == ["shut"]
            with pytest.raises(PermissionError):
                opened.read("shut", 10)
            (root / "home/.tool").chmod(0o700)
        assert (root / "home/.tool/settings").read_text() == "ours"

    with folder_of_nobody() as parent:
        root = parent / "root"
        as_nobody(lambda: (root.mkdir(), work())[1])  # type: ignore[func-returns-value]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_root_writes_into_a_users_folder_is_that_users(theirs: Path) -> None:
    os.chown(theirs, 65534, 65534)
    with UntrustedFolder.at(theirs) as opened:
        opened.write("new/file", "ours")
    assert {(theirs / name).stat().st_uid for name in ("new", "new/file")} == {65534}
