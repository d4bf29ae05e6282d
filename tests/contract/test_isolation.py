"""The sandbox, attacked: what an agent tries to get out succeeds without it and fails inside, as root and as a user.

The attempts are in tests/isolation/attempts.py, one function each; one agent under a real supervisor tries them all.
"""

import functools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from a2rl.run import Sandbox
from a2rl.sandbox import landlock
from tests.isolation.attempts import BREAKOUTS, WORK
from tests.isolation.scene import Scene, make_scene

pytestmark = [
    pytest.mark.skipif(not landlock.abi(), reason="this kernel has no Landlock"),
    pytest.mark.xdist_group("isolation"),
]
BREAKOUT_NAMES, WORK_NAMES = ([attempt.__name__ for attempt in each] for each in (BREAKOUTS, WORK))
TAKES_ROOT = {
    "read_shadow", "read_by_handle", "read_the_disk", "use_a_raw_socket", "use_packets", "use_the_rights_of_root",
    "mount", "write_a_setting_of_the_kernel", "write_a_control_group", "forge_input_of_a_terminal",
}  # fmt: skip
"""What an ordinary user cannot do in any case."""
TAKES_A_KERNEL = {
    "use_io_uring", "use_multipath_tcp", "use_the_kernels_cryptography", "use_another_table_of_calls", "read_the_disk",
    "make_a_user_namespace", "clone_into_a_namespace", "clone3", "use_a_message_queue", "write_a_control_group",
    "connect_to_another_port_by_ipv6", "send_udp_by_ipv6", "forge_input_of_a_terminal", "mount", "keep_a_key",
}  # fmt: skip
"""What some kernels, containers and machines have not."""
USERS = ("root", "nobody") if os.geteuid() == 0 else ("user",)
BWRAP = pytest.mark.skipif(not shutil.which("bwrap"), reason="bwrap is not installed")
Outcomes = Callable[[str, Sandbox], dict[str, str]]


@pytest.fixture(scope="module")
def scenes() -> Iterator[Callable[[str], Scene]]:
    with ExitStack() as stack:

        @functools.cache
        def scene_of(user: str) -> Scene:
            if user == "nobody" and not Path("/usr/bin/python3").exists():
                pytest.skip("no Python that every user may run")
            return stack.enter_context(make_scene(user))

        yield scene_of


@pytest.fixture(scope="module")
def outcomes(scenes: Callable[[str], Scene]) -> Outcomes:
    @functools.cache
    def of(user: str, sandbox: Sandbox) -> dict[str, str]:
        return scenes(user).attempts(sandbox)

    return of


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("attempt", BREAKOUT_NAMES)
def test_an_agent_cannot(outcomes: Outcomes, user: str, attempt: str) -> None:
    if user != "root" and attempt in TAKES_ROOT:
        pytest.skip("only root could, without a sandbox")
    free = outcomes(user, "none")[attempt]
    if free and attempt in TAKES_A_KERNEL:
        pytest.skip(f"this machine has not got it: {free}")
    assert not free, "the attempt does not bite"
    assert outcomes(user, "landlock")[attempt]


@BWRAP
@pytest.mark.parametrize("user", USERS)
def test_bwrap_lets_nothing_out_either_and_all_work_go_on(outcomes: Outcomes, user: str) -> None:
    free, confined = outcomes(user, "none"), outcomes(user, "bwrap")
    assert not [name for name in BREAKOUT_NAMES if not free[name] and not confined[name]]
    assert not [(name, confined[name]) for name in WORK_NAMES if confined[name]]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("attempt", WORK_NAMES)
def test_an_agent_can(outcomes: Outcomes, user: str, attempt: str) -> None:
    assert not outcomes(user, "landlock")[attempt]
