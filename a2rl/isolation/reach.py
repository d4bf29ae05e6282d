"""What agents reach on this machine.

    confinement_of(run, agent, settings, strength, connect=(grading_port, proxy_port), extra_read=(cli_folder,))

Whatever has a name of its own here is readable, and nothing else is: no home, no checkout, no other run.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from a2rl.agent import Agent
from a2rl.errors import InfrastructureError
from a2rl.isolation.confinement import SHARED_MEMORY, Confinement
from a2rl.isolation.namespaces import may_mount
from a2rl.isolation.strength import Strength
from a2rl.isolation.users import user_of, write_names
from a2rl.run import RunDir
from a2rl.sandbox import landlock
from a2rl.settings import Settings

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc")
"""In /proc, other processes' memory, environment, files and folders stay closed; their command lines do not."""
HARDWARE = tuple(
    f"/sys/{name}" for name in ("block", "bus", "class", "dev", "devices", "fs/cgroup", "kernel/mm", "module")
)
SETTINGS_OF_THE_SYSTEM = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "gai.conf",
    "gitconfig", "group", "host.conf", "hostname", "hosts", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "ld.so.preload", "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "mime.types", "nsswitch.conf",
    "OpenCL", "os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "profile", "profile.d", "protocols",
    "resolv.conf", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan",
)  # fmt: skip
"""Below /etc."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""Below /dev, besides those of NVIDIA's driver."""
TERMINALS = ("ptmx", "pts")
"""`pts` can be had as a whole only, so nobody gets it who shares it, as the same user, with others."""
KERNEL_SWITCHES = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger")


def confinement_of(
    run: RunDir,
    agent: Agent,
    settings: Settings,
    strength: Strength,
    connect: tuple[int, ...],
    extra_read: tuple[Path, ...] = (),
) -> Confinement | None:
    """What the agent of a run reaches; None if the run has no sandbox. With a user of its own, the workspace is given
    to it.

    Args:
        run: with a workspace.
        agent: may read its own definition.
        settings: of this checkout; may lie anywhere, its Python environment alone is readable.
        strength: decided for this start (decide.py).
        connect: TCP ports on loopback.
        extra_read: files and folders to read besides, such as those of a CLI.

    Raises:
        InfrastructureError: the workspace cannot be given away.
    """
    own = (run.given, *_definition(agent, settings), *extra_read)
    user = 0
    try:
        if "user" in strength.layers:
            user = user_of(run.workspace)
            write_names(run.names, user, run.workspace / ".home")
        opens_up = strength.kind == "bwrap" or ("devices" in strength.layers and may_mount())
        close_to_others(run, keep_way=bool(user) and not opens_up)
    except OSError as error:
        raise InfrastructureError(f"the workspace cannot be given to a user of its own: {error}") from error
    found = confinement_in(run.workspace, strength, settings, own, connect, run.logs / "network.jsonl", user)
    return found._replace(names=str(run.names)) if found and user else found


def close_to_others(run: RunDir, keep_way: bool) -> None:
    """What is the grader's is nobody else's.

    Args:
        run: its directory is closed as a whole; where the way through it must stay open, all else that lies in it.
        keep_way: whether an agent with a user of its own has no other way to its workspace.
    """
    run.root.chmod(0o711 if keep_way else 0o700)
    for path in run.root.iterdir() if keep_way else ():
        if path not in (run.workspace, run.given, run.names) and not path.is_symlink():
            path.chmod(path.stat().st_mode & 0o700)


def confinement_in(
    workspace: Path,
    strength: Strength,
    settings: Settings,
    read: Iterable[Path],
    connect: tuple[int, ...],
    network_log: Path,
    user: int = 0,
) -> Confinement | None:
    """The same for any workspace; `read` is what its user may read besides the system and Python."""
    if not strength.confines:
        return None
    layers = strength.layers
    own_terminals = "devices" in layers or "user" in layers
    return Confinement(
        read=(*SYSTEM, *HARDWARE, *(f"/etc/{name}" for name in SETTINGS_OF_THE_SYSTEM),
              *map(str, (*python_folders(settings), *read))),
        write=(str(workspace),),
        use=(*(f"/dev/{name}" for name in (*DEVICES, *(TERMINALS if own_terminals else ()))), *_gpus(strength)),
        share=(SHARED_MEMORY,),
        connect=connect,
        network_log=str(network_log),
        landlock=_landlock(strength),
        bwrap=shutil.which("bwrap") or "" if strength.kind == "bwrap" else "",
        user=user,
        devices="devices" in layers and strength.kind != "bwrap",
        processes="processes" in layers and strength.kind != "bwrap",
    )  # fmt: skip


def _landlock(strength: Strength) -> int:
    """The version that the layers need; with bwrap also an older one is of use."""
    if "scopes" in strength.layers:
        return landlock.SCOPES_ABI
    return landlock.NETWORK_ABI if "landlock" in strength.layers else landlock.abi()


def _gpus(strength: Strength) -> tuple[str, ...]:
    """NVIDIA's devices, and /proc, where CUDA writes the names of its threads as it starts.

    In /proc are switches of the kernel, too, which root reaches even without its rights. So an agent that is root gets
    CUDA only where they are read-only, as in most containers and under bwrap; one with a user of its own always.
    """
    devices = tuple(map(str, Path("/dev").glob("nvidia*")))
    own = strength.kind == "bwrap" or "user" in strength.layers
    safe = own or not any(os.access(switch, os.W_OK) for switch in KERNEL_SWITCHES)
    return (*devices, "/proc") if devices and safe else devices


def python_folders(settings: Settings) -> tuple[Path, ...]:
    """The environment that agents train with, and the Python that it is made from."""
    found = {settings.python_bin.parent, Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_exec_prefix)}
    return tuple(folder for folder in sorted(found) if not _holds_more(folder, settings))


def _holds_more(folder: Path, settings: Settings) -> bool:
    """Whether a checkout or a home lies in it, which are nobody's to read."""
    private = (settings.root, Path(settings.environ.get("HOME") or "/root"))
    return any(place.is_relative_to(folder) for place in private)


def _definition(agent: Agent, settings: Settings) -> tuple[Path, ...]:
    """The agent's folder; where that holds more than the agent, such as a checkout or a home, the files it names."""
    if not _holds_more(agent.folder, settings):
        return (agent.folder,)
    return tuple(path for part in agent.command() if (path := Path(part)).is_absolute() and path.is_file())
