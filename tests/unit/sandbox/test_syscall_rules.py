"""Tests the table of system calls, and the broker: errors, floods, permissions and cores."""

import array
import ctypes
import errno
import json
import os
import platform
import re
import select
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, cast

import pytest

from a2rl.linux import seccomp
from a2rl.sandbox import syscall_rules as rules
from a2rl.sandbox.broker import server
from a2rl.sandbox.broker.caller import AT_FDCWD, AgentFiles, Call, act_as
from a2rl.sandbox.broker.network import NetworkLog
from a2rl.sandbox.broker.server import Broker
from a2rl.sandbox.command import Confinement
from a2rl.sandbox.syscall_rules import install_agent_filter, number_of

pytestmark = pytest.mark.skipif(not seccomp.is_available(), reason="this machine has no seccomp")
LIBC = ctypes.CDLL(None, use_errno=True)
HEADERS = {
    "x86_64": [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    "aarch64": [Path("/usr/include/asm-generic/unistd.h")],
}
ON_ALL_SINCE = 424
"""From this number on, a call has the same number on every machine."""


@pytest.mark.parametrize(("place", "machine"), enumerate(HEADERS))
def test_the_numbers_are_those_of_the_kernel(place: int, machine: str) -> None:
    header = next((path for path in HEADERS[machine] if path.exists()), None)
    if header is None:
        pytest.skip("no headers of this machine's kernel")
    found = dict(re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", header.read_text()))
    known = {call: numbers[place] for call, numbers in rules.NUMBERS.items() if call in found}
    assert known == {call: int(found[call]) for call in known}
    assert not [call for call, numbers in rules.NUMBERS.items() if numbers[place] is None and call in found]


def test_each_call_has_one_place_in_the_table() -> None:
    classes = (rules.REFUSED, rules.HIDDEN, rules.BROKERED, rules.CONDITIONAL)
    assert len(rules.NUMBERS) == sum(len(calls) for calls in classes)
    for numbers in zip(*rules.NUMBERS.values(), strict=True):
        kept = [number for number in numbers if number is not None]
        assert len(kept) == len(set(kept))
        assert max(kept) <= rules.NEWEST
    assert all(x86 == arm for x86, arm in rules.NUMBERS.values() if x86 >= ON_ALL_SINCE)


def test_every_call_that_is_asked_about_has_an_answer(tmp_path: Path) -> None:
    reading, _ = os.pipe()
    broker = Broker(reading, confinement_of(tmp_path), NetworkLog(tmp_path / "log"))
    known = broker._quick.keys() | broker._may_wait.keys() | broker._whose.keys()
    asked = {rule.call for rule in rules.rules(broker=True) if rule.becomes == rules.NOTIFY}
    assert {number_of(call) for call in asked} - {None} == known


def confinement_of(folder: Path) -> Confinement:
    return Confinement((), (str(folder),), (), (), (), str(folder / "log"))


def in_a_child(work: Callable[[], None], broker: Callable[[int], Broker] | None = None) -> int:
    """Runs `work` in a child process behind the system call filter; returns the errno of its error, or 0."""
    ours, theirs = socket.socketpair()
    child = os.fork()
    if child == 0:
        error = 0
        try:
            listener = install_agent_filter(broker is not None)
            theirs.sendmsg([b"+"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener or 0]))])
            if listener is not None:
                os.close(listener)  # as exec would
            work()
        except OSError as met:
            error = met.errno or 255
        except BaseException:  # noqa: BLE001 - the child must not go on as a test
            error = 254
        os._exit(error)
    theirs.close()
    _, (listener,), _, _ = socket.recv_fds(ours, 1, 1)
    if broker is not None:
        broker(listener).start()
    impatience = threading.Timer(20, os.kill, (child, signal.SIGKILL))
    impatience.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    finally:
        impatience.cancel()


def test_a_call_of_a_kernel_to_come_is_unknown() -> None:
    for number in (rules.NEWEST + 1, rules.NEWEST + 100, 0x3FFFFFFF):
        assert in_a_child(lambda number=number: check(LIBC.syscall(number, 0, 0, 0))) == errno.ENOSYS  # type: ignore[misc]


def check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def test_whatever_goes_wrong_the_caller_gets_an_answer(tmp_path: Path) -> None:
    def failing(listener: int) -> Broker:
        broker = Broker(listener, confinement_of(tmp_path), NetworkLog(tmp_path / "log"))

        def fail(*_: object) -> int:
            raise ValueError

        broker._quick = {number: cast(Any, fail) for number in broker._quick}
        broker._may_wait = {number: cast(Any, fail) for number in broker._may_wait}
        return broker

    def connect() -> None:
        with socket.socket() as client:
            client.connect(("127.0.0.1", 1))

    assert in_a_child(lambda: tmp_path.chmod(0o700), failing) == errno.EACCES
    assert in_a_child(connect, failing) == errno.EACCES


