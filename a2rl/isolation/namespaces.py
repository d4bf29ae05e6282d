"""What an agent has of its own, by namespaces of the kernel: /dev/shm and terminals, a table of processes, a user.

Contract: `enter` puts the calling process, which must have no threads, into them. Where the agent has a user of its
own, folders on the way to its files that are closed to that user (root's home, the directory of the run) are hidden
by an empty one in which just its files are mounted again, at the same paths. Root mounts by its own right, an ordinary
user in a user namespace. Nothing here is visible outside, and all of it is gone with the last process.

Only the standard library is imported. Source: the manual's mount_namespaces(7), user_namespaces(7), pid_namespaces(7).
"""

import ctypes
import os
import signal
import stat
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from a2rl.isolation.confinement import Confinement
from a2rl.sandbox.landlock import prctl

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_CAP_SYS_ADMIN = 21
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _CLEAR_ALL = (
    1,
    4,
    23,
    24,
    47,
    4,
)
_LIBC = ctypes.CDLL(None, use_errno=True)
PASSES = 8
"""A folder that was opened up may have another closed one below."""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def enter(wanted: Confinement) -> int | None:
    """Makes this process and its children live in what `wanted` gives them of their own.

    With a table of processes, this process becomes its first one, and another stays outside and waits for it.

    Returns:
        With a table of processes, the file for `be_first`.

    Raises:
        OSError: the kernel refuses; the message says what.
    """
    if not (wanted.devices or wanted.processes):
        return None
    by_right = may_mount()
    if not by_right:
        become(wanted.user)
    _unshare(_NEW_MOUNTS | (_NEW_PIDS | _NEW_IPC) * wanted.processes, in_user_namespace=not by_right)
    _mount("none", "/", "", _RECURSIVE | _PRIVATE)
    if wanted.devices and not wanted.user:
        _make_read_only_all_but((*wanted.write, *({"/proc"} & set(wanted.use))))
    if wanted.devices:
        _mount("tmpfs", "/dev/shm", "tmpfs", _NOSUID | _NODEV, "mode=1777,size=50%")
        _mount("devpts", "/dev/pts", "devpts", _NOSUID | _NOEXEC, "newinstance,ptmxmode=0666,mode=0620")
    for name in ("passwd", "group") if wanted.names else ():
        _mount(f"{wanted.names}/{name}", f"/etc/{name}", "", _BIND)
    if wanted.user and by_right:
        cwd = os.getcwd()  # noqa: PTH109
        open_up((*wanted.read, *wanted.write), wanted.user)
        os.chdir(cwd)  # out of what is hidden now
    return _found_table_of_processes() if wanted.processes else None


def may_mount() -> bool:
    """Whether this process may mount by its own right; only then can `open_up` be used."""
    return _has_capability(_CAP_SYS_ADMIN)


def _make_read_only_all_but(paths: Iterable[str]) -> None:
    """What belongs to the agent's user and lies elsewhere cannot be changed then, nor its mode, owner and times."""
    cwd, kept = os.getcwd(), [path for path in paths if os.path.isdir(path)]  # noqa: PTH109, PTH112
    for path in kept:
        _mount(path, path, "", _BIND | _RECURSIVE)
    _set_mount("/", _AT_RECURSIVE, on=_READ_ONLY)
    for path in kept:
        _set_mount(path, 0, off=_READ_ONLY)
    os.chdir(cwd)  # into what is mounted there now


def _set_mount(path: str, flags: int, on: int = 0, off: int = 0) -> None:
    attributes = struct.pack("=4Q", on, off, 0, 0)
    if _LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, ctypes.c_size_t(len(attributes))):
        _fail(f"the mount on {path}")


def become(user: int | None) -> None:
    """Changes to a user and group of this number, and to no other group."""
    if user and os.geteuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel forgets it as the user changes


