"""A pool of grader workers, one per device: jobs in, results out, each in a fresh process.

with GraderPool(settings, devices_here(settings)) as pool:
    result = pool.submit(job).result()
"""

import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from types import TracebackType

from a2rl.errors import A2rlError, InfrastructureError, Interrupted
from a2rl.files import read_model
from a2rl.grading.job import GradeJob, GradeResult, progress_of
from a2rl.grading.worker_process import CPU, WORKER, Stuck, WorkerProcess
from a2rl.process import check_stop
from a2rl.settings import Settings

ATTEMPTS = 2
"""How often a job is tried when its process or its worker dies, or does not come to an end."""


class GradingError(InfrastructureError):
    """A job could not be graded on this machine."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds
        """What trying it took."""


def devices_here(settings: Settings) -> list[str]:
    """The GPUs that grading may use ($CUDA_VISIBLE_DEVICES, else all of this machine's), or the processor."""
    named = settings.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [device.strip() for device in named.split(",") if device.strip()] or [CPU]
    try:
        listing = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True, timeout=20
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return [CPU]
    return [str(index) for index, _ in enumerate(listing.splitlines())] or [CPU]


class GraderPool:
    """Runs jobs on its devices. A job whose result is already on disk is not run again."""

    def __init__(self, settings: Settings, devices: list[str], worker: str = WORKER) -> None:
        """Args: worker: the module that works; see `a2rl.grading.worker`."""
        self.devices = devices
        self._lock = threading.Lock()
        self._closed = False
        self._jobs: queue.Queue[tuple[GradeJob, Future[GradeResult]] | None] = queue.Queue()
        self._slots = [_Slot(settings, device, worker) for device in devices]
        self._threads = [threading.Thread(target=self._serve, args=(slot,), daemon=True) for slot in self._slots]
        for thread in self._threads:
            thread.start()

    def submit(self, job: GradeJob) -> "Future[GradeResult]":
        """Queues a job. Its future raises GradingError if it cannot be graded on this machine; it always ends."""
        future: Future[GradeResult] = Future()
        with self._lock:
            if not self._closed:
                self._jobs.put((job, future))
                return future
        future.set_exception(Interrupted("grading was stopped"))
        return future

    def worker_pids(self) -> list[int]:
        """The workers that run now, for whoever watches them."""
        return [slot.pid for slot in self._slots if slot.pid is not None]

    def close(self) -> None:
        """Ends the workers; jobs that still wait or run fail with Interrupted."""
        with self._lock:
            self._closed = True
            while not self._jobs.empty():
                if (waiting := self._jobs.get()) is not None:
                    _settle(waiting[1], Interrupted("grading was stopped"))
            for _ in self._threads:
                self._jobs.put(None)
        for slot in self._slots:
            slot.close()

    def __enter__(self) -> "GraderPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _serve(self, slot: "_Slot") -> None:
        while (waiting := self._jobs.get()) is not None:
            job, future = waiting
            try:
                _settle(future, slot.grade(job))
            except A2rlError as error:
                _settle(future, error)
            except Exception as error:  # noqa: BLE001 - a thread that ends would strand every job behind this one
                _settle(future, InfrastructureError(f"the grader failed: {error!r}"))


def _settle(future: "Future[GradeResult]", outcome: GradeResult | A2rlError) -> None:
    try:
        if isinstance(outcome, A2rlError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
    except InvalidStateError:  # whoever asked does not want it any more
        return


class _Slot:
    """One device and its worker process, started at once and again when it died."""

    def __init__(self, settings: Settings, device: str, worker: str) -> None:
        self._settings, self._device, self._module = settings, device, worker
        self._closed = False
        self._lock = threading.Lock()
        self._worker = WorkerProcess(settings, device, worker)

    @property
    def pid(self) -> int | None:
        return self._worker.pid if self._worker.is_alive else None

    def grade(self, job: GradeJob) -> GradeResult:
        problem, began = "", time.monotonic()
        for _ in range(ATTEMPTS):
            if job.result.exists():
                break
            problem, is_final = self._attempt(job)
            if self._closed:
                raise Interrupted("grading was stopped")
            if is_final:
                break
        if job.result.exists():
            return read_model(job.result, GradeResult)
        raise GradingError(problem or "the grader left no result", round(time.monotonic() - began, 3))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._worker.kill()

    def _attempt(self, job: GradeJob) -> tuple[str, bool]:
        """Why there is no result; and whether to try again would be in vain."""
        worker, failure = self._live_worker(), job.result.with_suffix(".error")
        failure.unlink(missing_ok=True)
        try:
            exit_code = worker.run(job)
        except Stuck as stuck:
            worker.kill()
            return f"{stuck}; its log is {job.log}", False
        except BaseException:
            worker.kill()  # what it says next would be taken for the next job's
            raise
        if exit_code is None:
            worker.kill()
        if failure.exists():
            reason = failure.read_text(encoding="utf-8")
            failure.unlink()
            return reason, True
        return (
            "" if exit_code == 0 else f"the grader's process ended with {_exit_name(exit_code)}; its log is {job.log}"
        ), False

    def _live_worker(self) -> WorkerProcess:
        with self._lock:
            if self._closed:
                raise Interrupted("grading was stopped")
            if not self._worker.is_alive:
                self._worker = WorkerProcess(self._settings, self._device, self._module)
            return self._worker


def _exit_name(exit_code: int | None) -> str:
    if exit_code is None:
        return "its worker"
    return signal.Signals(-exit_code).name if exit_code < 0 else f"exit code {exit_code}"


def grade_now(
    job: GradeJob, settings: Settings, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> GradeResult:
    """Grades one job on this machine's first device and waits for it; a result that is on disk is taken as it is.

    Args:
        on_progress: told now and then how many items are done, of how many.

    Raises:
        Interrupted: the user stopped the pipeline meanwhile.
        InfrastructureError: it cannot be graded here.
    """
    if job.result.exists():
        return read_model(job.result, GradeResult)
    with GraderPool(settings, devices_here(settings)[:1]) as pool:
        future = pool.submit(job)
        while not future.done():
            check_stop()
            if (progress := progress_of(job)) is not None:
                on_progress(*progress)
            wait([future], timeout=0.2)
        return future.result()
