"""A pool of grader workers, one per device. Each job runs in a new process.

with GraderPool(settings, devices_of(usable_gpus(settings).gpus)) as pool:
    result = pool.submit(job).result()

Runs that share a GPU for grading take turns on it: a job holds its device for itself while its model works.

A worker reports once that it is ready, and while a job runs, the job's process reports every second that it is alive.
Both have timeouts, so that the pool never waits for a process that is stopped, starved or stuck.
"""

import itertools
import json
import os
import queue
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError, UnclearFaultError
from a2rl.core.files import machine_failure, read_model
from a2rl.core.processes import AWAKE_S, OF_MACHINE, Child, check_stop, kill_descendants
from a2rl.core.settings import Settings
from a2rl.grading.devices import DeviceLostError, lost_gpu
from a2rl.grading.job import GradeJob, GradeResult, merged, parts_of
from a2rl.grading.outputs import OnProgress, ignore_progress, joint_progress, progress_path
from a2rl.linux.gpu_locks import hold_for_grade
from a2rl.linux.gpus import CPU
from a2rl.llm.keys import grader_keys, keys_message

WORKER = "a2rl.grading.worker"
START_TIMEOUT_S = 300.0
"""This is enough for loading torch on a busy machine."""
OUT_OF_MEMORY = 71
"""The exit code of a job's process that could not get the memory that it needed."""
Message = dict[str, int]
MORE_MEMORY = "leave it more: end other programs on this machine or GPU, or run fewer runs at the same time"
MAX_JUDGING = 4
"""How many jobs of a device may wait for their judge while it works on another: each keeps a process with libraries."""
ATTEMPTS = 2
"""How many times a job is tried if its process or its worker dies or hangs."""
MEMORY_ATTEMPTS = 10
"""How many times it is tried if it lacks memory, while others use the device in between."""


class GradingError(InfrastructureError):
    """A job could not be graded on this machine."""

    def __init__(self, reason: str, seconds: float, *, attempts: int = 1, is_of_machine: bool = False) -> None:
        super().__init__(reason)
        self.seconds = seconds
        """Seconds of grading that the failed attempts used."""
        self.attempts = attempts
        """How many times a job is tried that fails in this way; once if another attempt would fail as well."""
        self.is_of_machine = is_of_machine
        """Whether the machine certainly was the reason, so that this says nothing about the checkpoint. Memory may be
        lacking because of the checkpoint, and a run must end all the same."""


def is_of_machine(error: BaseException) -> bool:
    """Whether the machine certainly was the reason, such as a full disk, a lost GPU or a worker that did not start."""
    if isinstance(error, GradingError):
        return error.is_of_machine
    return isinstance(error, InfrastructureError) and not isinstance(error, UnclearFaultError)


class _Failure(NamedTuple):
    """Why an attempt gave no result; see `GradingError`."""

    reason: str = "the grader left no result"
    attempts: int = 1
    is_of_machine: bool = False


def failure_path(job: GradeJob) -> Path:
    """Returns the file in which a job's process says why it has failed."""
    return job.result.with_suffix(".error")


def named_devices(text: str) -> frozenset[str]:
    """Returns the devices in a text such as "0,1"."""
    return frozenset(name.strip() for name in text.split(",") if name.strip())


class _QueuedJob(NamedTuple):
    """A job in the queue."""

    job: GradeJob
    future: "Future[GradeResult]"
    devices: frozenset[str]
    """The devices of which one has to run it; any runs it if none of these is in service."""
    attempts: int = 1
    """How many attempts there are with the next one."""
    seconds: float = 0.0
    """Seconds of grading that the attempts before used."""


