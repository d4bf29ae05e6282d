"""The grader's worker: a process with loaded libraries that forks a new process for every job.

Loading torch takes seconds, and no state may be left over from one submission to the next. So this process imports the
libraries once, uses no device, and grades nothing itself. It speaks JSON lines: first `{"ready": true}` on stdout. For
each `GradeJob` on stdin, the forked process writes `{"alive": n}` to stdout every second, and the worker writes
`{"exit_code": n}` when that process has ended. The worker ends when stdin closes (its parent has ended).

With the back end vllm, the worker keeps a running engine from job to job and lends it to the forked processes.
"""

import gc
import importlib
import json
import os
import sys
import threading
import time
import traceback
from pathlib import Path

from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.secrets import scrub
from a2rl.core.settings import Settings
from a2rl.grading.devices import lost_gpu
from a2rl.grading.job import GradeJob, run_job
from a2rl.grading.kept_engine import KeptEngine
from a2rl.grading.outputs import keeping_outputs
from a2rl.grading.worker_process import OUT_OF_MEMORY
from a2rl.linux.process_tree import die_with_parent
from a2rl.llm.keys import receive_keys
from a2rl.sampling.vllm_process import EngineLease, EngineLostError, EngineRefusedError

FAILED, CRASHED = 1, 70
ENGINE_LOST, ENGINE_REFUSED = 72, 73
"""Exit codes of a job's process whose lent engine has died, or has not taken the weights. A new engine may grade it."""
ALIVE_EVERY_S = 1.0
SIGNS_OF_NO_MEMORY = ("OutOfMemoryError", "out of memory", "can't allocate memory", "Cannot allocate memory")
"""How torch, CUDA and the system say that there is no memory left."""


def _import_libraries() -> None:
    for library in ("scipy.stats", "torch", "transformers.models.auto.modeling_auto", "transformers.models.qwen3"):
        importlib.import_module(library)


def _say_alive(answers: int) -> None:
    """Reports every second that the grading process is not stopped. It runs in a thread, so it says nothing about
    progress."""
    second = 0
    while True:
        try:
            os.write(answers, json.dumps({"alive": second}).encode() + b"\n")  # short enough to be written atomically
        except OSError:
            return
        second += 1
        time.sleep(ALIVE_EVERY_S)


def _grade_in_child(job: GradeJob, lease: EngineLease | None, answers: int) -> int:
    """Grades in the forked process; everything that it prints goes to the job's log. Returns the exit code."""
    die_with_parent()
    threading.Thread(target=_say_alive, args=(answers,), daemon=True).start()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        _require_gpu(job)
        with keeping_outputs(job.result):
            run_job(job, lease)
    except A2rlError as error:
        _failure_of(job).write_text(scrub(str(error)), encoding="utf-8")
        return _exit_code_of(error, lease)
    except MemoryError:
        return OUT_OF_MEMORY
    except BaseException:  # noqa: BLE001 - outermost code: the parent gets an exit code, the log a traceback
        text = traceback.format_exc()
        sys.stderr.write(scrub(text))
        sys.stderr.flush()
        return OUT_OF_MEMORY if any(sign in text for sign in SIGNS_OF_NO_MEMORY) else CRASHED
    return 0


def _exit_code_of(error: A2rlError, lease: EngineLease | None) -> int:
    """Returns the exit code for an error; only a job that was lent a warm engine can do better with a new one."""
    if isinstance(error, EngineLostError) and lease is not None and lease.is_warm:
        return ENGINE_REFUSED if isinstance(error, EngineRefusedError) else ENGINE_LOST
    return FAILED


def _failure_of(job: GradeJob) -> Path:
    """Returns the file with the reason for which a job has failed."""
    return job.result.with_suffix(".error")


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
    with KeptEngine() as kept:
        for line in sys.stdin:
            code = _grade(GradeJob.model_validate_json(line), kept, answers.fileno())
            answers.write(json.dumps({"exit_code": code}) + "\n")
            answers.flush()


def _grade(job: GradeJob, kept: KeptEngine, answers: int) -> int:
    """Grades in a forked process, and in a second one if the engine that the first was lent turns out to be lost."""
    while True:
        lease = kept.lease(job)
        child = os.fork()
        if child == 0:
            os._exit(_grade_in_child(job, lease, answers))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code in (0, FAILED):
            kept.give_back(lease)
            return code
        failure = _failure_of(job)
        why = failure.read_text(encoding="utf-8") if failure.exists() else "a grade crashed"
        kept.give_up(lease, why, is_refusal=code == ENGINE_REFUSED)
        if code not in (ENGINE_LOST, ENGINE_REFUSED):
            return code
        failure.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
