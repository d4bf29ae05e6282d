"""Kernel namespaces for an agent: its own /dev/shm and terminals, process table, and user.

Contract: `enter_namespaces` moves the calling process, which must have no threads, into them. If the agent has its own
user, that user may not enter some of the folders above the agent's files (root's home, the run directory). Each such
folder is hidden by an empty one, in which only the agent's files are mounted again, at the same paths. Root mounts with
its own privileges, an ordinary user in a user namespace. Nothing of this is visible outside, and it disappears when the
last process ends.

Standard library only: `os.unshare` needs Python 3.12, and the standard library has no mount(2).
Source: the manual's mount_namespaces(7), user_namespaces(7), pid_namespaces(7).
"""

import ctypes
import errno
import fcntl
import json
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from a2rl.linux.landlock import LIBC, check, prctl
from a2rl.linux.resources import close_files, open_files
from a2rl.sandbox.command import Confinement

_NEW_MOUNTS, _NEW_IPC, _NEW_USER, _NEW_PIDS = 0x00020000, 0x08000000, 0x10000000, 0x20000000
_NEW_NETWORK, _SET_INTERFACE_FLAGS, _UP = 0x40000000, 0x8914, 1
_NOSUID, _NODEV, _NOEXEC, _BIND, _RECURSIVE, _PRIVATE = 2, 4, 8, 1 << 12, 1 << 14, 1 << 18
_MOUNT_SETATTR, _AT_FDCWD, _AT_RECURSIVE, _READ_ONLY = 442, -100, 0x8000, 1
_CAP_SYS_ADMIN = 21
_FOR_ANOTHER_USER = {
    "CHOWN": 0, "DAC_OVERRIDE": 1, "FOWNER": 3, "KILL": 5, "SETGID": 6, "SETUID": 7, "SYS_PTRACE": 19
}  # fmt: skip
"""The last one is for the broker, which takes the sockets out of a process. Docker does not grant it by itself."""
_CAPSET = {"x86_64": 126, "aarch64": 91}
_CAPABILITY_VERSION_3 = 0x20080522
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_CAP_AMBIENT = 1, 4, 23, 24, 47
_CLEAR_ALL = 4
MAX_PASSES = 8
"""How often `make_reachable` repeats: below a folder that was made accessible there may be another closed one."""
TERMINATION_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TRY_NAMESPACES = "import sys; sys.path.insert(0, sys.argv[1]); from a2rl.sandbox.namespaces import try_all"
TRY_NAMESPACES += "; try_all(int(sys.argv[2]))"
"""A program: `python -I -S -c TRY_NAMESPACES <folder of a2rl> <user>`; see `try_all`."""


def enter_namespaces(wanted: Confinement) -> int | None:
    """Moves this process and its future children into the namespaces that `wanted` asks for.

    With its own process table, the calling code continues in a child that is the table's first process, while the
    original process stays outside and waits for it.

    Returns:
        With its own process table, the file descriptor for `run_as_init`; else None.

    Raises:
        OSError: The kernel refuses; the message says what it refused.
    """
    if not (wanted.devices or wanted.processes):
        return None
    by_right = may_mount()
    if not by_right:
        switch_user(wanted.user)
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
        make_reachable((*wanted.read, *wanted.write), wanted.user)
        os.chdir(cwd)  # the previous working directory may be hidden now
    return _start_process_table() if wanted.processes else None


def leave_network() -> None:
    """Moves this process and its future children into a network of their own, which has a loopback and nothing else.

    Raises:
        OSError: The kernel refuses.
    """
    _unshare(_NEW_NETWORK, in_user_namespace=not may_mount())
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_INTERFACE_FLAGS, struct.pack("16sH22x", b"lo", _UP))


def lacking_for_another_user() -> list[str]:
    """Returns which capabilities root lacks here, of those that processes of another user require of it."""
    own = _capabilities()
    return [name for name, number in _FOR_ANOTHER_USER.items() if not own >> number & 1]


def may_mount() -> bool:
    """Whether this process has the privilege to mount, which `make_reachable` needs."""
    return bool(_capabilities() >> _CAP_SYS_ADMIN & 1)


def _make_read_only_all_but(paths: Iterable[str]) -> None:
    """Mounts everything else read-only, so that files elsewhere cannot be changed, nor their modes, owners or times."""
    cwd, kept = os.getcwd(), [path for path in paths if os.path.isdir(path)]  # noqa: PTH109, PTH112
    for path in kept:
        _mount(path, path, "", _BIND | _RECURSIVE)
    _set_mount("/", _AT_RECURSIVE, on=_READ_ONLY)
    for path in kept:
        _set_mount(path, 0, off=_READ_ONLY)
    os.chdir(cwd)  # enter the new mount at the same path


def _set_mount(path: str, flags: int, on: int = 0, off: int = 0) -> None:
    attributes = struct.pack("=4Q", on, off, 0, 0)
    size = ctypes.c_size_t(len(attributes))
    check(LIBC.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, size), f"the mount on {path}")


def switch_user(user: int | None) -> None:
    """Changes to the user and group with this id, without any other groups; 0 and None change nothing."""
    if user and os.geteuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel resets it when the user changes


