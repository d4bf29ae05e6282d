"""A grader's worker that does what the job's option `do` says; see `a2rl.grading.worker` for what a real one says.

python -m tests.fake_worker
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def grade(job: dict[str, Any]) -> None:
    shutil.copyfile(job["model"], job["result"])
    say(exit_code=0)


def hang(job: dict[str, Any]) -> None:
    """Goes on saying that it is alive."""
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(job["result"]).with_suffix(".child").write_text(str(child.pid))
    while True:
        say(alive=1)
        time.sleep(0.05)


def stop(job: dict[str, Any]) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def die(job: dict[str, Any]) -> None:
    os._exit(9)


def die_once(job: dict[str, Any]) -> None:
    tried = Path(job["result"]).with_suffix(".tried")
    if not tried.exists():
        tried.touch()
        os._exit(9)
    grade(job)


def main() -> None:
    say(ready=True)
    sys.stdin.readline()  # the keys, see a2rl/keys.py
    for line in sys.stdin:
        job = json.loads(line)
        {"grade": grade, "hang": hang, "stop": stop, "die": die, "die once": die_once}[job["options"]["do"]](job)


if __name__ == "__main__":
    main()
