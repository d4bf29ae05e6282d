"""A folder that an untrusted process can write to, and safe ways to list, read, copy and write in it.

    with UntrustedFolder.at(run.workspace) as workspace:
        workspace.write("run_meta.json", text)
        for entry in workspace.walk("output"):
            ...

Contract: everything is accessed through open descriptors, never through paths, so that an attacker gains nothing by
renaming files at the same time. No link is followed and no mount is entered. Only folders and regular files with a
single name are opened, so that no pipe, device or lease can block us. All work has limits. Names may contain any bytes
(as surrogates, which `printable_name` makes readable) and have any length and depth. Failures raise OSError and nothing
else.

`open_beneath` uses openat2(2) (Linux 5.6), which Python's `os` lacks. If it is missing, or a container's filter refuses
it, the folders on the way are opened one after the other with O_NOFOLLOW. This reaches the same files, but does not
detect mounts on the way.

No library: pathlib and shutil use paths, and no package on PyPI offers openat2 with RESOLVE_BENEATH.
"""

import ctypes
import errno
import os
import secrets
import stat
import struct
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from fnmatch import fnmatchcase
from functools import cache
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import IO, BinaryIO, NamedTuple

from a2rl.linux.landlock import LIBC

_OPENAT2 = 437  # on all architectures
_NO_XDEV, _NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x01, 0x02, 0x04, 0x08
_RESOLVE = _NO_XDEV | _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH
_STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TRIES = 8
"""openat2 fails with EAGAIN if something is renamed at the same time."""
BLOCK = 1 << 20
MIN_BYTES_PER_S = 1 << 20
"""A copy may take COPY_TIMEOUT_S, plus its size divided by this rate; then it is abandoned."""
COPY_TIMEOUT_S = 60.0


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Opens `path`, which may have several parts, below the open `folder` without following links.

    With O_PATH, the last part may be a link, which is then opened itself. The call never blocks.

    Raises:
        OSError: It cannot be opened; ELOOP, ENOTDIR or EXDEV if a link, a file or a mount is on the way.
        ValueError: The path is not a valid file name.
    """
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK * (not flags & os.O_PATH)
    if not has_openat2():
        return _step_by_step(folder, path, flags)
    for _ in range(_TRIES):
        try:
            return openat2(folder, os.fsencode(path), flags)
        except OSError as error:
            if error.errno not in {errno.EAGAIN, errno.EINTR}:
                raise
            last = error
    raise last


def entries_below(root: int, *skipped: type[OSError]) -> Iterator[tuple[int, "os.DirEntry[str]"]]:
    """Yields everything below an open folder, each with its own folder, which is open for as long.

    No link is followed and no mount is entered, whatever processes rename meanwhile. There are no limits.

    Args:
        skipped: Errors for which what is left of a folder is left out; all others are raised.
    """
    folders = ["."]
    while folders:
        path = folders.pop()
        with suppress(*skipped):
            folder = open_beneath(root, path, os.O_RDONLY | os.O_DIRECTORY)
            try:
                with os.scandir(folder) as entries:
                    for entry in entries:
                        yield folder, entry
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(f"{path}/{entry.name}")
            finally:
                os.close(folder)


@cache
def has_openat2() -> bool:
    """Whether openat2 exists and no filter refuses it."""
    try:
        here = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.close(openat2(here, b".", os.O_PATH | os.O_CLOEXEC))
        finally:
            os.close(here)
    except OSError:
        return False
    return True


def openat2(folder: int, path: bytes, flags: int, resolve: int = _RESOLVE) -> int:
    """Opens a path below an open folder; the flags `resolve` limit how it is resolved."""
    if b"\0" in path:
        raise ValueError("embedded null byte")
    how = struct.pack("QQQ", flags, 0, resolve)
    size = ctypes.c_size_t(len(how))
    opened = LIBC.syscall(ctypes.c_long(_OPENAT2), ctypes.c_long(folder), ctypes.c_char_p(path), how, size)
    if opened < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fsdecode(path))
    return int(opened)


def _step_by_step(folder: int, path: str, flags: int) -> int:
    *folders, name = path.split("/")
    if ".." in (*folders, name) or path.startswith("/"):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    here = os.dup(folder)
    try:
        for step in folders:
            below = os.open(step or ".", _STEP, dir_fd=here)
            os.close(here)
            here = below
        return os.open(name or ".", flags, dir_fd=here)
    finally:
        os.close(here)


class FileId(NamedTuple):
    """Identifies a file on this machine."""

    device: int
    inode: int


class Entry(NamedTuple):
    """Anything below the folder, other than a folder."""

    path: str
    names: int
    """How many names a regular file has; 0 for anything else, such as links, pipes, devices and sockets."""
    size: int
    """The apparent size in bytes; a sparse file occupies less."""
    changed_ns: int
    id: FileId
    touched_ns: int
    """When the kernel last saw a change of any kind; unlike `changed_ns`, no process can choose it."""

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file with a single name. Nothing else may be read."""
        return self.names == 1


