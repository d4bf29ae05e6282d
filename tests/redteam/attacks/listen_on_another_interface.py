"""Listens where other machines can reach it: on a socket that it first binds to an interface other than loopback.

An agent can listen only on the loopback interface; a socket that is bound to another one cannot listen.
"""

import contextlib
import os
import socket

LEVEL = "sandbox"
BIND_TO_INDEX, IPV6_ANYWHERE = 62, "::"


def attack(scene):
    others = [name for _, name in socket.if_nameindex() if name != "lo"]
    if not others:
        scene.skip("no interface but loopback")
    got, stopped = [], []
    for name, make in ways(others).items():
        for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET, scene.foreign), (socket.AF_INET6, "::")):
            with contextlib.suppress(OSError), socket.socket(family) as server:
                make(server, host)
                try:
                    server.listen()
                except OSError as error:
                    stopped.append(error.strerror)
                    continue
                if server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(b"\0") != b"lo":
                    got.append(f"{name}: {server.getsockname()[:2]}")
    if got:
        return got
    raise PermissionError(f"it is kept to loopback, or stopped: {sorted(set(stopped))}")


def ways(others):
    def unbound(server, host):
        pass

    def plain(server, host):
        server.bind((host, 0))

    def bound(server, host):
        server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, others[0].encode())
        server.bind((host, 0))

    def bound_by_number(server, host):
        server.setsockopt(socket.SOL_SOCKET, BIND_TO_INDEX, socket.if_nametoindex(others[0]))
        server.bind((host, 0))

    def passed_on(server, host):
        bound(server, host)
        one, other = socket.socketpair()
        socket.send_fds(one, [b"x"], [server.fileno()])
        os.dup2(socket.recv_fds(other, 1, 1)[1][0], server.fileno())

    def unbound_again(server, host):
        server.bind((host, 0))
        server.listen()
        with contextlib.suppress(OSError):
            server.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"\0")

    return {each.__name__: each for each in (unbound, plain, bound, bound_by_number, passed_on, unbound_again)}
