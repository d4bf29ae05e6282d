"""A grader's worker as its pool sees it: started, given a job, listened to, and ended with all its children.

The worker says once that it is ready, and while a job runs its process says every second that it is alive. Both have
limits: a process that is stopped, starved or stuck is not waited for.
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

from a2rl.errors import InfrastructureError
from a2rl.grading.job import GradeJob
from a2rl.keys import grader_keys, tell
from a2rl.process import child_environment, module_command
from a2rl.settings import Settings

WORKER = "a2rl.grading.worker"
CPU = "cpu"
START_LIMIT_S = 300.0
"""To load torch, on a machine that is busy."""
END_LIMIT_S = 10.0
BLOCK = 1 << 16


class Stuck(Exception):
    """The job did not come to its end; why not."""


class WorkerProcess:
    """One worker on one device."""

    def __init__(self, settings: Settings, device: str, module: str = WORKER) -> None:
        environment = child_environment(settings)
        environment["CUDA_VISIBLE_DEVICES"] = "" if device == CPU else device
        self._process = subprocess.Popen(
            module_command(module),
            cwd=settings.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        tell(self._process, grader_keys(settings))
        self._said = b""
        self._ready = False

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def run(self, job: GradeJob) -> int | None:
        """Has a job done; the exit code of its process, None if the worker itself died.

        Raises:
            Stuck: it took too long, or there was no sign of life.
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
        """What the worker says, until its end."""
        began = heard = time.monotonic()
        while True:
            silence_s = job.silence_s if self._ready else max(START_LIMIT_S, job.silence_s)
            left_s, patience_s = began + job.time_limit_s - time.monotonic(), heard + silence_s - time.monotonic()
            if left_s <= 0:
                raise Stuck(f"grading took longer than its limit of {job.time_limit_s:.0f} s")
            if patience_s <= 0:
                raise Stuck(f"the grader's process gave no sign of life for {silence_s:.0f} s")
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
        """Whether there is something to read, or never will be."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def _read(self) -> list[dict[str, int]]:
        """The messages that are there, at least one; none at the end."""
        assert self._process.stdout is not None
        while b"\n" not in self._said:
            block = os.read(self._process.stdout.fileno(), BLOCK)
            if not block:
                return []
            self._said += block
        *lines, self._said = self._said.split(b"\n")
        return [json.loads(line) for line in lines]

    def kill(self) -> None:
        """Ends the worker, its jobs and whatever they started. Raises what `kill_tree` raises."""
        kill_tree(self._process)


def kill_tree(leader: "subprocess.Popen[bytes]") -> None:
    """Ends a process that leads a group, with the group and everything below it.

    Raises:
        InfrastructureError: the kernel does not let go of it.
    """
    below = []
    with suppress(psutil.Error):  # listed before the parents are gone, after which nobody knows whose they are
        below = psutil.Process(leader.pid).children(recursive=True)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, signal.SIGKILL)
    for process in below:
        with suppress(psutil.Error):
            process.kill()
    try:
        leader.wait(END_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError("the grader's process cannot be ended (in an uninterruptible wait?)") from error
