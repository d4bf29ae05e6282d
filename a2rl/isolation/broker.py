"""The broker: asked for what an agent cannot be left to do alone, it looks at it and does it itself.

That is: connections and servers (network.py), the metadata of files and watches on them (metadata.py), priorities and
cores (scheduling.py). Contract: every call gets an answer, whatever goes wrong; what may wait has a thread of its own,
so that it keeps nothing else waiting; and the agent can use up neither the supervisor's threads nor its files.

It is a thread of the supervisor, which may have more rights than the agent: it gives up those, and takes on the rights
of the agent's user with files, before it does anything (`caller.act_as`). The kernel does not stop the agent's other
threads while one waits here: nothing of its memory is read twice, and what was checked is what is used. Only numbers
that are in the call itself, which nobody can change any more, are left to the kernel to go on with.

Source: the manual's seccomp_unotify(2). Only the standard library is imported.
"""

import contextlib
import errno
import fcntl
import os
import resource
import select
import struct
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from a2rl.isolation.caller import Call, act_as
from a2rl.isolation.calls import number_of
from a2rl.isolation.confinement import Confinement
from a2rl.isolation.metadata import CHANGES, change, watch
from a2rl.isolation.network import Network
from a2rl.isolation.network_log import NetworkLog
from a2rl.isolation.places import Places
from a2rl.isolation.scheduling import Cores, check_own_process

_RECEIVE, _SEND, _IS_VALID, _SET_FLAGS = 0xC0502100, 0xC0182101, 0x40082102, 0x40082104
"""Requests of ioctl(2); the sizes in them are those of the structures below."""
_SYNC_WAKE_UP = 1
_NOTIFICATION, _ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
_GO_ON = 1
"""In the flags of an answer: the kernel does what the call says."""
_OVER = select.POLLHUP | select.POLLERR | select.POLLNVAL

AT_ONCE = 128
"""Connections under way; more than that are told to try again."""
FILES_EACH = 4
Work = Callable[[Call, Callable[[], None]], int]
"""Does what is asked and returns what the call returns; the second argument raises OSError unless the caller still
waits. Raises OSError: what the call fails with."""
WHOSE = {
    "setpriority": 1, "ioprio_set": 1, "sched_setparam": 0, "sched_setscheduler": 0, "sched_setattr": 0, "prlimit64": 0,
}  # fmt: skip
"""The argument with the number of a process, of calls that are for the kernel to do if that is the agent's."""


Value = TypeVar("Value")


class Broker:
    """Answers until nobody is left who could ask; start it as a thread."""

    def __init__(self, listener: int, confinement: Confinement, log: NetworkLog) -> None:
        """
        Args:
            listener: the file that calls are read from and answered to.
            confinement: which ports may be connected to, and which folders are the agent's.
            log: of connections.
        """
        self._listener = listener
        self._places = Places(confinement.own, confinement.read)
        network, cores = Network(confinement.connect, self._places, log), Cores()
        self._slots = threading.BoundedSemaphore(_connections_at_once())
        self._may_wait = _by_number({"connect": network.connect})
        quick: dict[str, Work] = {name: partial(change, self._places, asked) for name, asked in CHANGES.items()}
        quick |= {"inotify_add_watch": partial(watch, self._places)}
        quick |= {"listen": network.listen, "sched_setaffinity": cores.assign}
        self._quick = _by_number(quick)
        self._whose = _by_number(WHOSE)

    def start(self) -> None:
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        with contextlib.suppress(OSError):  # Linux 6.6: less waiting between two that wait for each other
            fcntl.ioctl(self._listener, _SET_FLAGS, _SYNC_WAKE_UP)
        block = bytearray(_NOTIFICATION.size)
        known = False
        try:
            while not any(event & _OVER for _, event in waiting.poll()):
                block[:] = bytes(len(block))
                try:
                    fcntl.ioctl(self._listener, _RECEIVE, block)
                except OSError:
                    continue  # who asked has died
                identity, thread, _, number, _, _, *arguments = _NOTIFICATION.unpack(block)
                call = Call(identity, thread, number, tuple(arguments))
                known = known or self._meet(call)
                if known:
                    self._take(call)
        finally:
            os.close(self._listener)  # whoever still waits, or asks from now on, is told that there is no such call

    def _meet(self, call: Call) -> bool:
        """Before the first answer: becomes what it must be for this agent."""
        try:
            act_as(call.thread)
            self._places.see_as(call.thread)
            self._check_waiting(call)
        except Exception:  # noqa: BLE001 - whatever it is, the caller gets an answer
            self._answer(call, error=errno.EACCES)
            return False
        return True

    def _take(self, call: Call) -> None:
        if call.number in self._quick:
            self._handle(call, self._quick[call.number])
        elif call.number in self._whose:
            self._pass_on(call, self._whose[call.number])
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

    def _handle(self, call: Call, work: Work) -> None:
        try:
            value = work(call, partial(self._check_waiting, call))
        except OSError as refused:
            self._answer(call, error=refused.errno or errno.EACCES)
        except Exception:  # noqa: BLE001 - whatever it is, the caller gets an answer
            self._answer(call, error=errno.EACCES)
        else:
            self._answer(call, value)

    def _pass_on(self, call: Call, argument: int) -> None:
        try:
            check_own_process(call, argument)
        except OSError as refused:
            self._answer(call, error=refused.errno or errno.EPERM)
        except Exception:  # noqa: BLE001 - as above
            self._answer(call, error=errno.EPERM)
        else:
            self._answer(call, flags=_GO_ON)

    def _check_waiting(self, call: Call) -> None:
        """Raises OSError: it does not, and its number may be another's by now."""
        fcntl.ioctl(self._listener, _IS_VALID, struct.pack("=Q", call.id))

    def _answer(self, call: Call, value: int = 0, error: int = 0, flags: int = 0) -> None:
        try:
            fcntl.ioctl(self._listener, _SEND, _ANSWER.pack(call.id, value, -error, flags))
        except OSError:
            return  # who asked has died


def _by_number(work: dict[str, Value]) -> dict[int, Value]:
    """As this machine numbers the calls; without those that it has not got."""
    return {number: each for call, each in work.items() if (number := number_of(call)) is not None}


def _connections_at_once() -> int:
    """As many as this process has files for, and has some left."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, min(AT_ONCE, files // 2 // FILES_EACH))
