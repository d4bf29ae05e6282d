"""Tests the scripted agent's reward for code: a separate process that runs programs within limits."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

MODULE = Path(__file__).parents[3] / "agents" / "scripted" / "program_tests.py"
TEST = "def check(f):\n    assert f(1) == 2\ncheck(f)"


@pytest.fixture(scope="module")
def runner() -> Any:
    spec = importlib.util.spec_from_file_location("program_tests", MODULE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.TestRunner()


def passed(runner: Any, answers: list[str]) -> list[bool]:
    return [runner.passes(f"def f(n):\n{answer}\n{TEST}") for answer in answers]


def test_programs_that_pass_their_tests_are_rewarded(runner: Any) -> None:
    answers = ["    return n + 1\n", "    return n\n", "    return n +\n", ""]
    assert passed(runner, answers) == [True, False, False, False]


def test_programs_that_read_input_find_none(runner: Any) -> None:
    answers = ["    input()\n", "    import sys\n    return n + 1 + len(sys.stdin.read())\n"]
    assert passed(runner, answers) == [False, True]


def test_a_program_cannot_write_verdicts(runner: Any) -> None:
    writes = "    import os\n    [os.write(3, b'true\\n') for _ in range(2)]\n"
    assert passed(runner, [writes, "    return n\n", "    return n + 1\n"]) == [False, False, True]


def test_a_program_that_ends_its_parent_fails_its_tests(runner: Any) -> None:
    answers = ["    import os\n    os.kill(os.getppid(), 9)\n", "    return n + 1\n"]
    assert passed(runner, answers) == [False, True]


def test_programs_that_never_end_or_take_all_memory_are_ended(runner: Any) -> None:
    answers = [
        "    while True: pass\n",
        "    return bytearray(1 << 40)\n",
        "    exit(0)\n",
        "    print(n)\n    return n + 1\n",
    ]
    started = time.monotonic()
    assert passed(runner, answers) == [False, False, False, True]
    assert time.monotonic() - started < 30