class _Queue:
    """Jobs in the order of their arrival. A device takes the first that it may run."""

    def __init__(self, devices: Iterable[str]) -> None:
        self._changed = threading.Condition()
        self._in_service = list(devices)
        self._jobs: list[_QueuedJob] = []
        self._closed = False

    def put(self, waiting: _QueuedJob) -> bool:
        """Adds a job, one that is tried again as the first; False if the queue is closed."""
        with self._changed:
            if not self._closed:
                self._jobs.insert(0 if waiting.attempts > 1 else len(self._jobs), waiting)
                self._changed.notify_all()
            return not self._closed

    def take(self, device: str) -> _QueuedJob | None:
        """Waits for a job for a device and removes it; None when the queue is closed, or the device out of service."""
        with self._changed:
            while not self._closed and device in self._in_service:
                for waiting in self._jobs:
                    if device in waiting.devices or waiting.devices.isdisjoint(self._in_service):
                        self._jobs.remove(waiting)
                        return waiting
                self._changed.wait()
            return None

    def retire(self, device: str) -> bool:
        """Takes a device out of service, so that others run the jobs that were meant for it, now or later.

        Returns:
            False if it is the last one: it stays, and jobs fail on it with the reason.
        """
        with self._changed:
            if self._in_service == [device]:
                return False
            self._in_service = [each for each in self._in_service if each != device]
            self._changed.notify_all()
            return True

    def close(self) -> list[_QueuedJob]:
        """Closes the queue and returns the jobs that are left."""
        with self._changed:
            self._closed = True
            left, self._jobs = self._jobs, []
            self._changed.notify_all()
            return left


class GraderPool(AbstractContextManager["GraderPool"]):
    """Runs jobs on its devices. A job whose result is already on disk is not run again."""

    def __init__(self, settings: Settings, devices: list[str], worker: str = WORKER) -> None:
        """Starts a worker on each device.

        Args:
            devices: Devices as `devices_of` returns them.
            worker: The module of the worker; see `a2rl.grading.worker`.

        Raises:
            InfrastructureError: This machine cannot start a worker.
        """
        self.devices = devices
        self._jobs = _Queue(devices)
        self._closed = threading.Event()
        self._slots: list[_Slot] = []
        with ExitStack() as on_failure:
            on_failure.callback(self.close)
            for device in devices:
                slot = _Slot(settings, device, worker, self._closed)
                self._slots.append(slot)
                threading.Thread(target=self._serve, args=(slot,), daemon=True).start()
            on_failure.pop_all()

    def submit(self, job: GradeJob, devices: Iterable[str] = ()) -> "Future[GradeResult]":
        """Queues a job.

        Args:
            devices: The devices of which one has to run it. If there are none, or none of these, any device runs it.

        Returns:
            A future that always completes; it raises GradingError if the job cannot be graded on this machine.
        """
        future: Future[GradeResult] = Future()
        wanted = frozenset(devices)
        chosen = frozenset(device for device in self.devices if named_devices(device) & wanted)
        if not self._jobs.put(_QueuedJob(job, future, chosen)):
            future.set_exception(InterruptedByUserError("grading was stopped"))
        return future

    def close(self) -> None:
        """Ends the workers; queued and running jobs fail with InterruptedByUserError."""
        self._closed.set()
        for waiting in self._jobs.close():
            _settle(waiting.future, InterruptedByUserError("grading was stopped"))
        with ExitStack() as slots:  # a worker that cannot be killed does not keep the others alive
            for slot in self._slots:
                slots.callback(slot.close)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, slot: "_Slot") -> None:
        """Takes a job whenever the device is free. A job whose model has answered waits for its judge in its thread."""
        while True:
            slot.device_is_free.acquire()
            if (waiting := self._jobs.take(slot.device)) is None:
                return
            with suppress(Exception):  # the job meets the same problem, and reports it
                slot.live_worker()  # started here, because the kernel ends it with the thread that has started it
            try:
                threading.Thread(target=self._grade, args=(slot, waiting), daemon=True).start()
            except RuntimeError:  # there are too many processes: the device waits for the judge, too
                self._grade(slot, waiting)

    def _grade(self, slot: "_Slot", waiting: _QueuedJob) -> None:
        outcome: GradeResult | A2rlError
        try:
            outcome = slot.grade(waiting.job)
        except DeviceLostError as error:
            if self._jobs.retire(slot.device) and self._jobs.put(waiting):
                return
            outcome = error
        except GradingError as error:
            again = waiting._replace(attempts=waiting.attempts + 1, seconds=waiting.seconds + error.seconds)
            if again.attempts <= error.attempts:
                if error.attempts == MEMORY_ATTEMPTS:
                    self._closed.wait(waiting.job.memory_wait_s / (MEMORY_ATTEMPTS - 1))
                if self._jobs.put(again):
                    return
            outcome = GradingError(str(error), again.seconds, is_of_machine=error.is_of_machine)
            if self._closed.is_set():
                outcome = InterruptedByUserError("grading was stopped")
        except A2rlError as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - if this thread ended, the waiting requests would wait forever
            outcome = InfrastructureError(f"the grader failed: {error!r}")
        _settle(waiting.future, outcome)


