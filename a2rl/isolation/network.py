"""Connections and servers of an agent: the broker looks at the address, and connects the socket itself.

Contract: an agent's `connect` reaches 127.0.0.1 and ::1 on the ports that it is given, TCP servers of its own on this
machine, and local sockets in its own folders; anything else is refused with EACCES. Its `listen` is done for it too, on
the loopback interface alone, so that its servers are known and nobody outside the machine reaches them: where that
cannot be had, it does not listen. Each of these is a line in a log.

The address is copied once, checked, and the copy is used: that the agent changes its memory meanwhile, or a link on the
way to a socket, or the socket's number, changes nothing. The kernel's answer is the agent's: a socket that does not
wait does not wait here either.
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
from collections.abc import Callable, Iterator
from pathlib import Path

from a2rl.isolation.caller import LIBC, Call
from a2rl.isolation.network_log import NetworkLog
from a2rl.isolation.places import AT_FDCWD, Places

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
MAX_ADDRESS = 128
MANY_SERVERS = 4096


class Network:
    """Of one agent."""

    def __init__(self, ports: tuple[int, ...], places: Places, log: NetworkLog) -> None:
        """
        Args:
            ports: on loopback, that may be connected to.
            places: whose own folders hold local sockets that may be connected to.
            log: of what was asked.
        """
        self._ports, self._places, self._log = frozenset(ports), places, log
        self._lock = threading.Lock()
        self._servers: set[int] = set()
        """Sockets that listen for the agent, by inode."""

    def listen(self, call: Call, is_waiting: Callable[[], None]) -> int:
        """Raises OSError: it cannot listen, or not where it is."""
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

    def _remember(self, server: int) -> None:
        with self._lock:
            if len(self._servers) > MANY_SERVERS:
                self._servers &= {inode for _, _, inode in _servers_here()}
            self._servers.add(server)

    def connect(self, call: Call, is_waiting: Callable[[], None]) -> int:
        """Raises OSError: it must not, or the kernel says so."""
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
        host = ANYWHERE.get(host, host)
        address = address[: end - len(host)] + host + address[end:]
        given = host in LOOPBACK and port in self._ports
        servers = set() if given else _servers_at(host, port)
        allowed = given or (bool(servers) and servers <= self._servers)
        self._log.write("connect", family.name, socket.inet_ntop(family, host), port, allowed)
        if not allowed:  # who waits for a server of its own to start is told what it expects
            started = bool(servers) or not host.startswith(LOOPBACK_START)
            raise OSError(errno.EACCES if started else errno.ECONNREFUSED, "not a server for the agent")
        # A server on all interfaces makes any address look like its own: only what cannot leave the machine is.
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
        """The socket at this path if it lies in one of the agent's folders, whatever links lead there."""
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


def _family(address: bytes) -> socket.AddressFamily | None:
    number = int.from_bytes(address[:2], sys.byteorder)
    return next((family for family in _INTERNET if family == number), None)


def _socket_of(call: Call) -> socket.socket:
    """The very socket that the call names, shared with the process that made it."""
    taken = call.file(call.signed(0))
    try:
        return socket.socket(fileno=taken)
    except OSError:
        os.close(taken)
        raise


def _keep_to_loopback(taken: socket.socket) -> bool:
    """From now on nothing comes in or goes out but on the loopback interface; the agent cannot take that back.

    False if it is bound to another interface, or the kernel is older than 5.7.
    """
    if taken.family not in _INTERNET:
        return False
    with contextlib.suppress(PermissionError):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    return taken.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") == b"lo"


def _connect(taken: socket.socket, address: bytes) -> int:
    # Not the socket's method: that would wait where the agent's socket does not.
    if LIBC.connect(taken.fileno(), address, len(address)):
        raise OSError(ctypes.get_errno(), "no connection")
    return 0


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
                if f" {_LISTENING} " not in line:
                    continue
                fields = line.split()
                if fields[3] == _LISTENING:
                    host, _, port = fields[1].partition(":")
                    words = struct.unpack(f"!{len(host) // 8}I", bytes.fromhex(host))
                    yield prefix + struct.pack(f"={len(words)}I", *words), int(port, 16), int(fields[9])
