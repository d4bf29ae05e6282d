"""Connections and servers of an agent: the broker checks the address and connects the socket itself.

Contract: an agent can connect to the ports on 127.0.0.1 and ::1 that it was given, to its own TCP servers on this
machine, and to local sockets in its own folders. Other connections fail with EACCES. The broker also performs `listen`
for the agent, and only on the loopback interface. The broker therefore knows the agent's servers, and no other machine
can reach them. If a socket cannot be limited to loopback, `listen` fails. Each connection and each server is logged
as one line of JSON, whether allowed or not. If there are too many, only the first ones are logged, and the number of
the others.

The agent's local datagram sockets can only receive, because nothing checks where a datagram goes: seccomp does not see
the address, which is in memory, and Landlock covers no sockets with a path, such as that of the system's log.

The broker copies the address once, checks the copy and uses the copy. The agent therefore gains nothing by changing its
memory, a link on the way to a socket, or the file descriptor in the meantime. The agent gets the kernel's own result,
and connecting a non-blocking socket does not block the broker either.
"""

import contextlib
import ctypes
import errno
import os
import socket
import stat
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.core.printable import printable_json
from a2rl.core.secrets import scrub
from a2rl.linux.landlock import LIBC
from a2rl.sandbox.broker.caller import AT_FDCWD, AgentFiles, Call

LINES_PER_S, MAX_LINES = 20, 5_000
"""Limits for each kind of line. They are separate, so that many lines of one kind cannot hide the others."""
MAX_SHOWN = 256
"""Maximum number of characters of an address. As there are few kinds of lines, the log stays below 30 MB."""
_LISTENING = "0A"
_LOCAL = struct.pack("=H", socket.AF_UNIX)
_INTERNET = {socket.AF_INET: struct.Struct("!HH4s"), socket.AF_INET6: struct.Struct("!HHI16s")}
"""The kernel's address structures: family, port, the flow label (IPv6 only), and the host."""
MAPPED = bytes(10) + b"\xff\xff"
"""The prefix that turns an IPv4 address into an IPv6 address."""
LOOPBACK_START = (b"\x7f", MAPPED + b"\x7f", bytes(15) + b"\1")
LOOPBACK = {b"\x7f\0\0\1", MAPPED + b"\x7f\0\0\1", bytes(15) + b"\1"}
UNSPECIFIED = {bytes(4): b"\x7f\0\0\1", MAPPED + bytes(4): MAPPED + b"\x7f\0\0\1", bytes(16): bytes(15) + b"\1"}
"""Unspecified addresses and the loopback addresses that replace them. The kernel does the same, unless the socket is
bound to another address."""
MAX_ADDRESS = 128
"""The size of the longest address structure, in bytes."""
MAX_REMEMBERED_SERVERS = 4096


class _Kind(NamedTuple):
    """How many lines of a kind were written or left out."""

    second: int = 0
    in_second: int = 0
    lines: int = 0
    left_out: int = 0