def open_up(paths: Iterable[str], user: int) -> None:
    """Makes paths reachable for a user, whatever folders above them are closed to it; hides all else in those."""
    wanted = {place for path in paths if os.path.exists(path) for place in (path, os.path.realpath(path))}  # noqa: PTH110
    for _ in range(PASSES):
        closed: dict[Path, list[Path]] = {}
        for path in sorted(map(Path, wanted), key=lambda path: len(path.parts)):
            if (above := closed_folder(path, user)) is not None:
                closed.setdefault(above, []).append(path)
        if not closed:
            return
        for above, below in closed.items():
            _hide_all_but(above, below)


def closed_folder(path: Path, user: int) -> Path | None:
    """The outermost folder above a path that a user, who is in no group but its own, may not enter."""
    for above in reversed(path.parents):
        status = os.stat(above)  # noqa: PTH116
        theirs = stat.S_IXGRP if status.st_gid == user else stat.S_IXOTH
        if not status.st_mode & (stat.S_IXUSR if status.st_uid == user else theirs):
            return above
    return None


def _hide_all_but(folder: Path, below: Iterable[Path]) -> None:
    held = [(path, os.open(path, os.O_PATH | os.O_CLOEXEC)) for path in below]
    _mount("tmpfs", str(folder), "tmpfs", _NOSUID | _NODEV, "mode=0755,size=1m")
    for path, opened in held:
        if not os.path.lexists(path):  # else it came with a folder above it
            path.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISDIR(os.fstat(opened).st_mode):
                path.mkdir()
            else:
                path.touch()
            _mount(f"/proc/self/fd/{opened}", str(path), "", _BIND | _RECURSIVE)
        os.close(opened)


def _unshare(flags: int, in_user_namespace: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    if _LIBC.unshare(flags | _NEW_USER * in_user_namespace):
        _fail("namespaces")
    if in_user_namespace:
        prctl(_PR_SET_DUMPABLE, 1)  # after a change of user the next files would be root's
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    encoded = [os.fsencode(text) for text in (source, target, kind)]
    if _LIBC.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options)):
        _fail(f"a mount on {target}")


def _fail(what: str) -> NoReturn:
    error = ctypes.get_errno()
    raise OSError(error, f"{what}: {os.strerror(error)}")


def _found_table_of_processes() -> int:
    """Returns in a child that is the first process of a new table; this process waits for it, and ends as it says."""
    reading, writing = os.pipe()
    if child := os.fork():
        _stand_for(child, reading)
    os.close(reading)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    return writing


def _stand_for(child: int, reading: int) -> NoReturn:
    """Outside: waits, and ends as the agent did, which the first process tells."""
    os.closerange(3, reading)
    os.closerange(reading + 1, os.sysconf("SC_OPEN_MAX"))
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)  # whoever ends the agent asks it, and not us
    drop_capabilities()
    _, status = os.waitpid(child, 0)
    if told := os.read(reading, 16):
        status = int(told)
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # SIGKILL knows no default
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def be_first(agent: int, telling: int) -> NoReturn:
    """As the first process of a table: takes up what others leave, until the agent ends; all the rest ends with us."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)
    ended = status = 0
    while ended != agent:
        ended, status = os.wait()
    os.write(telling, str(status).encode())
    os._exit(0)


def drop_capabilities() -> None:
    """All of them, and the ways to get them back: what runs as root from here on is root in name only."""
    forget_capabilities()
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    if _LIBC.syscall(_CAPSET[os.uname().machine], header, bytes(24)):
        raise OSError(ctypes.get_errno(), "capabilities cannot be dropped")


def forget_capabilities() -> None:
    """The ways to get any: those that this process has stay, until its user changes."""
    _LIBC.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
        _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused to who has none: there is nothing to drop then
        capability += 1


def _has_capability(number: int) -> bool:
    for line in Path("/proc/self/status").read_bytes().splitlines():
        if line.startswith(b"CapEff:"):
            return bool(int(line.split()[1], 16) >> number & 1)
    return False
