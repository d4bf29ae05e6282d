"""The sandbox policy: what agents may access on this machine.

    confinement_of(run, agent, settings, isolation, connect=(grading_port, proxy_port), extra_read=(cli_folder,))

Only what is listed here is readable: no home folder, no checkout, no other run, and not a2rl where it is installed:
its generators of mini data would say what the eval sets are drawn from.

    require_readable(Path("/data/models"), settings, eval_data=("openai/gsm8k",), source=None)

Host folders that a user lets an agent read, such as a cache of models, are refused if an agent could learn from them
what the sandbox hides: eval data, runs, keys, other checkouts.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import a2rl
from a2rl.core.errors import UsageError
from a2rl.core.files import expanded
from a2rl.core.settings import ROOT_MARK, Settings
from a2rl.linux import landlock
from a2rl.sandbox.command import SHARED_MEMORY, Confinement
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
"""Below /dev, in addition to those of GPUs."""
TERMINALS = ("ptmx", "pts")
"""Access to `pts` covers all terminals, so an agent that shares it with other processes of its user does not get it."""
KERNEL_SWITCHES = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger")
NEVER_READ = ("/etc", "/proc", "/sys", "/dev", "/run", "/boot")
"""Neither these folders nor anything in them."""
SHARED = ("/", "/home", "/root", "/tmp", "/var", "/var/tmp", "/var/lib", "/var/run", "/mnt", "/media", "/srv")
"""Not as a whole: they hold the files of many programs and users."""
OPEN_IN_CHECKOUT = ("models", ".venv", ".venv-agent", ".venv-vllm", ".agents")
"""What an agent may read in a checkout."""
HIDDEN_IN_CHECKOUT = ("data", "runs", "mlruns", ".git")
PARTS_OF_PYTHON = ("bin", "lib", "lib64", "include", "pyvenv.cfg")
KEYS = (
    ".ssh", ".gnupg", ".aws", ".azure", ".kube", ".docker", ".config", ".netrc", ".git-credentials", ".pypirc",
    ".npmrc", ".local/share/keyrings", ".cache/huggingface/token", ".cache/huggingface/stored_tokens",
)  # fmt: skip
"""Places below a home where programs keep keys."""
TOKENS = ("token", "stored_tokens")
"""Files with keys in the folder that is HF_HOME."""


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
        read: What it may read in addition to the system and Python.
        user: The id of its own user; 0: it shares the pipeline's.
    """
    if not isolation.confines:
        return None
    layers = isolation.layers
    own_terminals = "devices" in layers or "user" in layers
    system = map(Path, (*SYSTEM, *HARDWARE, *(f"/etc/{name}" for name in SYSTEM_SETTINGS)))
    closed = (Path(a2rl.__file__).resolve().parent, settings.root.resolve())
    opened = _without((*system, *python_folders(settings), *read), closed)
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
    return tuple(part for folder in sorted(found) for part in readable_parts(folder, settings))


class _Opened(NamedTuple):
    """What an agent may read, and the folders of which it may only see the names of files."""

    read: list[Path]
    list_only: list[Path]


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


def readable_parts(folder: Path, settings: Settings) -> tuple[Path, ...]:
    """Returns what of an installed environment may be opened: all of it, or only what a Python environment consists of,
    if it was installed into a folder that holds other things too, such as the home."""
    if not _problem(folder.resolve(), settings, (), None):
        return (folder,)
    return tuple(part for name in PARTS_OF_PYTHON if (part := folder / name).exists())


def may_open_agent(folder: Path, settings: Settings, source: Path | None) -> bool:
    """Whether an agent may read the whole folder in which its definition lies."""
    checkout = _checkout_of(folder := folder.resolve())
    if checkout is not None and folder != checkout:
        return folder.relative_to(checkout).parts[0] not in HIDDEN_IN_CHECKOUT
    return not _problem(folder, settings, (), source)


