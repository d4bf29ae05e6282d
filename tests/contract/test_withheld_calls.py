"""Tests that each attack by system calls succeeds without a sandbox, and is stopped in every sandbox.

The attacks are files of tests/redteam/attacks. Each runs as root and as an ordinary user.
"""

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import pytest

from a2rl.linux import landlock
from a2rl.sandbox.isolation import Layer, SandboxKind
from tests.redteam.__main__ import in_session
from tests.redteam.arena import SandboxArena
from tests.redteam.attack import BY_SYSTEM_CALLS, Outcome, find_attacks

pytestmark = pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock")
ATTACKS = {attack.name: attack for attack in find_attacks(BY_SYSTEM_CALLS)}
ONLY_STOPS = {"flood_the_broker"}
"""It is after the broker itself, which is not there without a sandbox."""
USERS = ("root", "nobody") if os.geteuid() == 0 else ("user",)
BARE = "landlock, with nothing of its own"
"""No user, mounts or processes of its own: all is the broker's to look at."""
OWN: frozenset[Layer] = frozenset({"user", "devices", "processes"})
SANDBOXES = [
    "landlock",
    pytest.param(BARE, marks=pytest.mark.heavy),
    pytest.param("bwrap", marks=pytest.mark.skipif(not shutil.which("bwrap"), reason="no bwrap")),
]
Play = Callable[[str, str, str], Outcome]


@pytest.fixture(scope="module")
def play() -> Iterator[Play]:
    with ExitStack() as stack:

        @functools.cache
        def arena(user: str, sandbox: str) -> SandboxArena:
            if user == "nobody" and not Path("/usr/bin/python3").exists():
                pytest.skip("no Python that every user may run")
            if sandbox == BARE:
                return stack.enter_context(SandboxArena("landlock", user, OWN))
            return stack.enter_context(SandboxArena(cast(SandboxKind, sandbox), user))

        @functools.cache
        def as_root_without_a_sandbox() -> dict[str, Outcome]:
            return {outcome.name: outcome for outcome in in_session("root", "none", list(ATTACKS.values()))}

        @functools.cache
        def outcome(user: str, sandbox: str, name: str) -> Outcome:
            if (user, sandbox) == ("root", "none"):  # an attack may hit every process of root
                return as_root_without_a_sandbox()[name]
            return arena(user, sandbox).play(ATTACKS[name])

        yield outcome


@pytest.mark.parametrize("sandbox", SANDBOXES)
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_on_system_calls_is_stopped(play: Play, user: str, sandbox: str, attack: str) -> None:
    free = play(user, "none", attack)
    if not free.succeeded and attack not in ONLY_STOPS:
        pytest.skip(f"this machine does not have what it takes: {free.stopped_by}")
    outcome = play(user, sandbox, attack)
    assert not outcome.succeeded, outcome.achieved
    assert outcome.tried
