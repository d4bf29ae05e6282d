"""Tests the choice of a sandbox's isolation: a sandbox weaker than the one asked for is an error."""

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2rl.cli.results import run_object
from a2rl.core.errors import A2rlError, InfrastructureError, IntegrityError, UsageError
from a2rl.core.settings import Settings
from a2rl.linux import landlock
from a2rl.run.directory import RunDir
from a2rl.run.records import SetupRecord
from a2rl.sandbox import selection
from a2rl.sandbox.command import AgentCommand, Confinement
from a2rl.sandbox.isolation import NONE, REQUIRED, Isolation, Layer, SandboxKind
from a2rl.sandbox.process import AgentProcess
from a2rl.sandbox.selection import Machine, reselect_sandbox, select_sandbox

OWN: frozenset[Layer] = frozenset({"user", "devices", "processes"})
WHOLE = Machine(landlock=7, seccomp=True, bwrap="/usr/bin/bwrap", own=OWN, why_not={})
NO_OWN: frozenset[Layer] = frozenset()
BARE: tuple[Layer, ...] = ("landlock", "scopes", "seccomp", "broker")
TOO_WEAK: dict[str, tuple[SandboxKind, dict[str, Any], str]] = {
    "no Landlock": ("landlock", {"landlock": 0}, "Landlock"),
    "a Landlock without rules for ports": ("landlock", {"landlock": 3}, "Linux 6.7"),
    "no seccomp": ("landlock", {"seccomp": False}, "seccomp"),
    "no seccomp under bwrap": ("bwrap", {"seccomp": False}, "seccomp"),
    "no pidfd_getfd": ("landlock", {"why_not": {"broker": "Use another profile"}}, "Use another profile"),
    "no bwrap": ("bwrap", {"bwrap": ""}, "apt-get install bubblewrap"),
    "nothing that keeps signals in": ("landlock", {"landlock": 5, "own": NO_OWN}, "Linux 6.12"),
}


def use(monkeypatch: pytest.MonkeyPatch, machine: Machine) -> None:
    monkeypatch.setattr(selection, "examine", lambda must_reach=(): machine)


@pytest.mark.parametrize("case", TOO_WEAK)
def test_a_weaker_sandbox_is_an_error_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, case: str
) -> None:
    kind, lack, mend = TOO_WEAK[case]
    use(monkeypatch, WHOLE._replace(**lack))
    starts: list[Callable[[], Isolation]] = [
        lambda: select_sandbox(kind, settings),
        lambda: reselect_sandbox(kind, NONE, settings),
    ]
    for start in starts:
        with pytest.raises(UsageError) as raised:
            start()
        assert mend in str(raised.value)
        assert "--sandbox none" in str(raised.value)
    assert select_sandbox("none", settings) == NONE


@pytest.mark.parametrize(("error", "says"), [(errno.EPERM, "--cap-add SYS_PTRACE"), (errno.ENOSYS, "Linux 5.9")])
def test_a_filter_that_refuses_pidfd_getfd_is_found(error: int, says: str) -> None:
    """As the profiles of Docker and Kubernetes do."""
    program = f"""
from a2rl.linux.seccomp import ALLOW, JUMP_IF_EQUAL, RETURN, fail_with, install_filter
from a2rl.sandbox.selection import examine
install_filter([(JUMP_IF_EQUAL, 0, 1, 438), (RETURN, 0, 0, fail_with({error})), (RETURN, 0, 0, ALLOW)])
machine = examine()
print(machine.why_not["broker"], machine.isolation("landlock").layers)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert says in done.stdout
    assert "'broker'" not in done.stdout


@pytest.mark.parametrize("layer", ["user", "processes"])
def test_a_user_or_process_table_keeps_signals_in_without_scopes(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, layer: Layer
) -> None:
    use(monkeypatch, WHOLE._replace(landlock=4, own=frozenset({layer})))
    assert layer in reselect_sandbox("landlock", NONE, settings).layers


def test_what_works_in_parts_but_not_as_a_whole_is_an_error(
    monkeypatch: pytest.MonkeyPatch, settings: Settings, tmp_path: Path
) -> None:
    (broken := tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(A2rlError, match="no namespaces"):
        select_sandbox("bwrap", settings)


@pytest.mark.parametrize("error", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE])
def test_a_machine_that_is_short_of_something_weakens_nothing(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    monkeypatch.setattr(selection, "_try_out", lambda: {"user": 0, "devices": error, "processes": 0})
    with pytest.raises(InfrastructureError, match="try again"):
        selection.examine()


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="it needs root, and setpriv")
@pytest.mark.parametrize("capability", ["chown", "dac_override", "fowner", "kill", "setgid", "setuid", "sys_ptrace"])
def test_root_without_a_capability_has_a_sandbox_that_works(repository: Path, capability: str) -> None:
    """Containers take capabilities away; Docker's default lacks sys_ptrace, without which no connection is checked."""
    program = """if True:
        from a2rl.core.settings import Settings
        from a2rl.sandbox.selection import examine, select_sandbox
        print(*select_sandbox("landlock", Settings.load()).layers, examine().why_not["user"])
    """
    command = ["setpriv", f"--bounding-set=-{capability}", f"--inh-caps=-{capability}", sys.executable, "-c", program]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=repository)
    assert f"--cap-add {capability.upper()}" in done.stdout, done.stderr
    assert {"landlock", "seccomp", "broker"} <= set(done.stdout.split())


