"""The daemon of `a2rl signer`: signs heads for clients on a Unix socket, with a key that they need not hold.

It is one process without a network port. It reads nothing of the runs: clients send the entries, and it remembers
only the last head of each run.
"""

import os
import pwd
import socket
import socketserver
import struct
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from a2rl.anchor.signer import MAX_REQUEST_BYTES, Reply, Signer, answer
from a2rl.core.errors import UsageError
from a2rl.core.event_log import EventLog
from a2rl.core.files import machine_failure

CLIENT_TIMEOUT_S = 10.0
"""How long a client may take to send its request, and to take the reply."""
MAX_CLIENTS = 16
"""Requests that are answered at once; others are refused, and their clients ask again."""
CREDENTIALS = struct.Struct("3i")
"""struct ucred of the kernel: process, user, group."""


class SignerDaemon(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers requests until `shutdown` is called.

    Args:
        path: The socket, which is made. A socket that nobody listens on is replaced.
        signer: Signs.
        users: The ids of the users who may ask besides the daemon's own.
        log: Gets a line for each request.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, signer: Signer, users: Sequence[int], log: EventLog) -> None:
        self.signer, self.log = signer, log
        self.users = frozenset({os.geteuid(), *users})
        self._places = threading.BoundedSemaphore(MAX_CLIENTS)
        self._path = path
        _make_room(path)
        before = os.umask(0o177)  # nobody can connect between bind and chmod
        try:
            super().__init__(str(path), _Connection)
        except OSError as error:
            raise machine_failure(f"listen on {path}", error) from error
        finally:
            os.umask(before)
        path.chmod(0o666 if users else 0o600)  # the kernel tells the user id of each client, which is what decides

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], client_address: object) -> None:
        """Answers in a thread, if not too many are at work."""
        if self._places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(
        self, request: socket.socket | tuple[bytes, socket.socket], client_address: object
    ) -> None:
        """Answers, and lets the next client in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignores a client that has gone; its connection is closed."""

    def server_close(self) -> None:
        """Closes and removes the socket."""
        super().server_close()
        self._path.unlink(missing_ok=True)


class _Connection(socketserver.BaseRequestHandler):
    """One client, with one request."""

    server: SignerDaemon

    def handle(self) -> None:
        user = _user_of(self.request)
        line = _line_of(self.request)
        if user not in self.server.users:
            reply = Reply(failed=f"user {user} may not ask this signer: start it with --user")
        else:
            reply = answer(line, self.server.signer)
        self.server.log.write(user=user, **reply.model_dump(mode="json", exclude_defaults=True))
        self.request.settimeout(CLIENT_TIMEOUT_S)
        self.request.sendall(reply.model_dump_json().encode() + b"\n")


def user_ids(names: Sequence[str]) -> list[int]:
    """Returns the ids of users, who are given by name or number.

    Raises:
        UsageError: There is no such user.
    """
    return [_user_id(name) for name in names]


def _user_id(name: str) -> int:
    if name.isdecimal():
        return int(name)
    try:
        return pwd.getpwnam(name).pw_uid
    except KeyError as error:
        raise UsageError(f"there is no user {name!r}: give a name or a number of this machine") from error


def _user_of(connection: socket.socket) -> int:
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return int(CREDENTIALS.unpack(data)[1])


def _line_of(connection: socket.socket) -> bytes:
    """Reads a request; what is too long or too slow is cut off, and is then no request."""
    deadline, parts, size = time.monotonic() + CLIENT_TIMEOUT_S, list[bytes](), 0
    while size < MAX_REQUEST_BYTES and time.monotonic() < deadline:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            block = connection.recv(1 << 16)
        except OSError:
            break
        parts.append(block)
        size += len(block)
        if not block or block.endswith(b"\n"):
            break
    return b"".join(parts)


def _make_room(path: Path) -> None:
    """Removes a socket that a killed daemon left.

    Raises:
        UsageError: A daemon listens there, or the path is something else.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        return
    if not path.is_socket():
        raise UsageError(f"{path} exists and is not a socket: choose another --socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        if probe.connect_ex(str(path)) == 0:
            raise UsageError(f"a signer listens on {path}: stop it first, or choose another --socket")
    path.unlink()