class NetworkLog:
    """A log file that the agent cannot access. Control characters in addresses are escaped."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str, bool], _Kind] = {}
        """Counts by call, address family and whether it was allowed. The agent cannot choose these words, so there are
        at most a dozen kinds."""

    def write(self, call: str, family: str, address: str, port: int | None, allowed: bool) -> None:
        """Logs a connection, or only counts it if there are too many.

        Write errors such as a full disk are ignored, because they must not stop the agent.
        """
        now = time.time()
        with self._lock:
            kind = self._kinds.get((call, family, allowed), _Kind())
            if kind.second != int(now):
                kind = kind._replace(second=int(now), in_second=0)
            line = {"t": round(now, 3), "call": call, "family": family}
            if kind.in_second < LINES_PER_S and kind.lines < MAX_LINES:
                kind = kind._replace(in_second=kind.in_second + 1, lines=kind.lines + 1)
                self._append({**line, "address": address[:MAX_SHOWN], "port": port, "allowed": allowed})
            else:
                kind = kind._replace(left_out=kind.left_out + 1)
                if kind.left_out & kind.left_out - 1 == 0:  # only at 1, 2, 4, 8, ..., so that there are few such lines
                    rest = {"address": "", "port": None, "allowed": allowed, "left_out": kind.left_out}
                    self._append({**line, **rest})
            self._kinds[call, family, allowed] = kind

    def _append(self, line: dict[str, object]) -> None:
        with contextlib.suppress(OSError):
            os.write(self._file, (scrub(printable_json(line)) + "\n").encode())


class Network:
    """The connections and servers of one agent."""

    def __init__(self, ports: tuple[int, ...], places: AgentFiles, log: NetworkLog) -> None:
        """Starts without any server.

        Args:
            ports: The loopback ports that the agent may connect to.
            places: The agent's folders. It may connect to local sockets in those that belong to it.
        """
        self._ports, self._places, self._log = frozenset(ports), places, log
        self._lock = threading.Lock()
        self._servers: set[Server] = set()
        """The agent's listening sockets. Their inodes alone would not do: the numbers begin again after 2^32."""

    def listen(self, call: Call, is_waiting: Callable[[], None]) -> int:
        """Makes the caller's socket listen, on the loopback interface only.

        Raises:
            PermissionError: The socket cannot be limited to the loopback interface.
            OSError: The kernel refuses, or the caller no longer waits.
        """
        with _socket_of(call) as taken:
            is_waiting()
            local = taken.family == socket.AF_UNIX
            if not (local or _keep_to_loopback(taken)):
                host, port = taken.getsockname()[:2]
                self._log.write("listen", taken.family.name, host, port, allowed=False)
                raise PermissionError(errno.EACCES, "it would be reached from elsewhere")
            if LIBC.listen(taken.fileno(), ctypes.c_int(call.signed(1))):
                raise OSError(ctypes.get_errno(), "cannot listen")
            if not local:
                self._remember(os.fstat(taken.fileno()).st_ino)
                host, port = taken.getsockname()[:2]
                self._log.write("listen", taken.family.name, host, port, allowed=True)
        return 0

    def _remember(self, inode: int) -> None:
        here = set(_servers_here())
        with self._lock:
            if len(self._servers) > MAX_REMEMBERED_SERVERS:
                self._servers &= here
            self._servers |= {server for server in here if server.inode == inode}

    def connect(self, call: Call, is_waiting: Callable[[], None]) -> int:
        """Connects the caller's socket, if the address is allowed.

        Raises:
            PermissionError: The agent may not connect to this address.
            OSError: The connection fails, or the caller no longer waits.
        """
        length = call.signed(2)
        if not 2 <= length <= MAX_ADDRESS:
            raise OSError(errno.EINVAL, "no address")
        address = call.structure(call.arguments[1], length)
        with _socket_of(call) as taken:
            is_waiting()
            if address[:2] == _LOCAL:
                return self._connect_locally(call, taken, address, is_waiting)
            return self._connect(taken, address)

    def _connect(self, taken: socket.socket, address: bytes) -> int:
        family = _family(address)
        if family is None or len(address) < _INTERNET[family].size:
            self._log.write("connect", "other", address.hex(), None, allowed=False)
            raise PermissionError(errno.EACCES, "no such address")
        end = _INTERNET[family].size
        _, port, *_, host = _INTERNET[family].unpack_from(address)
        host = UNSPECIFIED.get(host, host)
        address = address[: end - len(host)] + host + address[end:]
        given = host in LOOPBACK and port in self._ports
        servers = set() if given else _servers_at(host, port)
        allowed = given or (bool(servers) and servers <= self._servers)
        self._log.write("connect", family.name, socket.inet_ntop(family, host), port, allowed)
        # A program that waits for its own server to start expects ECONNREFUSED until the server listens.
        if not allowed:
            started = bool(servers) or not host.startswith(LOOPBACK_START)
            raise OSError(errno.EACCES if started else errno.ECONNREFUSED, "not a server for the agent")
        # A server on all interfaces matches every address, so the socket must not be able to leave the machine.
        if not (_keep_to_loopback(taken) or host in LOOPBACK):
            raise PermissionError(errno.EACCES, "it would leave the machine")
        return _connect(taken, address)

    def _connect_locally(self, call: Call, taken: socket.socket, address: bytes, is_waiting: Callable[[], None]) -> int:
        path = address[2:].partition(b"\0")[0]
        target = self._open_socket(call, path, is_waiting) if path else None
        shown = os.fsdecode(path) or "@" + os.fsdecode(address[3:])
        self._log.write("connect", "AF_UNIX", shown, None, allowed=target is not None)
        if target is None:
            raise PermissionError(errno.EACCES, "not a socket of the agent")
        try:
            return _connect(taken, _LOCAL + f"/proc/self/fd/{target}\0".encode())
        finally:
            os.close(target)

    def _open_socket(self, call: Call, path: bytes, is_waiting: Callable[[], None]) -> int | None:
        """Opens the socket at a path; returns None if it is not in one of the agent's folders after following links."""
        found = self._places.named(call, AT_FDCWD, path)
        try:
            is_waiting()
            if not self._places.is_own(found):
                os.close(found)
                return None
            if not stat.S_ISSOCK(os.fstat(found).st_mode):
                raise ConnectionRefusedError(errno.ECONNREFUSED, "no socket")
        except OSError:
            os.close(found)
            raise
        return found


