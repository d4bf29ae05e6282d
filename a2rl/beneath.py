"""A folder that others can write to, and what we do in it: look, read, copy out and write.

    with Folder.at(run.workspace) as workspace:
        workspace.write("run_meta.json", text)
        for entry in workspace.walk("output"):
            ...

Contract: nothing is reached by its path but by open descriptors, so that whoever changes names meanwhile gains nothing.
No link is followed, no mount entered, and nothing opened but folders and regular files that have no second name, so
that nothing waits for a pipe, a device or a lease. All work has limits. Names are hostile: any bytes (as surrogates,
which `text_of` makes readable), any length, any depth. What does not work raises OSError and nothing else.
"""

import errno
import os
import secrets
import stat
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, NamedTuple

from a2rl.openat import open_beneath

BLOCK = 1 << 20
SLOWEST = 1 << 20
"""Bytes a second: what is copied more slowly is given up, after `PATIENCE_S`."""
PATIENCE_S = 60.0


class Entry(NamedTuple):
    """Something below the folder that is no folder."""

    path: str
    is_file: bool
    """A regular file without a second name; all else (links, pipes, devices, sockets) is not to be read."""
    size: int
    """Bytes, as it says itself: a sparse file may take less."""
    changed_ns: int


class Limits(NamedTuple):
    """What a walk may take; what lies beyond is left out."""

    entries: int = 20_000
    """Folders included."""
    depth: int = 32
    seconds: float = 5.0


DEFAULT_LIMITS = Limits()


class Changed(OSError):
    """A file was changed while it was copied."""


class Folder(AbstractContextManager["Folder"]):
    """An open folder; to be closed, or used as a context."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor, which may be of O_PATH, as its own."""
        self._folder = descriptor

    @classmethod
    def at(cls, path: Path) -> "Folder":
        """Opens a folder whose parent is ours; the folder itself must not be a link."""
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def close(self) -> None:
        os.close(self._folder)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def folder(self, path: str) -> "Folder":
        """Opens a folder below."""
        return Folder(_named(self._folder, path, os.O_PATH | os.O_DIRECTORY))

    @contextmanager
    def open(self, path: str) -> Iterator[BinaryIO]:
        """Opens a regular file below for reading, at once or not at all."""
        found = _named(self._folder, path, os.O_PATH)
        try:
            _check(os.fstat(found), path)
            # Opened only now that it is known to be a file: to open a device may already do something.
            opened = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(found)
        with os.fdopen(opened, "rb", buffering=0) as file:
            yield file

    def read(self, path: str, max_bytes: int) -> bytes:
        """The first bytes of a file."""
        with self.open(path) as file:
            return b"".join(_blocks(file, min(os.fstat(file.fileno()).st_size, max_bytes)))

    def copy(self, path: str, target: Path, max_bytes: int) -> None:
        """Copies the first bytes of a file to a new file of ours; where that fails, there is no new file.

        Raises:
            Changed: it became shorter meanwhile.
        """
        with self.open(path) as file, target.open("xb") as copy:
            try:
                copy_open_file(file, copy, min(os.fstat(file.fileno()).st_size, max_bytes))
            except OSError:
                target.unlink(missing_ok=True)
                raise

    def names(self, most: int) -> list[str]:
        """What lies in this folder; at most so many names."""
        with self._scan() as entries:
            return sorted(entry.name for entry in islice(entries, most))

    def walk(self, path: str = "", limits: Limits = DEFAULT_LIMITS, skip: frozenset[str] = frozenset()) -> list[Entry]:
        """All that lies below a folder, what is near the top first; folders of these names (lower case) are left out.

        What cannot be opened is left out, too, unless it is the folder itself.
        """
        deadline, left = time.monotonic() + limits.seconds, limits.entries
        found: list[Entry] = []
        queue = deque([(path, 0)])
        with self.folder(path):
            pass  # raises where it is none of ours to read
        while queue and left > 0 and time.monotonic() < deadline:
            at, depth = queue.popleft()
            with suppress(OSError), self.folder(at) as folder, folder._scan() as entries:
                seen = sorted(islice(entries, left), key=lambda entry: entry.name)
                left -= len(seen)
                for entry in seen:
                    below = f"{at}/{entry.name}" if at else entry.name
                    if not entry.is_dir(follow_symlinks=False):
                        found += _entries(below, entry)
                    elif depth < limits.depth and entry.name.lower() not in skip:
                        queue.append((below, depth + 1))
        return found

    def match(self, pattern: str, limits: Limits = DEFAULT_LIMITS) -> list[Entry]:
        """The regular files that a pattern of ours names: `*` within a name, `**` for any number of folders."""
        parts = tuple(pattern.split("/"))
        plain = next((place for place, part in enumerate(parts[:-1]) if "*" in part), len(parts) - 1)
        found = self.walk("/".join(parts[:plain]), limits)
        return [entry for entry in found if entry.is_file and _matches(tuple(entry.path.split("/")), parts)]

    def write(self, path: str, text: str, mode: int = 0o600) -> None:
        """Writes a file, whole or not at all, and gives it to the owner of this folder.

        What others put in its way, or took our permission from, does not stop it: links are replaced, folders moved
        aside.
        """
        *folders, name = path.split("/")
        owner = os.fstat(self._folder)
        here = os.dup(self._folder)
        try:
            _permit(here)
            for folder in folders:
                below = _folder_for_us(here, folder, owner)
                os.close(here)
                here = below
            _write(here, name, text, mode, owner)
        finally:
            os.close(here)

    @contextmanager
    def _scan(self) -> Iterator[Iterator["os.DirEntry[str]"]]:
        opened = _named(self._folder, ".", os.O_RDONLY | os.O_DIRECTORY)
        try:
            with os.scandir(opened) as entries:
                yield entries
        finally:
            os.close(opened)


