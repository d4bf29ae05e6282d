"""Tests the attacks of tests/redteam: none succeeds, and those that are tried without a sandbox succeed there.

The quick tests try each attack of an agent on the sandbox once; test_withheld_calls.py has those by system calls. The
slow tests try all attacks, also those on whole runs, as each user in each sandbox.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from a2rl.linux import landlock
from tests.redteam.__main__ import available_users
from tests.redteam.arena import SandboxArena
from tests.redteam.attack import BY_SYSTEM_CALLS, Attack, find_attacks

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
LEAST = 40
ON_THE_SANDBOX = [
    attack for attack in find_attacks() if attack.level == "sandbox" and attack.name not in BY_SYSTEM_CALLS
]
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


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SandboxArena]:
    with pytest.MonkeyPatch.context() as patch, SandboxArena("landlock") as arena:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield arena


@pytest.mark.parametrize("attack", ON_THE_SANDBOX, ids=[each.name for each in ON_THE_SANDBOX])
def test_an_attack_on_the_sandbox_is_stopped(arena: SandboxArena, attack: Attack) -> None:
    outcome = arena.play(attack)
    assert not outcome.succeeded, outcome.achieved
    if not outcome.tried:
        pytest.skip(f"this machine does not have what it takes: {outcome.stopped_by}")


@pytest.mark.heavy
def test_the_command_attacks_as_each_user_of_this_machine() -> None:
    found = redteam("--only", "become_somebody_else", "--sandbox", "landlock", timeout_s=540)
    assert {each["user"] for each in found["attempts"]} == set(available_users())
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
