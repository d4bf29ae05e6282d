"""Owns the process of a grader's worker for the pool: starts it, sends it jobs, and ends it with all its children.

The worker reports once that it is ready, and while a job runs, the job's process reports every second that it is alive.
Both have timeouts, so that the pool never waits for a process that is stopped, starved or stuck.
"""

import itertools
import json
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from a2rl.core.processes import Child, kill_descendants
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeJob
from a2rl.linux.gpus import CPU
from a2rl.llm.keys import grader_keys, keys_message

WORKER = "a2rl.grading.worker"
START_TIMEOUT_S = 300.0
"""This is enough for loading torch on a busy machine."""
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
        gpus = {"CUDA_VISIBLE_DEVICES": "" if device == CPU else device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        nowhere = Path(os.devnull)
        self._process = Child.of_module(module, settings=settings, log=nowhere, answers=True, variables=gpus)
        self._process.tell(keys_message(grader_keys(settings)))
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
        return self._process.is_alive

    def run(self, job: GradeJob, on_answered: Callable[[], None] = lambda: None) -> int | None:
        """Runs a job.

        Args:
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
            request = json.dumps([number, job.model_dump(mode="json")])
            with self._lock:
                self._process.tell(request)
            for message in self._messages(job, heard):
                if "exit_code" in message:
                    return message["exit_code"]
                if "judging" in message:
                    judging = message["judging"]
                    on_answered()
            return None
        except StuckError as stuck:
            stuck.is_judging = judging > 0
            if judging:
                kill_descendants(judging, with_itself=True)
            raise
        finally:
            del self._heard[number]

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
        for line in self._process.answers:
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
        """Kills the worker, its jobs and all their descendants. Raises the same errors as `Child.kill_tree`."""
        self._process.kill_tree()