def text_of(path: str) -> str:
    """A name as text that can be written anywhere, whatever its bytes are."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def copy_open_file(source: BinaryIO, target: IO[bytes], size: int) -> None:
    """Copies exactly so many bytes.

    Raises:
        Changed: there are fewer.
        TimeoutError: it goes on for longer than a file of this size may take.
    """
    for block in _blocks(source, size):
        target.write(block)


def _blocks(source: BinaryIO, size: int) -> Iterator[bytes]:
    deadline, left = time.monotonic() + PATIENCE_S + size / SLOWEST, size
    while left > 0:
        if not (block := source.read(min(BLOCK, left))):
            raise Changed(errno.ECANCELED, "it became shorter while it was read")
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"it is read more slowly than {SLOWEST >> 20} MiB a second")
        left -= len(block)
        yield block


def _named(folder: int, path: str, flags: int) -> int:
    try:
        return open_beneath(folder, path or ".", flags)
    except ValueError as error:  # a null byte, or text that is no name
        raise OSError(errno.EINVAL, f"no file can have this name: {error}") from error


def _check(status: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if status.st_nlink > 1:  # it may be somebody else's, linked to from here
        raise OSError(errno.EMLINK, "a hard link", path)


def _entries(path: str, entry: "os.DirEntry[str]") -> Iterator[Entry]:
    with suppress(OSError):  # gone meanwhile
        status = entry.stat(follow_symlinks=False)
        is_file = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        yield Entry(path, is_file, status.st_size, status.st_mtime_ns)


def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern or not path:
        return not pattern and not path
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or _matches(path[1:], pattern)
    return fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _folder_for_us(here: int, name: str, owner: os.stat_result) -> int:
    """Opens a folder, made first where there is none."""
    for _ in range(2):
        made = _make_folder(here, name)
        below = _named(here, name, os.O_PATH)
        if stat.S_ISDIR(os.fstat(below).st_mode):
            _permit(below)
            if made:
                _give(below, owner)
            return below
        os.close(below)
        _move_aside(here, name)
    raise OSError(errno.EBUSY, "somebody puts something in its place again and again", name)


def _make_folder(here: int, name: str) -> bool:
    try:
        os.mkdir(name, dir_fd=here)
    except FileExistsError:
        return False
    return True


def _write(here: int, name: str, text: str, mode: int, owner: os.stat_result) -> None:
    temporary = f".a2rl-{secrets.token_hex(8)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = os.open(temporary, flags, mode, dir_fd=here)
    try:
        with os.fdopen(opened, "w", encoding="utf-8") as file:
            file.write(text)
            _give(opened, owner)
        try:
            os.rename(temporary, name, src_dir_fd=here, dst_dir_fd=here)
        except IsADirectoryError:
            _move_aside(here, name)
            os.rename(temporary, name, src_dir_fd=here, dst_dir_fd=here)
    except OSError:
        with suppress(OSError):
            os.unlink(temporary, dir_fd=here)
        raise


def _move_aside(here: int, name: str) -> None:
    """Not removed: a folder could be of any size and depth."""
    os.rename(name, f".a2rl-aside-{secrets.token_hex(8)}", src_dir_fd=here, dst_dir_fd=here)


def _give(opened: int, owner: os.stat_result) -> None:
    """Where an agent has a user of its own, only root can give it something."""
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(f"/proc/self/fd/{opened}", owner.st_uid, owner.st_gid)


def _permit(folder: int) -> None:
    """Takes back the permission to write in a folder, which its owner (the same user) may have given up."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        with suppress(OSError):
            os.chmod(f"/proc/self/fd/{folder}", mode | stat.S_IRWXU)  # noqa: PTH101 - O_PATH has no other way
