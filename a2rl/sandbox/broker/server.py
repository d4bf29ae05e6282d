"""The broker: checks the system calls that an agent may not make on its own, and performs the allowed ones itself.

These are calls for sockets, connections and servers (network.py), for the metadata of files and watches on them
(metadata.py), and for priorities and cores. An agent cannot raise priorities, because syscall_rules.py removes the
right to do so. The broker only has to check that the process belongs to the agent. Cores are different: the kernel lets
ordinary users move their processes to any core. The broker therefore allows only the cores that the agent had at its
first call. These are the cores that it was started with, because nothing else changes them.

Contract: every call gets an answer, whatever goes wrong. A call that may block is handled in a separate thread, so that
it does not delay other calls. The agent can exhaust neither the supervisor's threads nor its file descriptors.

The broker is a thread of the supervisor, which may have more privileges than the agent. Before it does anything, it
therefore drops them and takes on the file permissions of the agent's user (`caller.act_as`). While one of the agent's
threads waits for an answer, its other threads continue to run and can change its memory. The broker therefore reads
memory only once, and uses the copy that it has checked. It lets the kernel continue a call only if everything that it
checked is a number in the call itself, which can no longer change.

Source: the manual's seccomp_unotify(2). No library: libseccomp, which can answer seccomp notifications, has no Python
package on PyPI. Standard library only: the supervisor imports this module.
"""

import contextlib
import errno
import fcntl
import os
import resource
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from a2rl.sandbox.broker.caller import AgentFiles, Call, act_as, has_own_processes, is_agents, process_of, thread_of
from a2rl.sandbox.broker.metadata import CHANGES, change, watch
from a2rl.sandbox.broker.network import Network, NetworkLog, receiver
from a2rl.sandbox.command import Confinement
from a2rl.sandbox.syscall_rules import number_of

_MAX_MASK = 8192
_RECEIVE, _SEND, _IS_VALID, _ADD_FILE, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082102, 0x40182103, 0x40082104
"""Requests for ioctl(2). They contain the sizes of the structures below."""
_SYNC_WAKE_UP = 1
_NOTIFICATION, _ANSWER, _FILE = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI"), struct.Struct("=Q4I")
_GO_ON = 1
"""A flag of an answer: the kernel continues with the call as if there were no broker."""
_OVER = select.POLLHUP | select.POLLERR | select.POLLNVAL
MAX_CONNECTIONS = 128
"""Maximum number of connection attempts in progress; further ones fail with EAGAIN."""
FILES_PER_CONNECTION = 4
MAX_RECEIVERS = 1 << 15
"""Maximum number of datagram sockets that an agent gets; further ones fail with EMFILE. The kernel's memory for them,
two kilobytes each, counts as the supervisor's and not as the agent's."""
Work = Callable[[Call, Callable[[], None]], int]
"""A function that performs a call and returns the call's result. Its second argument is a function that raises OSError
if the caller no longer waits. If the work raises OSError, the call fails with that error."""
PROCESS_ARGUMENT = {
    "setpriority": 1, "ioprio_set": 1, "sched_setparam": 0, "sched_setscheduler": 0, "sched_setattr": 0, "prlimit64": 0,
}  # fmt: skip
"""Calls that the kernel continues if they concern one of the agent's processes: the position of the argument with the
process id."""
Value = TypeVar("Value")


def check_own_process(argument: int, call: Call, _: Callable[[], None]) -> int:
    """Returns 0 if the process that this argument of the call names belongs to the agent; else raises OSError."""
    if not has_own_processes(call.thread):
        number = call.signed(argument)
        if number < 0 or not is_agents(process_of(number)):
            raise PermissionError(errno.EPERM, "not a process of the agent")
    return 0


class CoreLimit:
    """The cores on which an agent's processes may run."""

    def __init__(self) -> None:
        self._given: set[int] = set()

    def assign(self, call: Call, is_waiting: Callable[[], None]) -> int:
        """Sets the cores on which a thread of the agent may run.

        Raises:
            PermissionError: The agent may not use all of these cores, or the thread does not belong to it.
            OSError: The kernel refuses, or the caller no longer waits.
        """
        if not self._given:
            self._given = os.sched_getaffinity(call.thread)
        mask = call.structure(call.arguments[2], min(call.unsigned(1), _MAX_MASK))
        wanted = _members(mask)
        thread = thread_of(call, call.signed(0))
        is_waiting()
        if not wanted <= self._given:
            raise PermissionError(errno.EPERM, "more cores than the agent was given")
        os.sched_setaffinity(thread, wanted)
        return 0


def _members(mask: bytes) -> set[int]:
    bits = int.from_bytes(mask, sys.byteorder)
    return {place for place in range(bits.bit_length()) if bits >> place & 1}


