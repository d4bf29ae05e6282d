"""Imitate the reference solutions; then a reward of 1 for a function that passes its tests.

The tests run in a separate process, which is small enough to fork quickly: this file, started as a script.
"""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from routes import Example, Grpo

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where the grader ends an answer."""
TIME_LIMIT_S = 2
MEMORY_LIMIT = 1 << 30


class Route:
    """Learns to complete functions."""

    def __init__(self, data: Path, seed: int) -> None:
        rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
        random.Random(seed).shuffle(rows)
        self.rows = rows

    def examples(self) -> "list[Example]":
        """Returns the reference solutions."""
        from routes import Part

        return [(Part(row["prompt"], False), Part(row["canonical_solution"], True)) for row in self.rows]

    def grpo(self) -> "Grpo":
        """Returns the prompts and their reward."""
        from datasets import Dataset

        from routes import ON_GPU, Grpo

        rows = [{"prompt": row["prompt"], "test": f"{row['test']}\ncheck({row['entry_point']})"} for row in self.rows]
        trainer = {"train_dataset": Dataset.from_list(rows), "reward_funcs": TestRunner().rewards}
        return Grpo({"max_completion_length": 384 if ON_GPU else 40}, trainer)


class TestRunner:
    """The process that runs tests; it is started when the first ones arrive."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[str] | None = None

    def rewards(self, prompts: list[str], completions: list[str], test: list[str], **_: Any) -> list[float]:
        """A reward function of TRL's: 1 for a function that passes its tests, else 0."""
        if self.process is None or self.process.poll() is not None:
            command = [sys.executable, "-I", "-S", __file__]
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        programs = [f"{each}{cut(said)}\n{asked}" for each, said, asked in zip(prompts, completions, test, strict=True)]
        self.process.stdin.write(json.dumps(programs) + "\n")
        self.process.stdin.flush()
        return [float(passed) for passed in json.loads(self.process.stdout.readline())]


def cut(completion: str) -> str:
    """Cuts off what comes after the function."""
    return completion[: min(place for stop in STOPS if (place := (completion + stop).find(stop)) >= 0)]


def passes(program: str) -> bool:
    """Runs the program in a child; it passes if it ends in time without an exception."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    # Limits of the kernel, because the program could install handlers that evade any others.
    os.setpgid(0, 0)
    resource.setrlimit(resource.RLIMIT_CPU, (TIME_LIMIT_S, TIME_LIMIT_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    signal.alarm(2 * TIME_LIMIT_S)
    status = 1
    with contextlib.suppress(BaseException):
        exec(compile(program, "answer", "exec"), {"__name__": "answer"})
        status = 0
    os._exit(status)


def main() -> None:
    """Reads lists of programs, a JSON line each, and answers with lists of verdicts."""
    answers, nowhere = os.dup(1), os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)  # programs must not be able to print verdicts
    os.dup2(nowhere, 2)
    for line in sys.stdin:
        verdicts = [passes(program) for program in json.loads(line)]
        os.write(answers, (json.dumps(verdicts) + "\n").encode())


if __name__ == "__main__":
    main()