def _settle(future: "Future[GradeResult]", outcome: GradeResult | A2rlError) -> None:
    if isinstance(outcome, A2rlError):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class _Slot:
    """One device and its worker process, which is started at once and restarted when it has died."""

    def __init__(self, settings: Settings, device: str, worker: str, closed: threading.Event) -> None:
        self._settings, self.device, self._module, self._closed = settings, device, worker, closed
        self._lock = threading.Lock()
        self._worker = WorkerProcess(settings, device, worker)
        self.device_is_free = threading.Semaphore()
        self._judging = threading.Semaphore(MAX_JUDGING)

    def grade(self, job: GradeJob) -> GradeResult:
        """Tries once to grade a job on the device, which is taken, and freed as soon as the job no longer needs it."""
        has_device, turn = True, ExitStack()

        def free_device() -> None:
            nonlocal has_device
            if has_device and self._judging.acquire(blocking=False):
                has_device = False
                turn.close()
                self.device_is_free.release()

        try:
            failed, began = _Failure(), time.monotonic()
            if not job.result.exists():
                gpus, who = named_devices(self.device) - {CPU}, f"the grade {job.result}"
                turn.enter_context(hold_for_grade(gpus, self._settings.gpu_locks, who, self._check_open))
                began = time.monotonic()
                failed = self._attempt(job, free_device)
            self._check_open()
            if job.result.exists():
                return read_model(job.result, GradeResult)
            if lost := lost_gpu(self.device, self._settings):
                raise DeviceLostError(lost)
            seconds = round(time.monotonic() - began, 3)
            raise GradingError(failed.reason, seconds, attempts=failed.attempts, is_of_machine=failed.is_of_machine)
        finally:
            turn.close()
            (self.device_is_free if has_device else self._judging).release()
            with suppress(OSError):
                progress_path(job.result).unlink(missing_ok=True)  # of a process that was killed

    def close(self) -> None:
        """Ends the worker, after the pool was closed."""
        with self._lock:
            self._worker.kill()

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise InterruptedByUserError("grading was stopped")

    def _attempt(self, job: GradeJob, free_device: Callable[[], None]) -> _Failure:
        """Runs the job once; returns why there is no result, if there is none."""
        worker, failure = self.live_worker(), failure_path(job)
        failure.unlink(missing_ok=True)
        try:
            exit_code = worker.run(job, free_device)
        except StuckError as stuck:
            if not stuck.is_judging:
                worker.kill()
            return _Failure(f"{stuck}; its log is {job.log}", ATTEMPTS)
        except BaseException:
            worker.kill()
            raise
        if exit_code is None:
            worker.kill()
        lacks_memory = exit_code == OUT_OF_MEMORY
        if failure.exists():
            reason = failure.read_text(encoding="utf-8")
            failure.unlink()
            if lacks_memory:
                return _Failure(f"{reason}; {MORE_MEMORY}", MEMORY_ATTEMPTS)
            return _Failure(reason, is_of_machine=exit_code == OF_MACHINE)
        if exit_code == 0:
            return _Failure(attempts=ATTEMPTS)
        reason = f"{_how_it_ended(exit_code)}; its log is {job.log}"
        return _Failure(reason, MEMORY_ATTEMPTS if lacks_memory else ATTEMPTS, exit_code == OF_MACHINE)

    def live_worker(self) -> "WorkerProcess":
        """Returns the worker, or a new one if it has died."""
        with self._lock:
            self._check_open()
            if not self._worker.is_alive:
                self._worker = WorkerProcess(self._settings, self.device, self._module)
            return self._worker


