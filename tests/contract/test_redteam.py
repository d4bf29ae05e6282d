"""Tests the attacks of tests/redteam: none succeeds, and those that are tried without a sandbox succeed there."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from a2rl.linux import landlock
from tests.redteam.attack import find_attacks

pytestmark = [
    pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock"),
    pytest.mark.xdist_group("redteam"),
]
LEAST = 40
REPOSITORY = Path(__file__).resolve().parents[2]


def redteam(*arguments: str, timeout_s: float) -> dict[str, Any]:
    """Returns the output of `a2rl redteam --json`."""
    done = subprocess.run(
        [sys.executable, "-m", "a2rl", "redteam", *arguments, "--json"],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def succeeded(found: dict[str, Any]) -> list[str]:
    return [f"{each['name']} ({each['user']}, {each['sandbox']}): {each['achieved']}"
            for each in found["attempts"] if each["succeeded"]]  # fmt: skip


def test_every_attack_says_what_it_wants_and_what_must_hold() -> None:
    attacks = find_attacks()
    assert len(attacks) >= LEAST
    assert not [attack.name for attack in attacks if not attack.goal or not attack.must_hold]


def test_no_attack_on_the_sandbox_succeeds() -> None:
    found = redteam("--level", "sandbox", "--sandbox", "landlock", timeout_s=540)
    assert found["tried"]
    assert not succeeded(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_no_attack_succeeds_as_any_user_in_any_sandbox() -> None:
    found = redteam(timeout_s=3500)
    assert not succeeded(found)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_without_a_sandbox_attacks_do_succeed() -> None:
    found = redteam("--sandbox", "none", timeout_s=3500)
    assert len(succeeded(found)) >= LEAST // 2