def make_reachable(paths: Iterable[str], user: int) -> None:
    """Makes paths accessible to a user who may not enter some parent folders; other files in those are hidden."""
    wanted = {place for path in paths if os.path.exists(path) for place in (path, os.path.realpath(path))}  # noqa: PTH110
    for _ in range(MAX_PASSES):
        closed: dict[Path, list[Path]] = {}
        for path in sorted(map(Path, wanted), key=lambda path: len(path.parts)):
            if (above := closed_parent(path, user)) is not None:
                closed.setdefault(above, []).append(path)
        if not closed:
            return
        for above, below in closed.items():
            _hide_all_but(above, below)


def closed_parent(path: Path, user: int) -> Path | None:
    """Returns the outermost folder above a path that this user may not enter; None if there is none.

    The user is a member only of the group with the same id.
    """
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
        if not os.path.lexists(path):  # else it was mounted with a folder above it
            path.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISDIR(os.fstat(opened).st_mode):
                path.mkdir()
            else:
                path.touch()
            _mount(f"/proc/self/fd/{opened}", str(path), "", _BIND | _RECURSIVE)
        os.close(opened)


def _unshare(flags: int, in_user_namespace: bool) -> None:
    user, group = os.geteuid(), os.getegid()
    check(LIBC.unshare(flags | _NEW_USER * in_user_namespace), "namespaces")
    if in_user_namespace:
        prctl(_PR_SET_DUMPABLE, 1)  # after a change of user, the files below would belong to root
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    encoded = [os.fsencode(text) for text in (source, target, kind)]
    check(LIBC.mount(*encoded, ctypes.c_ulong(flags), os.fsencode(options)), f"a mount on {target}")


def _start_process_table() -> int:
    """Starts a process table with a child as its first process, and returns only in that child.

    The original process waits for the child and ends with its status.

    Returns:
        The file descriptor for `run_as_init`.
    """
    reading, writing = os.pipe()
    opened = open_files()  # now, as /proc will be the child's
    if child := os.fork():
        _wait_outside(child, reading, opened - {0, 1, 2, reading})
    os.close(reading)
    prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _mount("proc", "/proc", "proc", _NOSUID | _NODEV | _NOEXEC)
    return writing


def _wait_outside(child: int, reading: int, opened: set[int]) -> NoReturn:
    """Waits outside the process table, then ends with the agent's status, which the table's first process reports."""
    close_files(opened)
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # these signals are for the agent, not for this process
    drop_capabilities()
    _, status = os.waitpid(child, 0)
    if told := os.read(reading, 16):
        status = int(told)
    if os.WIFSIGNALED(status):
        with suppress(OSError):  # the handler of SIGKILL cannot be set
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def run_as_init(agent: int, telling: int) -> NoReturn:
    """Acts as the first process of a process table: reaps orphans until the agent ends.

    When this process ends, the kernel kills all others in the table.

    Args:
        telling: The file descriptor to which the agent's exit status is written.
    """
    for number in TERMINATION_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    ended = status = 0
    while ended != agent:
        ended, status = os.wait()
    os.write(telling, str(status).encode())
    os._exit(0)


def drop_capabilities() -> None:
    """Drops all capabilities and the ways to regain them: from now on, root has no privileges."""
    drop_inheritable_capabilities()
    set_capabilities(0)


def set_capabilities(kept: int) -> None:
    """Leaves the calling thread only some of its capabilities; `kept` is their bit mask, below 32."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    sets = struct.pack("=6I", kept, kept, 0, 0, 0, 0)
    check(LIBC.syscall(_CAPSET[os.uname().machine], header, sets), "capabilities cannot be dropped")


def drop_inheritable_capabilities() -> None:
    """Drops the ways to gain capabilities; this process keeps its current ones until its user changes."""
    LIBC.prctl(_PR_CAP_AMBIENT, _CLEAR_ALL, 0, 0, 0)
    capability = 0
    while LIBC.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:
        LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)  # refused if there is nothing to drop
        capability += 1


def _capabilities() -> int:
    """Returns the effective capabilities of this process, one bit for each."""
    for line in Path("/proc/self/status").read_bytes().splitlines():
        if line.startswith(b"CapEff:"):
            return int(line.split()[1], 16)
    return 0


def try_all(user: int) -> None:
    """Tries which namespaces an agent can have on this machine.

    It prints one line of JSON, with an errno for each of "user", "devices" and "processes"; 0: it is possible.

    Args:
        user: An unused user id to change to; 0: do not try this.
    """
    nothing = Confinement((), (), (), (), (), "")
    found = {
        "user": _error_of(lambda: switch_user(user)) if user else errno.EPERM,
        "devices": _error_of(lambda: enter_namespaces(nothing._replace(devices=True))),
        "processes": _error_of(lambda: _enter_table(nothing)),
    }
    sys.stdout.write(json.dumps(found) + "\n")


def _enter_table(nothing: Confinement) -> None:
    if (telling := enter_namespaces(nothing._replace(processes=True))) is not None:
        os.write(telling, b"0")


def _error_of(attempt: Callable[[], object]) -> int:
    """Returns the errno of an attempt, made in a child process; 0 if it succeeded."""
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    code = 0
    try:
        attempt()
    except OSError as error:
        code = error.errno or errno.EPERM
    os._exit(code)
