"""A pool of grader workers, one per device: jobs in, results out, each in a fresh process.

with GraderPool(settings, devices_here(settings)) as pool:
    result = pool.submit(job).result()
"""

import json
import queue
import signal
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from types import TracebackType

from a2rl.errors import A2rlError, InfrastructureError, Interrupted
from a2rl.files import read_model
from a2rl.grading.job import GradeJob, GradeResult, progress_of
from a2rl.keys import grader_keys, tell
from a2rl.process import check_stop, child_environment, module_command
from a2rl.settings import Settings

ATTEMPTS = 3
"""How often a job is tried when its process or its worker dies."""
CPU = "cpu"


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

    def __init__(self, settings: Settings, devices: list[str]) -> None:
        self.devices = devices
        self._settings = settings
        self._jobs: queue.Queue[tuple[GradeJob, Future[GradeResult]] | None] = queue.Queue()
        self._slots = [_Slot(settings, device) for device in devices]
        self._threads = [threading.Thread(target=self._serve, args=(slot,), daemon=True) for slot in self._slots]
        for thread in self._threads:
            thread.start()

    def submit(self, job: GradeJob) -> "Future[GradeResult]":
        """Queues a job. Its future raises InfrastructureError if it cannot be graded on this machine."""
        future: Future[GradeResult] = Future()
        self._jobs.put((job, future))
        return future

    def worker_pids(self) -> list[int]:
        """The workers that run now, for whoever watches them."""
        return [slot.pid for slot in self._slots if slot.pid is not None]

    def close(self) -> None:
        """Ends the workers; jobs that still wait or run fail with Interrupted."""
        for _ in self._threads:
            self._jobs.put(None)
        for slot in self._slots:
            slot.close()
        while True:
            try:
                waiting = self._jobs.get_nowait()
            except queue.Empty:
                return
            if waiting is not None:
                waiting[1].set_exception(Interrupted("grading was stopped"))

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
                result = slot.grade(job)
            except A2rlError as error:
                _settle(future, error)
            except Exception as error:  # noqa: BLE001 - a thread that ends would strand every job behind this one
                _settle(future, InfrastructureError(f"the grader failed: {error!r}"))
            else:
                future.set_result(result)


def _settle(future: "Future[GradeResult]", error: A2rlError) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        return


class _Slot:
    """One device and its worker process, started when first needed and again when it died."""

    def __init__(self, settings: Settings, device: str) -> None:
        self._settings = settings
        self._device = device
        self._worker: subprocess.Popen[str] | None = None
        self._closed = False
        self._lock = threading.Lock()
        self._start()

    @property
    def pid(self) -> int | None:
        worker = self._worker
        return worker.pid if worker is not None and worker.poll() is None else None

    def grade(self, job: GradeJob) -> GradeResult:
        problem = ""
        for _ in range(ATTEMPTS):
            if job.result.exists():
                return read_model(job.result, GradeResult)
            exit_code = self._attempt(job)
            failure = job.result.with_suffix(".error")
            if exit_code == 0:
                continue
            if self._closed:
                raise Interrupted("grading was stopped")
            if failure.exists():
                problem = failure.read_text(encoding="utf-8")
                failure.unlink()
                break
            problem = f"the grader's process ended with {_exit_name(exit_code)}; its log is {job.log}"
        else:
            if job.result.exists():
                return read_model(job.result, GradeResult)
        raise InfrastructureError(problem)

    def close(self) -> None:
        with self._lock:
            self._closed = True
            if self._worker is not None:
                self._worker.kill()  # the job's process dies with it
                self._worker.wait()

    def _start(self) -> None:
        environment = child_environment(self._settings)
        environment["CUDA_VISIBLE_DEVICES"] = "" if self._device == CPU else self._device
        with self._lock:
            if self._closed:
                raise Interrupted("grading was stopped")
            self._worker = subprocess.Popen(
                module_command("a2rl.grading.worker"),
                cwd=self._settings.root,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
            tell(self._worker, grader_keys(self._settings))

    def _attempt(self, job: GradeJob) -> int | None:
        """The exit code of the job's process; None if the worker itself died."""
        if self.pid is None:
            self._start()
        assert self._worker is not None
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        try:
            self._worker.stdin.write(job.model_dump_json() + "\n")
            self._worker.stdin.flush()
        except (BrokenPipeError, ValueError):
            return None
        while line := self._worker.stdout.readline():
            message = json.loads(line)
            if "exit_code" in message:
                return int(message["exit_code"])
        self._worker.wait()
        return None


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