def test_without_anybody_who_answers_calls_fail_and_do_not_hang(tmp_path: Path) -> None:
    def deaf(listener: int) -> Broker:
        broker = Broker(listener, confinement_of(tmp_path), NetworkLog(tmp_path / "log"))
        broker._meet = broker._take = None  # type: ignore[assignment, method-assign]
        return broker

    before, threading.excepthook = threading.excepthook, lambda _: None
    try:
        assert in_a_child(lambda: tmp_path.chmod(0o700), deaf) == errno.ENOSYS
    finally:
        threading.excepthook = before


def test_datagram_sockets_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their memory in the kernel does not count as the agent's."""
    monkeypatch.setattr(server, "MAX_RECEIVERS", 3)

    def own(listener: int) -> Broker:
        return Broker(listener, confinement_of(tmp_path), NetworkLog(tmp_path / "log"))

    def make(number: int) -> None:
        for _ in range(number):
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).close()

    assert in_a_child(lambda: make(3), own) == 0
    assert in_a_child(lambda: make(4), own) == errno.EMFILE


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_an_agent_does_not_get_to_other_cores_than_its_own(tmp_path: Path) -> None:
    cores = sorted(os.sched_getaffinity(0))

    def own(listener: int) -> Broker:
        return Broker(listener, confinement_of(tmp_path), NetworkLog(tmp_path / "log"))

    os.sched_setaffinity(0, cores[:1])
    try:
        assert in_a_child(lambda: os.sched_setaffinity(0, cores[:1]), own) == 0
        assert in_a_child(lambda: os.sched_setaffinity(0, cores), own) == errno.EPERM
        assert in_a_child(lambda: os.sched_setaffinity(0, cores[1:]), own) == errno.EPERM
    finally:
        os.sched_setaffinity(0, cores)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root could do more")
def test_the_broker_has_only_the_rights_of_the_agents_user(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    secret.chmod(0o600)
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        select.select([], [], [])
    met: list[str] = []

    def reach() -> None:
        act_as(child)
        for work in (secret.read_text, lambda: secret.chmod(0o644), lambda: os.chown(secret, 65534, 65534)):
            try:
                work()
            except PermissionError:
                met.append("refused")

    while b"65534" not in Path(f"/proc/{child}/status").read_bytes():
        pass
    thread = threading.Thread(target=reach)
    thread.start()
    thread.join()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert met == ["refused"] * 3
    assert secret.read_text() == "secret"  # the other threads are not changed


def test_special_links_lead_only_to_what_the_caller_has_open(tmp_path: Path) -> None:
    """By others, with the broker's rights, it would reach removed files of all processes."""
    files, call, link = AgentFiles([], []), Call(0, os.getpid(), 0, ()), tmp_path / "link"
    files.see_as(os.getpid())
    with TemporaryFile(dir=tmp_path) as file:
        opened = files.named(call, AT_FDCWD, b"/proc/self/fd/%d" % file.fileno())
        assert files.is_own(opened)
        os.close(opened)
        by_id = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        link.symlink_to(by_id)
        place = os.open(f"/proc/{os.getpid()}/fd", os.O_PATH)
        name = b"%d" % file.fileno()
        for folder, path in (
            (AT_FDCWD, by_id.encode()),
            (AT_FDCWD, os.fsencode(link)),
            (AT_FDCWD, b"/proc/self/fd/%d/%s" % (place, name)),
            (place, name),
        ):
            with pytest.raises(OSError, match="Too many levels of symbolic links"):
                files.named(call, folder, path)
        os.close(place)


def test_a_flood_of_connections_is_counted_and_not_stored(tmp_path: Path) -> None:
    log = NetworkLog(tmp_path / "log")
    for number in range(20_000):
        log.write("connect", "AF_UNIX", f"\x1b[31m\u202e\n{number}" + "x" * 1000, None, allowed=False)
    text = (tmp_path / "log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) < 500
    assert len(text) < 200_000
    assert text.isascii()
    assert "\x1b" not in text
    assert max(line.get("left_out", 0) for line in lines) > 10_000


def test_a_full_disk_does_not_stop_connections() -> None:
    NetworkLog(Path("/dev/full")).write("connect", "AF_INET", "127.0.0.1", 80, allowed=True)


def test_this_machine_has_numbers() -> None:
    assert number_of("fchmod") == {"x86_64": 91, "aarch64": 52}[platform.machine()]
