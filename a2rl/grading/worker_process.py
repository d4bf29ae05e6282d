"""Owns the process of a grader's worker for the pool: starts it, sends it jobs, and ends it with all its children.

The worker reports once that it is ready, and while a job runs, the job's process reports every second that it is alive.
Both have timeouts, so that the pool never waits for a process that is stopped, starved or stuck.
"""

import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress

import psutil

from a2rl.core.errors import InfrastructureError
from a2rl.core.processes import child_environment, module_command
from a2rl.core.settings import Settings
from a2rl.grading.devices import CPU
from a2rl.grading.job import GradeJob
from a2rl.llm.keys import grader_keys, send_keys

WORKER = "a2rl.grading.worker"
START_TIMEOUT_S = 300.0
"""This is enough for loading torch on a busy machine."""
END_TIMEOUT_S = 10.0
OUT_OF_MEMORY = 71
"""The exit code of a job's process that could not get the memory that it needed."""
BLOCK = 1 << 16


class StuckError(Exception):
    """The job takes too long, or its process no longer reports that it is alive."""


class WorkerProcess:
    """One worker on one device."""

    def __init__(self, settings: Settings, device: str, module: str = WORKER) -> None:
        environment = child_environment(settings)
        environment |= {"CUDA_VISIBLE_DEVICES": "" if device == CPU else device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        self._process = subprocess.Popen(
            module_command(module),
            cwd=settings.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        send_keys(self._process, grader_keys(settings))
        self._unread = b""
        self._ready = False

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker has not ended."""
        return self._process.poll() is None

    def run(self, job: GradeJob) -> int | None:
        """Runs a job.

        Returns:
            The exit code of the job's process; None if the worker itself died.

        Raises:
            StuckError: It took too long, or no longer reported that it was alive.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(job.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return None
        for message in self._messages(job):
            if "exit_code" in message:
                return int(message["exit_code"])
        return None

    def _messages(self, job: GradeJob) -> Iterator[dict[str, int]]:
        """Yields the worker's messages until its end."""
        began = heard = time.monotonic()
        while True:
            silence_s = job.silence_s if self._ready else max(START_TIMEOUT_S, job.silence_s)
            left_s, patience_s = began + job.time_limit_s - time.monotonic(), heard + silence_s - time.monotonic()
            if left_s <= 0:
                raise StuckError(f"grading took longer than its limit of {job.time_limit_s:.0f} s")
            if patience_s <= 0:
                raise StuckError(f"the grader's process gave no sign of life for {silence_s:.0f} s")
            if not self._wait(min(left_s, patience_s)):
                continue
            if not (lines := self._read()):
                return
            heard = time.monotonic()
            for message in lines:
                if "ready" in message:
                    self._ready, began = True, heard
                yield message

    def _wait(self, seconds: float) -> bool:
        """Waits for output; True if there is some, or if the output has ended."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _read(self) -> list[dict[str, int]]:
        """Reads the available messages. There is at least one, except at the end of the output."""
        assert self._process.stdout is not None
        while b"\n" not in self._unread:
            block = os.read(self._process.stdout.fileno(), BLOCK)
            if not block:
                return []
            self._unread += block
        *lines, self._unread = self._unread.split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        """Kills the worker, its jobs and all their descendants. Raises the same errors as `kill_tree`."""
        kill_tree(self._process)


def kill_tree(leader: "subprocess.Popen[bytes]") -> None:
    """Kills a process group by its leader, and all descendants of the leader.

    Raises:
        InfrastructureError: The leader does not end, for example because it hangs in a system call.
    """
    descendants = []
    with suppress(psutil.Error):  # listed first, since descendants cannot be found after their parents have ended
        descendants = psutil.Process(leader.pid).children(recursive=True)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)
    for process in descendants:
        with suppress(psutil.Error):
            process.kill()
    try:
        leader.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(
            "the grader's process cannot be killed; it may hang in a system call of the driver or the disk"
        ) from error
