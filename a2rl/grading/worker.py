"""The grader's worker: a process with loaded libraries that forks a new process for every job.

Loading torch takes seconds, and no state may be left over from one submission to the next. So this process imports the
libraries once, uses no device, and grades nothing itself. It speaks JSON lines: first `{"ready": true}` on stdout. For
each `[number, GradeJob]` on stdin, the forked process writes `{"job": number, "alive": n}` to stdout every second, and
the worker writes `{"job": number, "exit_code": n}` when that process has ended. In between it may write
`{"job": number, "judging": pid}`: the model has answered, and the worker takes the next job while that process waits
for the judge. The worker ends when stdin closes (its parent has ended).

With the back end vllm, the worker keeps a running engine from job to job and lends it to the forked processes, since
starting one takes much longer than other weights do. Only the weights may differ from one checkpoint to the next: the
engine is started anew for another configuration, another tokenizer or other options. An engine that takes other weights
compares every one of them with the files.
"""

import gc
import importlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager, suppress

from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.files import MACHINE_ERRORS, digest_of, folder_digest
from a2rl.core.processes import OF_MACHINE
from a2rl.core.secrets import scrub
from a2rl.core.settings import Settings
from a2rl.grading.devices import lost_gpu
from a2rl.grading.job import GradeJob, run_job
from a2rl.grading.pool import OUT_OF_MEMORY, failure_path, is_of_machine
from a2rl.linux.process_tree import die_with_parent
from a2rl.llm.keys import receive_keys
from a2rl.models.checkpoint import INDEX, SMALL_FILES
from a2rl.sampling.engine_params import VllmParams
from a2rl.sampling.vllm_process import (
    EngineLease,
    EngineLostError,
    EngineMemoryError,
    EngineProcess,
    WeightsRejectedError,
    engine_request,
)
from a2rl.sampling.vllm_worker import lacks_memory

FAILED, CRASHED = 1, 70
ENGINE_LOST, WEIGHTS_REJECTED = 72, 73
"""Exit codes of a job's process whose lent engine has died, or has not taken the weights. A new engine may grade it."""
ALIVE_EVERY_S = 1.0
ANSWERED = b"."
MAX_REJECTIONS = 2
"""After an engine has rejected other weights so often, engines of its kind are not kept."""


class WarmEngine(AbstractContextManager["WarmEngine"]):
    """The engine of one device; none before the first job that needs one."""

    def __init__(self) -> None:
        self._engine: EngineProcess | None = None
        self._kind = ""
        self._why = "it is the first grade on this device"
        self._rejections: dict[str, int] = {}

    def lease(self, job: GradeJob) -> EngineLease | None:
        """Returns a lease of the kept engine, or of a new one.

        Returns:
            None if the job's own process has to start an engine, or to say why it cannot: with another back end, with
            several GPUs for one model, or where vLLM is missing.
        """
        if job.backend != "vllm" or (job.vllm or VllmParams()).tensor_parallel_size > 1:
            return None
        try:
            kind = kind_of(job)
        except OSError:
            return None
        if self._rejections.get(kind, 0) >= MAX_REJECTIONS:
            self.close()
            return None
        if self._engine is not None and self._engine.is_alive and kind == self._kind:
            return EngineLease(self._engine.connection, is_warm=True, why="")
        if self._engine is not None:
            was = "was for another configuration" if self._engine.is_alive else "had ended"
            self._why = f"the engine before it {was}"
            self.close()
        return self._start(job, kind)

    def _start(self, job: GradeJob, kind: str) -> EngineLease | None:
        with suppress(OSError, A2rlError):  # the job's own process meets the same problem, and reports it
            job.log.parent.mkdir(parents=True, exist_ok=True)
            log = job.log.with_name("vllm.log")
            self._engine = EngineProcess.start(job.model, job.exact, job.dtype, job.vllm, job.memory, log)
            self._kind = kind
            return EngineLease(self._engine.connection, is_warm=False, why=self._why)
        return None

    def give_back(self, lease: EngineLease | None) -> None:
        """Ends a lease; the engine rests until the next."""
        if lease is not None:
            lease.connection.rest()

    def give_up(self, lease: EngineLease | None, why: str, *, is_rejection: bool = False) -> None:
        """Ends a lease and the engine.

        Args:
            why: What is wrong with the engine.
            is_rejection: Whether it did not take the weights that it was given.
        """
        if lease is None:
            return
        if is_rejection:
            self._rejections[self._kind] = self._rejections.get(self._kind, 0) + 1
        self._why = f"the engine before it was given up: {why}"
        self.close()

    def close(self) -> None:
        """Ends the engine."""
        if self._engine is not None:
            self._engine.close(timeout_s=0)
            self._engine = None

    def __exit__(self, *_: object) -> None:
        self.close()


def kind_of(job: GradeJob) -> str:
    """Returns the digest of everything that an engine depends on, except for the weights.

    Raises:
        OSError: The folder of the model cannot be read.
    """
    files = folder_digest(job.model, SMALL_FILES, but=[INDEX])
    return digest_of({"files": files, **engine_request(job.exact, job.dtype, job.vllm, job.memory)})


def _import_libraries() -> None:
    for library in ("scipy.stats", "torch", "transformers.models.auto.modeling_auto", "transformers.models.qwen3"):
        importlib.import_module(library)


