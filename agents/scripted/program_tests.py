"""Runs programs that a model wrote with their tests, in a process that is small enough to fork quickly: this file, as a
script. The sandbox around the agent confines them like the agent itself."""

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys

TIME_LIMIT_S = 2
MEMORY_LIMIT = 1 << 30


class TestRunner:
    """The process that runs tests; it is started when the first ones arrive."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.owner = 0

    def passes(self, program: str) -> bool:
        """Says whether a program ends without an exception."""
        if self.process is None or self.process.poll() is not None or self.owner != os.getpid():
            command = [sys.executable, "-I", "-S", __file__]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            self.owner = os.getpid()  # a process that was forked from this one needs its own
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(program) + "\n")
            self.process.stdin.flush()
            return bool(json.loads(self.process.stdout.readline()))
        except (BrokenPipeError, ValueError):  # a program has ended the process
            self.process = None
            return False


def passes(program: str) -> bool:
    """Runs the program in a child; it passes if it ends in time without an exception."""
    child = os.fork()
    if child:
        ended = os.pidfd_open(child)
        select.select([ended], [], [], 2 * TIME_LIMIT_S)
        os.close(ended)
        with contextlib.suppress(OSError):  # nothing of it is left
            os.killpg(child, signal.SIGKILL)
        return os.waitpid(child, 0)[1] == 0
    # Limits of the kernel, because the program could install handlers that evade any others.
    os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # programs must not be able to read other programs
    os.closerange(3, 16)  # or to write verdicts
    resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT_S, TIME_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    status = 1
    with contextlib.suppress(BaseException):
        exec(compile(program, "answer", "exec"), {"__name__": "answer"})
        status = 0
    os._exit(status)


def main() -> None:
    """Reads programs, a JSON line each, and answers with verdicts."""
    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # programs must not be able to print verdicts
    os.dup2(nowhere, 2)
    for line in sys.stdin:
        os.write(answers, (json.dumps(passes(json.loads(line))) + "\n").encode())


if __name__ == "__main__":
    main()
