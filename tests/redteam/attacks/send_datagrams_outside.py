"""Sends datagrams to processes outside: to a socket with a path, such as the system's log, and to an abstract one.

An agent's datagram sockets, which NCCL needs, can only receive, however they are made, connected, shared or shut down.
"""

import contextlib
import ctypes
import os
import socket

LEVEL = "sandbox"
LIBC = ctypes.CDLL(None, use_errno=True)
NOWHERE = bytes(16)
"""An address of the family AF_UNSPEC, which disconnects a socket."""


def attack(scene):
    made = {
        "a socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM),
        "a raw socket": lambda: socket.socket(socket.AF_UNIX, socket.SOCK_RAW),
        "one of a pair": lambda: socket.socketpair(type=socket.SOCK_DGRAM)[0],
    }
    ways = {}
    for what, make in made.items():
        for target in (scene.datagram_socket, "\0" + scene.abstract_datagram_socket):
            for change in (as_it_is, bound, connected, connected_to_its_own, disconnected, shut_for_reading, passed_on):
                for send in (send_to, send_message, write):
                    name = f"{what}, {change.__name__}, {send.__name__} {target.strip(chr(0))}"
                    ways[name] = lambda make=make, change=change, send=send, to=target: go(make, change, send, to)
    return scene.try_each(ways)


def go(make, change, send, target):
    with make() as mine:
        change(mine, target)
        send(mine, target)


def send_to(mine, target):
    mine.sendto(b"x", socket.MSG_DONTWAIT, target)


def send_message(mine, target):
    mine.sendmsg([b"x"], [], socket.MSG_DONTWAIT, target)


def write(mine, target):
    mine.setblocking(False)
    os.write(mine.fileno(), b"x")


def as_it_is(mine, target):
    pass


def bound(mine, target):
    mine.bind(f"\0{os.getpid()}")


def connected(mine, target):
    mine.connect(target)


def connected_to_its_own(mine, target):
    with contextlib.suppress(FileNotFoundError):
        os.unlink("own.sock")  # noqa: PTH108
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as own:
        own.bind("own.sock")
        mine.connect("own.sock")
    os.unlink("own.sock")  # noqa: PTH108
    with contextlib.suppress(ConnectionRefusedError):
        mine.send(b"x")


def disconnected(mine, target):
    LIBC.connect(mine.fileno(), NOWHERE, len(NOWHERE))


def shut_for_reading(mine, target):
    mine.shutdown(socket.SHUT_RD)


def passed_on(mine, target):
    one, other = socket.socketpair()
    with one, other:
        socket.send_fds(one, [b"x"], [mine.fileno()])
        os.dup2(socket.recv_fds(other, 1, 1)[1][0], mine.fileno())