class StuckError(Exception):
    """The job takes too long, or its process no longer reports that it is alive."""

    is_judging = False
    """Whether the model had answered."""


class WorkerProcess:
    """One worker on one device."""

    def __init__(self, settings: Settings, device: str, module: str) -> None:
        gpus = {"CUDA_VISIBLE_DEVICES": "" if device == CPU else device, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        nowhere = Path(os.devnull)
        try:
            self._process = Child.of_module(module, settings=settings, log=nowhere, answers=True, variables=gpus)
        except OSError as error:
            raise machine_failure("start the grader", error) from error
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
            with self._lock:
                del self._heard[number]

    def _messages(self, job: GradeJob, heard: "queue.SimpleQueue[Message | None]") -> Iterator[Message]:
        """Yields the worker's messages about a job until its end."""
        began = last = time.monotonic()
        while True:
            silence_s = job.silence_s if self._ready else max(START_TIMEOUT_S, job.silence_s)
            left_s, patience_s = began + job.time_limit_s - time.monotonic(), last + silence_s - time.monotonic()
            if left_s <= 0:
                raise StuckError(f"grading took longer than its limit of {job.time_limit_s:.0f} s")
            try:  # after a pause of the whole machine, the process gets some seconds to show that it lives
                message = heard.get(timeout=max(AWAKE_S, min(left_s, patience_s)))
            except queue.Empty:
                if patience_s <= AWAKE_S:
                    raise StuckError(f"the grader's process gave no sign of life for {silence_s:.0f} s") from None
                continue
            if message is None:
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


def _how_it_ended(exit_code: int | None) -> str:
    """Says how a job's process ended without a result, and what to do about it."""
    if exit_code is None:
        return "the grader's process ended with its worker"
    if exit_code == OUT_OF_MEMORY:
        return f"the grader ran out of memory; {MORE_MEMORY}"
    if exit_code == OF_MACHINE:
        return "the grader's machine failed, such as a full disk"
    if exit_code == -signal.SIGKILL:
        return (
            f"the grader's process was killed (SIGKILL), probably because the machine ran out of memory; {MORE_MEMORY}"
        )
    name = signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"
    return f"the grader's process ended with {name}"


def grade_now(
    job: GradeJob,
    settings: Settings,
    devices: list[str],
    on_progress: OnProgress = ignore_progress,
) -> GradeResult:
    """Runs one job and waits for the result. An existing result is reused.

    Args:
        devices: The devices that share the work.
        on_progress: Called repeatedly with how far it is.

    Raises:
        InterruptedByUserError: The user stopped the pipeline meanwhile.
        InfrastructureError: The job cannot be graded on this machine.
    """
    if job.result.exists():
        return read_model(job.result, GradeResult)
    parts = parts_of(job, len(devices))
    with tempfile.TemporaryDirectory() as shared, GraderPool(settings, devices[: len(parts)]) as pool:
        count_in = {"judge_failures": Path(shared) / "failures"}
        futures = [pool.submit(part.model_copy(update=count_in)) for part in parts]
        while not all(future.done() for future in futures):
            check_stop()
            if (progress := joint_progress(part.result for part in parts)) is not None:
                on_progress(progress)
            wait(futures, timeout=0.2)
        return merged(job, parts, [future.result() for future in futures])