class Limits(NamedTuple):
    """Limits of a walk; entries beyond them are left out."""

    entries: int = 20_000
    """Maximum number of entries, folders included."""
    depth: int = 32
    seconds: float = 5.0


DEFAULT_LIMITS = Limits()
NO_LINKS: Mapping[FileId, int] = MappingProxyType({})


def file_id(status: os.stat_result) -> FileId:
    """Returns the id of a file."""
    return FileId(status.st_dev, status.st_ino)


class FileChangedError(OSError):
    """A file became shorter while it was copied."""


class UntrustedFolder(AbstractContextManager["UntrustedFolder"]):
    """An open folder; close it, or use it as a context."""

    def __init__(self, descriptor: int) -> None:
        """Takes ownership of a descriptor, which may be opened with O_PATH."""
        self._folder = descriptor

    @classmethod
    def at(cls, path: Path) -> "UntrustedFolder":
        """Opens a folder whose parents are trusted; the folder itself must not be a link."""
        return cls(os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC))

    def close(self) -> None:
        """Closes the descriptor."""
        os.close(self._folder)

    def __exit__(self, *_: object) -> None:
        self.close()

    def folder(self, path: str) -> "UntrustedFolder":
        """Opens a folder below this one."""
        return UntrustedFolder(_named(self._folder, path, os.O_PATH | os.O_DIRECTORY))

    @contextmanager
    def open(self, path: str, links: Mapping[FileId, int] = NO_LINKS) -> Iterator[BinaryIO]:
        """Opens a regular file for reading, without ever blocking.

        Args:
            path: The file, relative to this folder.
            links: How many further names we ourselves have given to files.

        Raises:
            OSError: The path is not a regular file with a single name, or passes through a link.
        """
        found = _named(self._folder, path, os.O_PATH)
        try:
            status = os.fstat(found)
            _check(status, path, names=1 + links.get(file_id(status), 0))
            # Opened only once it is known to be a file: merely opening a device can have effects.
            opened = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        finally:
            os.close(found)
        with os.fdopen(opened, "rb", buffering=0) as file:
            yield file

    def read(self, path: str, max_bytes: int, links: Mapping[FileId, int] = NO_LINKS) -> bytes:
        """Returns the first `max_bytes` bytes of a file; for `links`, see `open`."""
        with self.open(path, links) as file:
            return b"".join(_blocks(file, min(os.fstat(file.fileno()).st_size, max_bytes)))

    def copy(self, path: str, target: Path, max_bytes: int) -> None:
        """Copies the first `max_bytes` bytes of a file to the new file `target`, which is removed on failure.

        Raises:
            FileChangedError: The file became shorter while it was copied.
        """
        with self.open(path) as file, target.open("xb") as copy:
            try:
                copy_open_file(file, copy, min(os.fstat(file.fileno()).st_size, max_bytes))
            except OSError:
                target.unlink(missing_ok=True)
                raise

    def names(self, most: int) -> list[str]:
        """Returns the sorted names in this folder, at most `most` of them."""
        with self._scan() as entries:
            return sorted(entry.name for entry in islice(entries, most))

    def walk(
        self,
        path: str = "",
        limits: Limits = DEFAULT_LIMITS,
        skip: frozenset[str] = frozenset(),
        on_missed: Callable[[str], object] = lambda folder: None,
    ) -> list[Entry]:
        """Lists everything below a folder except folders, breadth first.

        Folders that cannot be opened are left out.

        Args:
            path: The folder to start from, relative to this one.
            skip: Names of folders to leave out, in lower case.
            on_missed: Called with each folder of which something is left out, because it cannot be opened or is beyond
                a limit.

        Raises:
            OSError: The folder to start from cannot be opened.
        """
        deadline, left = time.monotonic() + limits.seconds, limits.entries
        found: list[Entry] = []
        queue = deque([(path, 0)])
        with self.folder(path):
            pass  # raises if it cannot be read
        while queue and left > 0 and time.monotonic() < deadline:
            at, depth = queue.popleft()
            try:
                with self.folder(at) as folder, folder._scan() as entries:
                    seen = sorted(islice(entries, left), key=lambda entry: entry.name)
                    if next(entries, None) is not None:
                        on_missed(at)
                    left -= len(seen)
                    for entry in seen:
                        below = f"{at}/{entry.name}" if at else entry.name
                        if not entry.is_dir(follow_symlinks=False):
                            found += _entries(below, entry)
                        elif entry.name.lower() not in skip:
                            queue.append((below, depth + 1)) if depth < limits.depth else on_missed(below)
            except OSError:
                on_missed(at)
        for below, _ in queue:
            on_missed(below)
        return found

    def match(self, pattern: str, limits: Limits = DEFAULT_LIMITS) -> list[Entry]:
        """Returns the regular files that match a pattern: `*` within a name, `**` for any number of folders."""
        parts = tuple(pattern.split("/"))
        plain = next((place for place, part in enumerate(parts[:-1]) if "*" in part), len(parts) - 1)
        found = self.walk("/".join(parts[:plain]), limits)
        return [entry for entry in found if entry.is_file and _matches(tuple(entry.path.split("/")), parts)]

    def write(self, path: str, text: str, mode: int = 0o600) -> None:
        """Writes a file atomically and gives it to the owner of this folder.

        Obstacles that the agent may have created are removed: links are replaced, folders are renamed, and missing
        permissions are restored.
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


def printable_name(path: str) -> str:
    """Returns a file name, whatever its bytes are, as valid UTF-8 text."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def copy_open_file(source: IO[bytes], target: IO[bytes], size: int) -> None:
    """Copies exactly `size` bytes.

    Raises:
        FileChangedError: The source has fewer bytes.
        TimeoutError: The copy takes longer than allowed for a file of this size.
    """
    for block in _blocks(source, size):
        target.write(block)


