"""The grader's worker: a warm process that forks a fresh one for every job.

Loading torch takes seconds and a submission must not meet another's leftovers, so this process imports the libraries
once, touches no device, and grades nothing itself. JSON lines: first `{"ready": true}` on stdout. Then a `GradeJob` on
stdin, on stdout `{"alive": n}` every second from its process, and `{"exit_code": n}` when that has ended. The end of
stdin (its parent is gone) ends it.
"""

import gc
import importlib
import json
import os
import sys
import threading
import time
import traceback

from a2rl.errors import A2rlError
from a2rl.grading.job import GradeJob, run_job
from a2rl.isolation.start import die_with_parent
from a2rl.keys import listen
from a2rl.secrets import scrub

CRASHED = 70
ALIVE_EVERY_S = 1.0


def _warm() -> None:
    for library in ("scipy.stats", "torch", "transformers.models.auto.modeling_auto", "transformers.models.qwen3"):
        importlib.import_module(library)


def _say_alive(answers: int) -> None:
    """A thread of the process that grades: stops when that is stopped, and says nothing of how far it is."""
    second = 0
    while True:
        try:
            os.write(answers, json.dumps({"alive": second}).encode() + b"\n")  # so short that it is written whole
        except OSError:
            return
        second += 1
        time.sleep(ALIVE_EVERY_S)


def _grade_in_child(job: GradeJob, answers: int) -> int:
    """In the forked process: grades, with everything it prints going to the job's log."""
    die_with_parent()
    threading.Thread(target=_say_alive, args=(answers,), daemon=True).start()
    job.log.parent.mkdir(parents=True, exist_ok=True)
    log = os.open(job.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        run_job(job)
    except A2rlError as error:
        job.result.with_suffix(".error").write_text(scrub(str(error)), encoding="utf-8")
        return 1
    except BaseException:  # noqa: BLE001 - the boundary of the process: its parent learns it from the exit code and the log
        sys.stderr.write(scrub(traceback.format_exc()))
        sys.stderr.flush()
        return CRASHED
    return 0


def main() -> None:
    die_with_parent()
    listen(sys.stdin)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no answer
    _warm()
    gc.freeze()  # the children share these pages until they write to them
    answers.write('{"ready": true}\n')
    answers.flush()
    for line in sys.stdin:
        job = GradeJob.model_validate_json(line)
        child = os.fork()
        if child == 0:
            code = _grade_in_child(job, answers.fileno())
            os._exit(code)
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps({"exit_code": os.waitstatus_to_exitcode(status)}) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