class Broker:
    """Answers the system calls of one agent, in a thread, until the agent's last process has ended."""

    def __init__(self, listener: int, confinement: Confinement, log: NetworkLog) -> None:
        """Prepares the broker.

        Args:
            listener: The file descriptor from which calls are read, and to which answers are written.
            confinement: The ports that the agent may connect to, and the folders that belong to it.
        """
        self._listener = listener
        self._places = AgentFiles(confinement.own, confinement.read)
        network, cores = Network(confinement.connect, self._places, log), CoreLimit()
        self._receivers = 0
        self._slots = threading.BoundedSemaphore(_connections_at_once())
        self._may_wait = _by_number({"connect": network.connect})
        quick: dict[str, Work] = {name: partial(change, self._places, asked) for name, asked in CHANGES.items()}
        quick |= {"inotify_add_watch": partial(watch, self._places), "socket": self._add_receiver}
        quick |= {"listen": network.listen, "sched_setaffinity": cores.assign}
        self._quick = _by_number(quick)
        self._whose = _by_number(PROCESS_ARGUMENT)

    def start(self) -> None:
        """Starts answering in a thread."""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        with contextlib.suppress(OSError):  # Linux 6.6: switches faster between the caller and the broker
            fcntl.ioctl(self._listener, _SET_FLAGS, _SYNC_WAKE_UP)
        block = bytearray(_NOTIFICATION.size)
        known = False
        try:
            while not any(event & _OVER for _, event in waiting.poll()):
                block[:] = bytes(len(block))
                try:
                    fcntl.ioctl(self._listener, _RECEIVE, block)
                except OSError:
                    continue  # the caller has died
                identity, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(block)
                call = Call(identity, thread, number, tuple(arguments))
                known = known or self._meet(call)
                if known:
                    self._take(call)
        finally:
            os.close(self._listener)  # all calls that wait now or come later fail with ENOSYS

    def _meet(self, call: Call) -> bool:
        """Takes on the agent's user and its view of files, before the first answer; returns False if that fails."""
        try:
            act_as(call.thread)
            self._places.see_as(call.thread)
            self._check_waiting(call)
        except Exception:  # noqa: BLE001 - fail closed: the caller must get an answer, whatever the error
            self._answer(call, error=errno.EACCES)
            return False
        return True

    def _take(self, call: Call) -> None:
        if call.number in self._quick:
            self._handle(call, self._quick[call.number])
        elif call.number in self._whose:
            self._handle(call, partial(check_own_process, self._whose[call.number]), _GO_ON)
        elif call.number not in self._may_wait or not self._slots.acquire(blocking=False):
            self._answer(call, error=errno.EAGAIN)
        else:
            try:
                threading.Thread(target=self._wait_and_handle, args=(call,), daemon=True).start()
            except RuntimeError:  # no more threads
                self._slots.release()
                self._answer(call, error=errno.EAGAIN)

    def _wait_and_handle(self, call: Call) -> None:
        try:
            self._handle(call, self._may_wait[call.number])
        finally:
            self._slots.release()

    def _handle(self, call: Call, work: Work, flags: int = 0) -> None:
        try:
            value = work(call, partial(self._check_waiting, call))
        except OSError as refused:
            self._answer(call, error=refused.errno or errno.EACCES)
        except Exception:  # noqa: BLE001 - fail closed: the caller must get an answer, whatever the error
            self._answer(call, error=errno.EACCES)
        else:
            self._answer(call, value, flags=flags)

    def _add_receiver(self, call: Call, _: Callable[[], None]) -> int:
        """Gives the caller a datagram socket that can only receive; returns its number there."""
        if self._receivers >= MAX_RECEIVERS:
            raise OSError(errno.EMFILE, "too many datagram sockets")
        kind = call.unsigned(1)
        with receiver(kind) as made:
            added = _FILE.pack(call.id, 0, made.fileno(), 0, kind & socket.SOCK_CLOEXEC)
            self._receivers += 1
            return int(fcntl.ioctl(self._listener, _ADD_FILE, bytearray(added)))

    def _check_waiting(self, call: Call) -> None:
        """Raises OSError if the caller no longer waits; its thread id may then belong to another thread."""
        fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", call.id))

    def _answer(self, call: Call, value: int = 0, error: int = 0, flags: int = 0) -> None:
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(call.id, value, -error, flags))
        except OSError:
            return  # the caller has died


def _by_number(work: dict[str, Value]) -> dict[int, Value]:
    """Replaces the names of calls by their numbers on this machine; calls that it does not have are left out."""
    return {number: each for call, each in work.items() if (number := number_of(call)) is not None}


def _connections_at_once() -> int:
    """Returns the number of connections for which this process has enough file descriptors, with some left over."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(MAX_CONNECTIONS, files // 2 // FILES_PER_CONNECTION))