def _report(answers: int, number: int, **message: int) -> None:
    os.write(answers, json.dumps({"job": number, **message}).encode() + b"\n")  # so short that it is written atomically


def _report_alive(answers: int, number: int) -> None:
    """Reports every second that the grading process is not stopped. It runs in a thread, so it says nothing about
    progress."""
    second = 0
    while True:
        try:
            _report(answers, number, alive=second)
        except OSError:
            return
        second += 1
        time.sleep(ALIVE_EVERY_S)


def _grade_in_child(number: int, job: GradeJob, lease: EngineLease | None, answers: int, answered: int) -> int:
    """Grades in the forked process; everything that it prints goes to the job's log. Returns the exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    die_with_parent()
    threading.Thread(target=_report_alive, args=(answers, number), daemon=True).start()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        _require_gpu(job)
        run_job(job, lease, lambda: os.close(answered) if os.write(answered, ANSWERED) else None)
    except A2rlError as error:
        failure_path(job).write_text(scrub(str(error)), encoding="utf-8")
        return _exit_code_of(error, lease)
    except MemoryError:
        return OUT_OF_MEMORY
    except BaseException as error:  # noqa: BLE001 - outermost code: the parent gets an exit code, the log a traceback
        text = traceback.format_exc()
        sys.stderr.write(scrub(text))
        sys.stderr.flush()
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
            return OF_MACHINE
        return OUT_OF_MEMORY if lacks_memory(text) else CRASHED
    return 0


def _exit_code_of(error: A2rlError, lease: EngineLease | None) -> int:
    """Returns the exit code for an error; only a job that was lent a warm engine can do better with a new one."""
    if isinstance(error, EngineMemoryError):
        return OUT_OF_MEMORY
    if isinstance(error, EngineLostError) and lease is not None and lease.is_warm:
        return WEIGHTS_REJECTED if isinstance(error, WeightsRejectedError) else ENGINE_LOST
    return OF_MACHINE if is_of_machine(error) else FAILED


def _require_gpu(job: GradeJob) -> None:
    """Raises InfrastructureError if this process should grade on a GPU and would silently take the processor."""
    settings = Settings.load()
    gpu = settings.environ.get("CUDA_VISIBLE_DEVICES")
    if gpu and (lost := lost_gpu(gpu, settings)):
        raise InfrastructureError(lost)
    if not gpu or job.backend != "transformers":  # the worker of vLLM has an environment of its own
        return
    import torch

    if torch.version.cuda is None:
        raise InfrastructureError(
            f"torch {torch.__version__} cannot use GPUs: install its CUDA build, or set CUDA_VISIBLE_DEVICES to nothing"
        )
    if not torch.cuda.is_available():
        raise InfrastructureError(f"torch does not see the GPU {gpu}: `nvidia-smi` may say what has happened to it")


def main() -> None:
    """Runs jobs from stdin until it closes."""
    die_with_parent()
    receive_keys(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not be mistaken for an answer
    _import_libraries()
    gc.freeze()  # children share these pages as long as the garbage collector does not write to them
    answers.write('{"ready": true}\n')
    answers.flush()
    judging = _Judging(answers.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: judging.report())
    with WarmEngine() as kept:
        for line in sys.stdin:
            number, job = json.loads(line)
            _grade(number, GradeJob.model_validate(job), kept, judging)


class _Judging:
    """The processes whose models have answered, and that still wait for the judge, with the numbers of their jobs."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self._jobs: dict[int, int] = {}

    def add(self, child: int, number: int) -> None:
        """Lets a process go on; its end is reported."""
        self._jobs[child] = number
        _report(self.answers, number, judging=child)
        self.report()  # of the signal of a process that has ended before it was added

    def report(self) -> None:
        """Reports those that have ended; also called by the signal handler, at any time."""
        for child in tuple(self._jobs):
            with suppress(ChildProcessError):  # reported meanwhile
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    _report(self.answers, self._jobs.pop(child), exit_code=os.waitstatus_to_exitcode(status))


def _grade(number: int, job: GradeJob, kept: WarmEngine, judging: _Judging) -> None:
    """Grades in a forked process, and in a second one if the engine that the first was lent turns out to be lost."""
    while True:
        lease = kept.lease(job)
        answered, say_answered = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(answered)
            code = CRASHED
            try:
                code = _grade_in_child(number, job, lease, judging.answers, say_answered)
            finally:  # also where the log cannot be written: this process must not go on as the worker
                os._exit(code)
        os.close(say_answered)
        with os.fdopen(answered, "rb") as waiting:
            has_answered = waiting.read(1) == ANSWERED  # nothing, if the process ends
        if has_answered:
            kept.give_back(lease)
            return judging.add(child, number)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        failure = failure_path(job)
        why = failure.read_text(encoding="utf-8") if failure.exists() else "a grade crashed"
        if code in (0, FAILED, OF_MACHINE, OUT_OF_MEMORY):  # without memory, an engine goes on resting, or has ended
            kept.give_back(lease)
        else:
            kept.give_up(lease, why, is_rejection=code == WEIGHTS_REJECTED)
        if code not in (ENGINE_LOST, WEIGHTS_REJECTED):
            return _report(judging.answers, number, exit_code=code)
        failure.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
