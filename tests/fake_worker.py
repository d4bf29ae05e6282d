"""A grading worker that does what the job's option `do` says; see `a2rl.grading.worker` for the protocol.

python -m tests.fake_worker
"""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from a2rl.core.processes import OF_MACHINE
from a2rl.grading.pool import OUT_OF_MEMORY
from a2rl.linux.process_tree import die_with_parent

working: list[int] = []
"""The numbers of the jobs so far."""


def say(**message: Any) -> None:
    if working:
        message["job"] = working[-1]
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def grade(job: dict[str, Any]) -> None:
    shutil.copyfile(job["model"], job["result"])
    say(exit_code=0)


def hang(job: dict[str, Any]) -> None:
    """Never finishes, but keeps sending heartbeats."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(job["result"]).with_suffix(".child").write_text(str(child.pid))
    while True:
        say(alive=1)
        time.sleep(0.05)


def stop(job: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die(job: dict[str, Any]) -> None:
    os._exit(9)


def out_of_memory(job: dict[str, Any]) -> None:
    """Takes memory in a process of its own until the kernel refuses it, as a real grader's process does."""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))
        try:
            bytearray(1 << 30)
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    say(exit_code=os.waitstatus_to_exitcode(status))


def full_disk(job: dict[str, Any]) -> None:
    failure = Path(job["result"]).with_suffix(".error")
    failure.write_text("the disk is full")
    say(exit_code=OF_MACHINE)


def killed(job: dict[str, Any]) -> None:
    """Its process is killed, as by the kernel when the machine's memory is full."""
    child = os.fork()
    if child == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    say(exit_code=os.waitstatus_to_exitcode(status))


def die_once(job: dict[str, Any]) -> None:
    tried = Path(job["result"]).with_suffix(".tried")
    if not tried.exists():
        tried.touch()
        os._exit(9)
    grade(job)


def die_on(job: dict[str, Any]) -> None:
    """Dies on some devices and grades on all others."""
    if os.environ["CUDA_VISIBLE_DEVICES"] in job["options"]["device"]:
        os._exit(9)
    grade(job)


def judge(job: dict[str, Any]) -> None:
    """Needs no device any more, and waits in a process of its own until the test has left it a file."""
    number, verdict, child = working[-1], Path(job["result"]).with_suffix(".verdict"), os.fork()
    if child == 0:
        while not verdict.exists():
            time.sleep(0.02)
            say(alive=1)
        shutil.copyfile(job["model"], job["result"])
        os._exit(0)
    say(judging=child)

    def report() -> None:
        _, status = os.waitpid(child, 0)
        sys.stdout.write(json.dumps({"job": number, "exit_code": os.waitstatus_to_exitcode(status)}) + "\n")
        sys.stdout.flush()

    threading.Thread(target=report, daemon=True).start()


def main() -> None:
    die_with_parent()
    say(ready=True)
    sys.stdin.readline()  # the keys; see a2rl/llm/keys.py
    for line in sys.stdin:
        number, job = json.loads(line)
        working.append(number)
        DOES[job["options"]["do"]](job)


DOES = {
    "grade": grade,
    "hang": hang,
    "stop": stop,
    "die": die,
    "die once": die_once,
    "full disk": full_disk,
    "out of memory": out_of_memory,
    "killed": killed,
    "die on": die_on,
    "judge": judge,
}

if __name__ == "__main__":
    main()