def test_a_trial_that_fails_for_any_reason_weakens_nothing(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    def fail(*arguments: object, **options: object) -> object:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "run", fail)
    with pytest.raises(InfrastructureError):
        select_sandbox("landlock", settings)


@pytest.mark.skipif(landlock.abi() < landlock.SCOPES_ABI, reason="this kernel has no Landlock with scopes")
def test_a_process_with_a_name_that_is_no_text_changes_nothing(settings: Settings) -> None:
    name = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\xff) ', 0, 0, 0); print(flush=True); time.sleep(60)"
    with subprocess.Popen(["python3", "-c", name], stdout=subprocess.PIPE) as other:
        try:
            assert other.stdout is not None
            other.stdout.readline()
            assert select_sandbox("landlock", settings).confines
        finally:
            other.kill()


def test_a_run_goes_on_with_no_weaker_sandbox_than_it_began_with(
    monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    began = Isolation.of("landlock", (*BARE, *OWN))
    use(monkeypatch, WHOLE)
    assert reselect_sandbox("landlock", began, settings) == began
    use(monkeypatch, WHOLE._replace(own=NO_OWN))
    with pytest.raises(UsageError, match=r"its own user.*Resume it where it began"):
        reselect_sandbox("landlock", began, settings)


def test_a_doctored_record_gains_nothing(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> None:
    use(monkeypatch, WHOLE)
    for doctored in (NONE, Isolation(kind="landlock"), Isolation(kind="none", layers=("landlock",))):
        assert reselect_sandbox("landlock", doctored, settings) == WHOLE.isolation("landlock")
    with pytest.raises(IntegrityError, match=r"spec\.json"):
        reselect_sandbox("none", Isolation(kind="landlock", layers=BARE), settings)


def test_a_layer_that_cannot_be_had_starts_nothing(settings: Settings, tmp_path: Path) -> None:
    (workspace := tmp_path / "workspace").mkdir()
    wanted = Confinement((), (str(workspace),), (), (), (), "", landlock=99)
    log = tmp_path / "log"
    command = AgentCommand(["touch", "ran"], str(workspace), {"PATH": os.environ["PATH"]}, str(log), wanted)
    with (
        pytest.raises(InfrastructureError, match="Landlock is too old"),
        AgentProcess(command, settings) as process,
    ):
        process.wait(30)
    assert not (workspace / "ran").exists()


def test_a_record_keeps_the_layers_as_values(run: RunDir) -> None:
    isolation = Isolation.of("landlock", (*REQUIRED["landlock"], "user", "scopes"))
    record = run.need("setup", SetupRecord).model_copy(update={"sandbox": isolation})
    run.write("setup", record)
    assert json.loads(run.record_path("setup").read_text())["sandbox"] == {
        "kind": "landlock", "layers": ["landlock", "scopes", "seccomp", "broker", "user"],
    }  # fmt: skip
    assert run.need("setup", SetupRecord).sandbox == isolation
    assert run_object(run)["layers"] == list(isolation.layers)
