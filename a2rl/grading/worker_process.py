"""Owns the process of a grader's worker for the pool: starts it, sends it jobs, and ends it with all its children.

The worker reports once that it is ready, and while a job runs, the job's process reports every second that it is alive.
Both have timeouts, so that the pool never waits for a process that is stopped, starved or stuck.
"""

import itertools
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

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
Message = dict[str, int]


class StuckError(Exception):
    """The job takes too long, or its process no longer reports that it is alive."""

    is_judging = False
    """Whether the model had answered."""


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
        self._lock = threading.Lock()
        self._ready, self._ended = False, False
        self._numbers = itertools.count()
        self._heard: dict[int, queue.SimpleQueue[Message | None]] = {}
        """What the worker says of each job; None at its end."""
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def pid(self) -> int:
        """The process id of the worker."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether the worker has not ended."""
        return self._process.poll() is None

    def run(self, job: GradeJob, on_answered: Callable[[], None] = lambda: None) -> int | None:
        """Runs a job.

        Args:
            job: The job.
            on_answered: Called when only the judge is waited for, so that the worker can take another job meanwhile.

        Returns:
            The exit code of the job's process; None if the worker itself died.

        Raises:
            StuckError: It took too long, or no longer reported that it was alive. If only the judge was waited for, the
                process of the job has been killed; otherwise, the worker should be.
        """
        number, judging = next(self._numbers), 0
        heard = queue.SimpleQueue[Message | None]()
        with self._lock:
            if self._ended:
                return None
            self._heard[number] = heard
        try:
            self._send([number, job.model_dump(mode="json")])
            for message in self._messages(job, heard):
                if "exit_code" in message:
                    return message["exit_code"]
                if "judging" in message:
                    judging = message["judging"]
                    on_answered()
            return None
        except (BrokenPipeError, ValueError):
            return None
        except StuckError as stuck:
            stuck.is_judging = judging > 0
            if judging:
                kill_descendants(judging, with_itself=True)
            raise
        finally:
            del self._heard[number]

    def _send(self, request: Any) -> None:
        assert self._process.stdin is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _messages(self, job: GradeJob, heard: "queue.SimpleQueue[Message | None]") -> Iterator[Message]:
        """Yields the worker's messages about a job until its end."""
        began = last = time.monotonic()
        while True:
            silence_s = job.silence_s if self._ready else max(START_TIMEOUT_S, job.silence_s)
            left_s, patience_s = began + job.time_limit_s - time.monotonic(), last + silence_s - time.monotonic()
            if left_s <= 0:
                raise StuckError(f"grading took longer than its limit of {job.time_limit_s:.0f} s")
            if patience_s <= 0:
                raise StuckError(f"the grader's process gave no sign of life for {silence_s:.0f} s")
            with suppress(queue.Empty):
                if (message := heard.get(timeout=min(left_s, patience_s))) is None:
                    return
                last = time.monotonic()
                if "ready" in message:
                    began = last
                yield message

    def _listen(self) -> None:
        """Hands the worker's messages to the jobs that they are about, until it ends."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            message: Message = json.loads(line)
            with self._lock:
                self._ready = True
                for number in [message["job"]] if "job" in message else [*self._heard]:
                    if number in self._heard:
                        self._heard[number].put(message)
        with self._lock:
            self._ended = True
            for heard in self._heard.values():
                heard.put(None)

    def kill(self) -> None:
        """Kills the worker, its jobs and all their descendants. Raises the same errors as `kill_tree`."""
        kill_tree(self._process)


def kill_tree(leader: "subprocess.Popen[bytes]") -> None:
    """Kills a process group by its leader, and all descendants of the leader.

    Raises:
        InfrastructureError: The leader does not end, for example because it hangs in a system call.
    """
    kill_descendants(leader.pid, with_group=True)
    try:
        leader.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise InfrastructureError(
            "the grader's process cannot be killed; it may hang in a system call of the driver or the disk"
        ) from error


def kill_descendants(pid: int, *, with_group: bool = False, with_itself: bool = False) -> None:
    """Kills all descendants of a process."""
    descendants: list[psutil.Process] = []
    with suppress(psutil.Error):  # listed first, since descendants cannot be found after their parents have ended
        process = psutil.Process(pid)
        descendants = [*process.children(recursive=True), *([process] if with_itself else [])]
    if with_group:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for process in descendants:
        with suppress(psutil.Error):
            process.kill()
