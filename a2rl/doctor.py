"""`a2rl doctor`: what this machine has for benchmark runs, and what to do about what is missing."""

import shutil
import subprocess
import sys
from typing import NamedTuple

from a2rl.errors import InfrastructureError, UsageError
from a2rl.grading.pool import devices_here
from a2rl.grading.worker_process import CPU
from a2rl.isolation.holds import holds_here
from a2rl.isolation.reach import available
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
        _sandbox(settings),
        _bwrap(settings),
        _limits(),
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


def _sandbox(settings: Settings) -> Finding:
    found = available("landlock", settings)
    if found.kind == "none":
        return Finding(
            "sandbox",
            False,
            True,
            str(found),
            "agents run as ordinary processes: only those you trust, or in a container",
        )
    layers = f"Landlock (ABI {landlock.abi()}), seccomp, no capabilities"
    if found.lacks:
        return Finding(
            "sandbox", False, True, f"{layers}; {found.lacks}", "a weaker sandbox: it takes Linux 5.9 or later"
        )
    return Finding("sandbox", True, True, f"{layers}, every connection looked at")


def _bwrap(settings: Settings) -> Finding:
    try:
        found = available("bwrap", settings)
    except UsageError as error:
        return Finding("bwrap", False, True, str(error), "needed only for --sandbox bwrap")
    return Finding(
        "bwrap", not found.lacks, True, str(shutil.which("bwrap")) + (f"; {found.lacks}" if found.lacks else "")
    )


def _limits() -> Finding:
    here = holds_here()
    limits = ", ".join(f"{what} by {way}" for what, way in here.limits.items())
    return Finding(
        "limits",
        not here.lacks,
        True,
        f"agents end by {here.ends_by}; {limits or 'no limits'}",
        f"no limit on {', '.join(here.lacks)}: run as root, or under `systemd-run --user --scope -p Delegate=yes`"
        if here.lacks
        else "",
    )


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
