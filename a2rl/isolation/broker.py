"""The broker: asked for every connection that an agent makes, it looks at the address and connects the socket itself.

Contract: an agent's `connect` reaches 127.0.0.1 and ::1 on the ports that it is given, TCP servers of its own on this
machine, and local sockets in its own folders; anything else is refused with EACCES. Its `listen` is done for it too, on
the loopback interface alone, so that its servers are known and nobody outside the machine reaches them. Each of these
is a line of JSON in a log.

The address is copied once, checked, and the copy is used: that the agent changes its memory meanwhile, or a link on the
way to a socket, or the socket's number, changes nothing. The kernel's answer is the agent's: a socket that does not
wait does not wait here either, and one that does has a thread to itself. Source: the manual's seccomp_unotify(2).

Only the standard library is imported: the broker is a thread of the supervisor.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import select
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.isolation.calls import number_of
from a2rl.printable import printable_json
from a2rl.secrets import scrub

_RECEIVE, _SEND, _IS_VALID = 0xC0502100, 0xC0182101, 0x40082102
"""Requests of ioctl(2); the sizes in them are those of the structures below."""
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_PIDFD_GETFD = 438
_LISTENING = "0A"
_LOCAL = struct.pack("=H", socket.AF_UNIX)
_INTERNET = {socket.AF_INET: struct.Struct("!HH4s"), socket.AF_INET6: struct.Struct("!HHI16s")}
"""The kernel's addresses: family, port, of IPv6 the flow, and the host."""
MAPPED = bytes(10) + b"\xff\xff"
"""What makes an IPv6 address of an IPv4 one."""
LOOPBACK_START = (b"\x7f", MAPPED + b"\x7f", bytes(15) + b"\1")
LOOPBACK = {b"\x7f\0\0\1", MAPPED + b"\x7f\0\0\1", bytes(15) + b"\1"}
ANYWHERE = {bytes(4): b"\x7f\0\0\1", MAPPED + bytes(4): MAPPED + b"\x7f\0\0\1", bytes(16): bytes(15) + b"\1"}
"""The kernel takes these for loopback, unless the socket is bound elsewhere."""
_LIBC = ctypes.CDLL(None, use_errno=True)

MAX_ADDRESS = 128
AT_ONCE = 256
"""Connections under way; more than that are told to try again."""
LINES_PER_S, MAX_LINES = 20, 20_000
MANY_SERVERS = 4096


class Call(NamedTuple):
    """A system call that waits for an answer."""

    id: int
    thread: int
    number: int
    arguments: tuple[int, ...]