def receiver(kind: int) -> socket.socket:
    """Makes a local datagram socket that can never send, which the kernel enforces whatever is done with it later.

    Args:
        kind: The type of socket that was asked for, with its flags.
    """
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | kind & socket.SOCK_NONBLOCK)
    made.shutdown(socket.SHUT_WR)
    return made


def _family(address: bytes) -> socket.AddressFamily | None:
    number = int.from_bytes(address[:2], sys.byteorder)
    return next((family for family in _INTERNET if family == number), None)


def _socket_of(call: Call) -> socket.socket:
    """Returns the socket that the call names. It is shared with the calling process."""
    taken = call.file(call.signed(0))
    try:
        return socket.socket(fileno=taken)
    except OSError:
        os.close(taken)
        raise


def _keep_to_loopback(taken: socket.socket) -> bool:
    """Limits a socket to the loopback interface; the agent cannot undo this.

    Returns:
        False if the socket is bound to another interface, or the kernel is older than 5.7.
    """
    if taken.family not in _INTERNET:
        return False
    with contextlib.suppress(PermissionError):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    return taken.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"lo"


def _connect(taken: socket.socket, address: bytes) -> int:
    # The method of `socket` would block, even if the agent's socket is non-blocking.
    if LIBC.connect(taken.fileno(), address, len(address)):
        raise OSError(ctypes.get_errno(), "no connection")
    return 0


class Server(NamedTuple):
    """A listening TCP socket of this machine."""

    address: bytes
    """IPv4 addresses are mapped to IPv6."""
    port: int
    inode: int


def _servers_at(host: bytes, port: int) -> set[Server]:
    """Returns all servers that may accept a connection to this address."""
    long = host if len(host) == 16 else MAPPED + host
    addresses = (long, bytes(16), MAPPED + bytes(4))
    return {server for server in _servers_here() if server.port == port and server.address in addresses}


def _servers_here() -> Iterator[Server]:
    """Yields every TCP server of this machine."""
    for name, prefix in (("tcp", MAPPED), ("tcp6", b"")):
        with contextlib.suppress(FileNotFoundError):  # no IPv6 here
            for line in Path("/proc/net", name).read_text().splitlines()[1:]:
                if f" {_LISTENING} " not in line:
                    continue
                fields = line.split()
                if fields[3] == _LISTENING:
                    host, _, port = fields[1].partition(":")
                    words = struct.unpack(f"!{len(host) // 8}I", bytes.fromhex(host))
                    address = prefix + struct.pack(f"={len(words)}I", *words)
                    yield Server(address, int(port, 16), int(fields[9]))