def require_readable(
    folder: Path, settings: Settings, eval_data: Iterable[str] = (), source: Path | None = None, name: str = "read"
) -> Path:
    """Checks a folder or file that an agent is to read; returns it with all links resolved.

    Args:
        eval_data: The ids of the data sets on the hub that contain eval items.
        source: The local copy of the data that this run is given, which contains eval items.
        name: The setting that names the folder, for messages.

    Raises:
        UsageError: The agent must not read it; the message says why, and what to give instead.
    """
    path = expanded(folder)
    if not path.is_absolute():
        raise UsageError(f"{name} {str(folder)!r} is not an absolute path")
    if not path.exists():
        raise UsageError(f"{name} {folder}: there is no such folder or file on this machine")
    path = path.resolve()
    if problem := _problem(path, settings, eval_data, source):
        raise UsageError(f"{name} {folder}: an agent may not read this, because {problem}")
    return path


def _problem(path: Path, settings: Settings, eval_data: Iterable[str], source: Path | None) -> str:
    """Returns why an agent must not read a path, or an empty text."""
    home = Path(settings.environ.get("HOME") or "/root").resolve()
    checkout = _checkout_of(path)
    is_open = checkout is None or any(path.is_relative_to(checkout / name) for name in OPEN_IN_CHECKOUT)
    data = _eval_data_in(path, eval_data)
    reasons = (
        (str(path) in SHARED, "it holds the files of many programs: name single folders in it"),
        (
            any(path.is_relative_to(place) for place in NEVER_READ),
            "it is a part of the system with other programs' sockets",
        ),
        (contains_private_data(path, settings), "it contains this checkout or your home: name single folders in it"),
        (any(_overlap(path, home / name) for name in KEYS), "programs keep keys there: name a folder without keys"),
        (
            path.is_dir() and any((path / name).is_file() for name in TOKENS),
            "it contains the hub's key (a file `token`): name its folder `hub`, or single models in it",
        ),
        (not is_open, f"it is in the checkout {checkout}, with hidden data and runs; only models/ there may be read"),
        (
            any(_overlap(path, place) for place in _elsewhere(settings)),
            "hidden data or runs of this checkout lie there: name single folders that have none",
        ),
        (
            source is not None and _overlap(path, expanded(source).resolve()),
            f"it contains the eval data in {source}",
        ),
        (data is not None, f"it contains the eval data in {data}: name single folders of models instead"),
    )
    return next((why for holds, why in reasons if holds), "")


def _elsewhere(settings: Settings) -> list[Path]:
    """Returns where parts of the checkout lie that are links, such as `runs` on another disk, and its store."""
    folders = [folder for folder in (settings.root, settings.root / "data") if folder.is_dir()]
    linked = [entry.resolve() for folder in folders for entry in folder.iterdir()
              if entry.is_symlink() and entry.name not in OPEN_IN_CHECKOUT]  # fmt: skip
    is_local = settings.store.startswith("file://")
    return [*linked, Path(settings.store.removeprefix("file://")).resolve()] if is_local else linked


def _overlap(one: Path, other: Path) -> bool:
    return one.is_relative_to(other) or other.is_relative_to(one)


def _checkout_of(path: Path) -> Path | None:
    """Returns the checkout of a2rl, this one or another, that contains the path."""
    places = (path, *path.parents)
    return next((place for place in places if (place / ROOT_MARK).is_file() and (place / "stages").is_dir()), None)


def _eval_data_in(path: Path, eval_data: Iterable[str]) -> Path | None:
    """Returns the folder of a data set with eval items in a cache of the hub, which may be the path itself."""
    names = {f"datasets--{repo_id.replace('/', '--')}" for repo_id in eval_data}
    inside = next((place for place in (path, *path.parents) if place.name in names), None)
    if inside is not None or not path.is_dir():
        return inside
    return next((path / place for top in ("", "hub", "huggingface/hub") for name in sorted(names)
                 if (path / (place := str(Path(top, name)))).exists()), None)  # fmt: skip
