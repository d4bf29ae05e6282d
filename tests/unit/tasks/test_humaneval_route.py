"""Tests the scripted agent's reward for code: a separate process that runs programs within limits."""

import importlib.util
import time
from pathlib import Path
from typing import Any

import pytest

ROUTE = Path(__file__).parents[3] / "agents" / "scripted" / "routes" / "humaneval.py"
TEST = "def check(f):\n    assert f(1) == 2\ncheck(f)"


@pytest.fixture(scope="module")
def route() -> Any:
    spec = importlib.util.spec_from_file_location("humaneval_route", ROUTE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_programs_that_pass_their_tests_are_rewarded(route: Any) -> None:
    answers = ["    return n + 1\n", "    return n\n", "    return n +\n", "", "    return n + 1\n\nprint('x'"]
    rewards = route.TestRunner().rewards(["def f(n):\n"] * 5, answers, [TEST] * 5, trainer_state=None)
    assert rewards == [1, 0, 0, 0, 1]


def test_programs_that_never_end_or_take_all_memory_are_ended(route: Any) -> None:
    answers = [
        "    while True: pass\n",
        "    return bytearray(1 << 40)\n",
        "    exit(0)\n",
        "    print(n)\n    return n + 1\n",
    ]
    started = time.monotonic()
    assert route.TestRunner().rewards(["def f(n):\n"] * 4, answers, [TEST] * 4) == [0, 0, 0, 1]
    assert time.monotonic() - started < 30
