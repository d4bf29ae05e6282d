"""`a2rl doctor`: what this machine has for benchmark runs, and what to do about what is missing."""

import shutil
import subprocess
import sys
from typing import NamedTuple

from a2rl.errors import InfrastructureError, UsageError
from a2rl.grading.pool import devices_here
from a2rl.grading.worker_process import CPU
from a2rl.isolation.decide import decide, machine_here
from a2rl.isolation.holds import holds_here
from a2rl.isolation.machine import Machine
from a2rl.isolation.resources import GIB, Resources
from a2rl.isolation.strength import LAYERS, Layer, Sandbox
from a2rl.sandbox import landlock
from a2rl.sandbox.pool import CodePool
from a2rl.settings import Settings

ENOUGH_DISK_GIB = 10


class Finding(NamedTuple):
    """One thing about this machine."""

    what: str
    ok: bool
    optional: bool
    found: str
    mend: str = ""


def examine(settings: Settings) -> list[Finding]:
    """Looks at everything a run may need; takes a second or two."""
    return [
        _python(),
        _git(),
        _disk(settings),
        _gpu(settings),
        _prepared(settings),
        _vllm(settings),
        *_sandbox(settings),
        _code_answers(),
        _npm(),
    ]


def _python() -> Finding:
    return Finding("python", True, False, sys.version.split()[0])


def _git() -> Finding:
    found = shutil.which("git")
    return Finding(
        "git", bool(found), False, found or "not found", "" if found else "install git: agents' code is kept in it"
    )


def _disk(settings: Settings) -> Finding:
    free = shutil.disk_usage(settings.root).free / 2**30
    enough = free >= ENOUGH_DISK_GIB
    return Finding(
        "disk",
        enough,
        False,
        f"{free:.0f} GiB free",
        "" if enough else "checkpoints are kept in runs/: free some space",
    )


def _gpu(settings: Settings) -> Finding:
    devices = devices_here(settings)
    if devices == [CPU]:
        return Finding(
            "gpu",
            False,
            True,
            "none: enough for the mini variants",
            "the full variants need an NVIDIA GPU and its driver",
        )
    return Finding("gpu", True, True, f"{len(devices)}: {', '.join(devices)}")


def _prepared(settings: Settings) -> Finding:
    ready = (settings.models / "tiny").is_dir()
    return Finding(
        "tiny",
        ready,
        True,
        "built" if ready else "not built",
        "" if ready else "`make data` builds it, and the mini data",
    )


def _vllm(settings: Settings) -> Finding:
    if not settings.vllm_python.exists():
        return Finding("vllm", False, True, "not installed; grading uses transformers", "`make setup-vllm` installs it")
    query = "from importlib.metadata import distributions as d; print([x.version for x in d() if 'vllm' in x.name][0])"
    done = subprocess.run([settings.vllm_python, "-c", query], capture_output=True, text=True, check=False, timeout=60)
    return Finding("vllm", done.returncode == 0, True, done.stdout.strip() or done.stderr.strip()[-100:])


def _sandbox(settings: Settings) -> list[Finding]:
    """What confines agents here: each kind as a whole, then what it is made of."""
    try:
        machine = machine_here(settings)
    except InfrastructureError as error:
        return [Finding("sandbox", False, False, str(error))]
    version = f"version {machine.landlock}" if machine.landlock else "none"
    whole = machine.landlock >= landlock.SCOPES_ABI
    return [
        _kind("landlock", settings),
        _kind("bwrap", settings),
        Finding("  Landlock", whole, True, version, "" if whole else "version 6, with scopes, takes Linux 6.12"),
        Finding("  seccomp", machine.seccomp, True, "every connection is looked at" if machine.seccomp else "none"),
        *(_own(layer, machine) for layer in ("user", "devices", "processes")),
        _resources(settings),
    ]


def _kind(kind: Sandbox, settings: Settings) -> Finding:
    """Tried out, as before a run."""
    mend = "agents cannot be confined so; runs need another --sandbox, or --sandbox none with agents that you trust"
    try:
        return Finding(kind, True, False, str(decide(kind, settings)))
    except (UsageError, InfrastructureError) as error:
        return Finding(kind, False, True, str(error), mend)


def _own(layer: Layer, machine: Machine) -> Finding:
    if layer in machine.own:
        return Finding(f"  {layer}", True, True, LAYERS[layer])
    why = machine.why_not.get(layer, "not possible here")
    return Finding(f"  {layer}", False, True, why, 'README.md, "What an agent can do", says what that leaves open')


def _resources(settings: Settings) -> Finding:
    """What an agent may use, and what holds it to that."""
    wanted, here = Resources.of_machine(settings.root, settings.environ), holds_here()
    most = f"memory {wanted.memory / GIB:.0f} GiB, {wanted.processes} processes, disk {wanted.disk / GIB:.0f} GiB"
    found = f"{most}, held by {', '.join(sorted(set(here.limits.values()))) or 'nothing'}; agents end by {here.ends_by}"
    if here.lacks:
        mend = f"none on {', '.join(here.lacks)}: run as root, or under `systemd-run --user --scope -p Delegate=yes`"
        return Finding("  limits", False, True, found, mend)
    return Finding("  limits", True, True, found)


def _code_answers() -> Finding:
    try:
        with CodePool(most=1) as pool:
            return Finding("code answers", True, True, str(pool.layers))
    except InfrastructureError as error:
        return Finding("code answers", False, True, str(error), "humaneval needs it; the other tasks do not")


def _npm() -> Finding:
    found = shutil.which("npm")
    mend = "install Node.js 20 or newer: several agent systems come from npm; `a2rl agents` lists them all"
    return Finding("npm", bool(found), True, found or "not found", "" if found else mend)
