"""The sandbox policy: what agents may access on this machine.

    confinement_of(run, agent, settings, isolation, connect=(grading_port, proxy_port), extra_read=(cli_folder,))

Only what is listed here is readable: no home folder, no checkout, no other run, and not a2rl where it is installed:
its generators of mini data would say what the eval sets are drawn from.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import a2rl
from a2rl.core.settings import Settings
from a2rl.linux import landlock
from a2rl.sandbox.confinement import SHARED_MEMORY, Confinement
from a2rl.sandbox.isolation import Isolation

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc")
"""In /proc, the memory, environment, files and folders of other processes stay closed; their command lines do not."""
HARDWARE = tuple(
    f"/sys/{name}" for name in ("block", "bus", "class", "dev", "devices", "fs/cgroup", "kernel/mm", "module")
)
SYSTEM_SETTINGS = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "fonts", "gai.conf",
    "gitconfig", "group", "host.conf", "hostname", "hosts", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d",
    "ld.so.preload", "locale.alias", "locale.conf", "localtime", "lsb-release", "magic", "mime.types", "nsswitch.conf",
    "OpenCL", "os-release", "passwd", "pki/ca-trust", "pki/tls/certs", "profile", "profile.d", "protocols",
    "resolv.conf", "services", "shells", "ssl/certs", "ssl/openssl.cnf", "terminfo", "timezone", "vulkan",
)  # fmt: skip
"""Below /etc."""
DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""Below /dev, in addition to those of NVIDIA's driver."""
TERMINALS = ("ptmx", "pts")
"""Access to `pts` covers all terminals, so an agent that shares it with other processes of its user does not get it."""
KERNEL_SWITCHES = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger")


def workspace_confinement(
    workspace: Path,
    isolation: Isolation,
    settings: Settings,
    read: Iterable[Path],
    connect: tuple[int, ...],
    network_log: Path,
    user: int = 0,
    gpus: tuple[str, ...] = (),
) -> Confinement | None:
    """Returns what an agent in a workspace may access; None without a sandbox.

    Args:
        workspace: The folder that it can write to.
        isolation: The layers of its sandbox.
        settings: The settings of this checkout.
        read: What it may read in addition to the system and Python.
        connect: The loopback ports that it may connect to.
        network_log: The file that logs its connections.
        user: The id of its own user; 0: it shares the pipeline's.
        gpus: The device files of the GPUs that it may use.
    """
    if not isolation.confines:
        return None
    layers = isolation.layers
    own_terminals = "devices" in layers or "user" in layers
    system = map(Path, (*SYSTEM, *HARDWARE, *(f"/etc/{name}" for name in SYSTEM_SETTINGS)))
    opened = _without((*system, *python_folders(settings), *read), _closed(settings))
    return Confinement(
        read=tuple(map(str, opened.read)),
        list_only=tuple(map(str, opened.list_only)),
        write=(str(workspace),),
        use=(*(f"/dev/{name}" for name in (*DEVICES, *(TERMINALS if own_terminals else ()))), *_cuda(gpus, isolation)),
        share=(SHARED_MEMORY,),
        connect=connect,
        network_log=str(network_log),
        landlock=_landlock(isolation),
        bwrap=shutil.which("bwrap") or "" if isolation.kind == "bwrap" else "",
        user=user,
        devices="devices" in layers and isolation.kind != "bwrap",
        processes="processes" in layers and isolation.kind != "bwrap",
    )  # fmt: skip


def _landlock(isolation: Isolation) -> int:
    """Returns the Landlock version that the layers need; with bwrap, even an older version adds protection."""
    if "scopes" in isolation.layers:
        return landlock.SCOPES_ABI
    return landlock.NETWORK_ABI if "landlock" in isolation.layers else landlock.abi()


def _cuda(gpus: tuple[str, ...], isolation: Isolation) -> tuple[str, ...]:
    """Returns what a process needs for CUDA: the device files, and /proc, to which CUDA writes names of its threads."""
    return (*gpus, "/proc") if gpus and can_have_cuda(isolation) else gpus


def can_have_cuda(isolation: Isolation) -> bool:
    """Whether an agent may write to /proc, without which CUDA does not start.

    /proc also has kernel settings, which root can change even without capabilities. An agent that is root therefore
    gets CUDA only where they are read-only, as in most containers and under bwrap; an agent with its own user always
    gets it.
    """
    own = isolation.kind in ("bwrap", "none") or "user" in isolation.layers
    return own or not any(os.access(switch, os.W_OK) for switch in KERNEL_SWITCHES)


def python_folders(settings: Settings) -> tuple[Path, ...]:
    """Returns the folders of the environments that agents train with, and of the Python that a2rl's is based on."""
    found = {settings.python_bin.parent, Path(sys.prefix), Path(sys.base_prefix), Path(sys.base_exec_prefix)}
    if settings.agent_python is not None:
        found.add(settings.agent_python.parent.parent)
    return tuple(folder for folder in sorted(found) if not contains_private_data(folder, settings))


class _Opened(NamedTuple):
    """What an agent may read, and the folders of which it may only see the names of files."""

    read: list[Path]
    list_only: list[Path]


def _closed(settings: Settings) -> tuple[Path, ...]:
    return (Path(a2rl.__file__).resolve().parent, settings.root.resolve())


def _without(places: Iterable[Path], closed: tuple[Path, ...]) -> _Opened:
    """Opens places, but nothing that is closed: a folder above it is opened entry by entry.

    Rights are for a folder with all below, so they cannot leave out a part of it.
    """

    def contains_closed(place: Path) -> bool:
        real = os.path.realpath(place)
        return any(each.is_relative_to(real) for each in closed)

    opened, waiting = _Opened([], []), [*places]
    while waiting:
        place = waiting.pop()
        if not contains_closed(place):
            opened.read.append(place)
        elif place.resolve() not in closed:
            opened.list_only.append(place)
            waiting += (each for each in place.iterdir() if not (each.is_symlink() and contains_closed(each)))
    return opened


def contains_private_data(folder: Path, settings: Settings) -> bool:
    """Whether a folder contains the checkout or the user's home, which agents may not read."""
    private = (settings.root, Path(settings.environ.get("HOME") or "/root"))
    return any(place.is_relative_to(folder) for place in private)