def _blocks(source: IO[bytes], size: int) -> Iterator[bytes]:
    deadline, left = time.monotonic() + COPY_TIMEOUT_S + size / MIN_BYTES_PER_S, size
    while left > 0:
        if not (block := source.read(min(BLOCK, left))):
            raise FileChangedError(errno.ECANCELED, "the file became shorter while it was read")
        if time.monotonic() > deadline:
            raise TimeoutError(errno.ETIMEDOUT, f"reading is slower than {MIN_BYTES_PER_S >> 20} MiB a second")
        left -= len(block)
        yield block


def _named(folder: int, path: str, flags: int) -> int:
    try:
        return open_beneath(folder, path or ".", flags)
    except ValueError as error:  # a null byte, or text that cannot be encoded
        raise OSError(errno.EINVAL, f"not a valid file name: {error}") from error


def _check(status: os.stat_result, path: str, names: int) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    if status.st_nlink > names:  # it may be another user's file, linked to from here
        raise OSError(errno.EMLINK, "a hard link", path)


def _entries(path: str, entry: "os.DirEntry[str]") -> Iterator[Entry]:
    with suppress(OSError):  # it was removed in the meantime
        status = entry.stat(follow_symlinks=False)
        names = status.st_nlink if stat.S_ISREG(status.st_mode) else 0
        yield Entry(path, names, status.st_size, status.st_mtime_ns, file_id(status), status.st_ctime_ns)


def _matches(path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    if not pattern or not path:
        return not pattern and not path
    if pattern[0] == "**":
        return _matches(path, pattern[1:]) or _matches(path[1:], pattern)
    return fnmatchcase(path[0], pattern[0]) and _matches(path[1:], pattern[1:])


def _folder_for_us(here: int, name: str, owner: os.stat_result) -> int:
    """Opens a folder, after creating it if necessary."""
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
    raise OSError(errno.EBUSY, "another process keeps replacing this folder", name)


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
    """Renames an obstacle instead of removing it, because a folder may be so large or deep that removal never ends."""
    os.rename(name, f".a2rl-aside-{secrets.token_hex(8)}", src_dir_fd=here, dst_dir_fd=here)


def _give(opened: int, owner: os.stat_result) -> None:
    """Makes the owner of the folder the owner of a file.

    Only root can do this. It is not needed otherwise, because agents have their own user only if we are root.
    """
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.chown(f"/proc/self/fd/{opened}", owner.st_uid, owner.st_gid)


def _permit(folder: int) -> None:
    """Restores the owner's permissions on a folder, which the agent (the same user) may have removed."""
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        with suppress(OSError):
            os.chmod(f"/proc/self/fd/{folder}", mode | stat.S_IRWXU)  # noqa: PTH101 - O_PATH has no other way