class NetworkLog:
    """A line for each connection, of each kind as many as somebody may want to read: a flood of one hides no other."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()
        self._kinds: dict[tuple[Any, ...], list[int]] = {}
        """By kind: a second, the lines of that second, all lines, and those left out since the last one."""

    def write(self, call: str, family: str, address: str, port: int | None, allowed: bool) -> None:
        now = time.time()
        with self._lock:
            kind = self._kinds.setdefault((call, family, allowed), [0, 0, 0, 0])
            if kind[0] != int(now):
                kind[:2] = int(now), 0
            if kind[1] >= LINES_PER_S or kind[2] >= MAX_LINES:
                kind[3] += 1
                return
            line = {"t": round(now, 3), "call": call, "family": family, "address": address, "port": port}
            line |= {"allowed": allowed, **({"left_out_before": kind[3]} if kind[3] else {})}
            kind[1:] = kind[1] + 1, kind[2] + 1, 0
            with self._path.open("a", encoding="utf-8") as file:
                file.write(scrub(printable_json(line)) + "\n")


class Broker:
    """Answers until nobody is left who could ask; start it as a thread."""

    def __init__(self, listener: int, ports: tuple[int, ...], folders: tuple[Path, ...], log: NetworkLog) -> None:
        """
        Args:
            listener: the file that calls are read from and answered to.
            ports: on loopback, that may be connected to.
            folders: in which local sockets may be connected to.
            log: of what was asked.
        """
        self._listener, self._ports, self._log = listener, frozenset(ports), log
        self._folders = [folder.resolve() for folder in folders]
        self._servers: set[int] = set()
        """Sockets that listen for the agent, by inode."""
        self._slots = threading.BoundedSemaphore(AT_ONCE)
        self._listen = number_of("listen")

    def start(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        while not any(event & select.POLLHUP for _, event in waiting.poll()):
            block = bytearray(_NOTIFICATION.size)
            try:
                fcntl.ioctl(self._listener, _RECEIVE, block)
            except OSError:
                continue  # who asked has died
            identity, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(block)
            self._take(Call(identity, thread, number, tuple(arguments)))

    def _take(self, call: Call) -> None:
        if not self._slots.acquire(blocking=False):
            self._answer(call, errno.EAGAIN)
            return
        try:
            threading.Thread(target=self._handle, args=(call,), daemon=True).start()
        except RuntimeError:  # no more threads
            self._slots.release()
            self._answer(call, errno.EAGAIN)

    def _handle(self, call: Call) -> None:
        try:
            error = self._do(call)
        except OSError as refused:
            error = refused.errno or errno.EACCES
        finally:
            self._slots.release()
        self._answer(call, error)

    def _answer(self, call: Call, error: int) -> None:
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(call.id, 0, -error, 0))
        except FileNotFoundError:
            return  # who asked has died

    def _do(self, call: Call) -> int:
        """Does what is asked, if it may be done; the error that it ends with, 0 if none."""
        with _opened(Path(f"/proc/{call.thread}/mem"), os.O_RDONLY) as memory, _socket_of(call) as taken:
            fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", call.id))  # so both are of who asked
            if call.number == self._listen:
                return self._start_server(taken, call.arguments[1])
            pointer, length = call.arguments[1], ctypes.c_int(call.arguments[2]).value
            if not 2 <= length <= MAX_ADDRESS or pointer >= 1 << 63:
                return errno.EINVAL
            address = os.pread(memory, length, pointer)
            if address[:2] == _LOCAL:
                return self._connect_locally(call, taken, address)
            return self._connect(taken, address)

    def _start_server(self, taken: socket.socket, backlog: int) -> int:
        _keep_to_loopback(taken)
        if _LIBC.listen(taken.fileno(), ctypes.c_int(backlog)):
            return ctypes.get_errno()
        if taken.family in _INTERNET:
            if len(self._servers) > MANY_SERVERS:
                self._servers &= {inode for _, _, inode in _servers_here()}
            self._servers.add(os.fstat(taken.fileno()).st_ino)
            host, port = taken.getsockname()[:2]
            self._log.write("listen", taken.family.name, host, port, allowed=True)
        return 0

    def _connect(self, taken: socket.socket, address: bytes) -> int:
        family = _family(address)
        if family is None or len(address) < _INTERNET[family].size:
            self._log.write("connect", "other", address.hex(), None, allowed=False)
            return errno.EACCES
        end = _INTERNET[family].size
        _, port, *_, host = _INTERNET[family].unpack_from(address)
        host = ANYWHERE.get(host, host)
        address = address[: end - len(host)] + host + address[end:]
        given = host in LOOPBACK and port in self._ports
        servers = set() if given else _servers_at(host, port)
        allowed = given or (bool(servers) and servers <= self._servers)
        self._log.write("connect", family.name, socket.inet_ntop(family, host), port, allowed)
        if not allowed:  # who waits for a server of its own to start is told what it expects
            return errno.EACCES if servers or not host.startswith(LOOPBACK_START) else errno.ECONNREFUSED
        # A server on all interfaces makes any address look like its own: only what cannot leave the machine is.
        if not (_keep_to_loopback(taken) or host in LOOPBACK):
            return errno.EACCES
        return _connect(taken, address)

    def _connect_locally(self, call: Call, taken: socket.socket, address: bytes) -> int:
        path = os.fsdecode(address[2:].partition(b"\0")[0])
        target = self._open_socket(call, path) if path else None
        shown = path or "@" + os.fsdecode(address[3:])
        self._log.write("connect", "AF_UNIX", shown, None, allowed=target is not None)
        if target is None:
            return errno.EACCES
        try:
            return _connect(taken, _LOCAL + f"/proc/self/fd/{target}\0".encode())
        finally:
            os.close(target)

    def _open_socket(self, call: Call, path: str) -> int | None:
        """The socket at this path if it lies in one of the agent's folders, whatever links lead to its own folder."""
        whole = Path(f"/proc/{call.thread}/cwd").readlink() / path
        with _opened(whole.parent, os.O_PATH | os.O_DIRECTORY) as parent:
            # What is open stays the same folder, wherever links point meanwhile.
            where = Path(f"/proc/self/fd/{parent}").readlink()
            if not any(where.is_relative_to(folder) for folder in self._folders):
                return None
            found = os.open(whole.name, os.O_PATH | os.O_NOFOLLOW, dir_fd=parent)
        if stat.S_ISSOCK(os.fstat(found).st_mode):
            return found
        os.close(found)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "no socket")


def _family(address: bytes) -> socket.AddressFamily | None:
    number = int.from_bytes(address[:2], sys.byteorder)
    return next((family for family in _INTERNET if family == number), None)


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _socket_of(call: Call) -> socket.socket:
    """The very socket that the call names, shared with the process that made it."""
    process = os.pidfd_open(_process_of(call.thread))
    try:
        taken = _LIBC.syscall(_PIDFD_GETFD, process, ctypes.c_int(call.arguments[0] & 0xFFFFFFFF), 0)
    finally:
        os.close(process)
    if taken < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    try:
        return socket.socket(fileno=taken)
    except OSError:
        os.close(taken)
        raise


def _process_of(thread: int) -> int:
    for line in Path(f"/proc/{thread}/status").read_bytes().splitlines():
        if line.startswith(b"Tgid:"):
            return int(line[5:])
    raise ProcessLookupError(errno.ESRCH, "no such process")


def _keep_to_loopback(taken: socket.socket) -> bool:
    """From now on nothing comes in or goes out but on the loopback interface; the agent cannot take that back."""
    if taken.family not in _INTERNET:
        return False
    with contextlib.suppress(PermissionError):  # it is bound already; or the kernel is older than 5.7
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    return taken.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"lo"


def _connect(taken: socket.socket, address: bytes) -> int:
    # Not the socket's method: that would wait where the agent's socket does not.
    return ctypes.get_errno() if _LIBC.connect(taken.fileno(), address, len(address)) else 0


def _servers_at(host: bytes, port: int) -> set[int]:
    """All that may get a connection to this address, by inode."""
    long = host if len(host) == 16 else MAPPED + host
    addresses = (long, bytes(16), MAPPED + bytes(4))
    return {inode for address, at, inode in _servers_here() if at == port and address in addresses}


def _servers_here() -> Iterator[tuple[bytes, int, int]]:
    """Address, port and inode of every TCP server of this machine. An IPv4 address is told in IPv6's form."""
    for name, prefix in (("tcp", MAPPED), ("tcp6", b"")):
        with contextlib.suppress(FileNotFoundError):  # no IPv6 here
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING:
                    host, _, port = fields[1].partition(":")
                    words = struct.unpack(f"!{len(host) // 8}I", bytes.fromhex(host))
                    yield prefix + struct.pack(f"={len(words)}I", *words), int(port, 16), int(fields[9])
