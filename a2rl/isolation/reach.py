"""What agents reach on this machine, and which of the layers can be had here.

    found = available("landlock", settings)      # tries it out; str(found) is what the run's records say
    confinement_of(run, agent, settings, connect=(grading_port, proxy_port), extra_read=(cli_folder,))

Whatever has a name of its own here is readable, and nothing else is: no home, no checkout, no other run.
"""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from a2rl.agent import Agent
from a2rl.errors import InfrastructureError, UsageError
from a2rl.isolation.confinement import Confinement
from a2rl.process import AgentProcess
from a2rl.records import SetupRecord
from a2rl.run import RunDir, Sandbox
from a2rl.sandbox import landlock
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand

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
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
"""Below /dev, besides those of NVIDIA's driver. Terminals need `pts` as a whole: README.md, "What an agent can do"."""
KERNEL_SWITCHES = ("/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger")
SHARED_MEMORY = "/dev/shm"
PROBE = "import socket, sys; socket.create_connection(('127.0.0.1', int(sys.argv[1])), 10).close()"
PROBE_TIMEOUT_S = 30.0


class Isolation(NamedTuple):
    """Which sandbox a run has."""

    kind: Sandbox
    lacks: str = ""
    """What it has not that it should have."""

    def __str__(self) -> str:
        return f"{self.kind} ({self.lacks})" if self.lacks else self.kind

    @classmethod
    def of(cls, record: SetupRecord) -> "Isolation":
        """As the run's record has it."""
        kind, _, lacks = record.sandbox.partition(" (")
        return cls({"landlock": "landlock", "bwrap": "bwrap"}.get(kind, "none"), lacks.removesuffix(")"))  # type: ignore[arg-type]


NO_BROKER = "no seccomp notifications: connections are limited by port alone, local sockets are not"


def available(asked: Sandbox, settings: Settings) -> Isolation:
    """The best of the sandbox asked for that works here, found by trying.

    Raises:
        UsageError: bwrap was asked for and does not work here.
    """
    if asked == "none":
        return Isolation("none")
    if asked == "landlock" and not landlock.abi():
        return Isolation("none", "this kernel has no Landlock")
    if asked == "bwrap" and not shutil.which("bwrap"):
        raise UsageError("bwrap is not installed: `apt-get install bubblewrap`, or use --sandbox landlock")
    why = ""
    for lacks in ("", NO_BROKER):
        if not (why := _problem(Isolation(asked, lacks), settings)):
            return Isolation(asked, lacks)
    if asked == "bwrap":
        raise UsageError(f"bwrap does not work here: {why}; use --sandbox landlock")
    return Isolation("none", why)


def confinement_of(
    run: RunDir, agent: Agent, settings: Settings, connect: tuple[int, ...], extra_read: tuple[Path, ...] = ()
) -> Confinement | None:
    """What the agent of a run reaches; None if the run has no sandbox.

    Args:
        run: after its setup, which found out what this machine has.
        agent: may read its own definition.
        settings: of this checkout; may lie anywhere, its Python environment alone is readable.
        connect: TCP ports on loopback.
        extra_read: files and folders to read besides, such as those of a CLI.
    """
    isolation = Isolation.of(run.need("setup", SetupRecord))
    own = (run.given, *_definition(agent, settings), *extra_read)
    return confinement_in(run.workspace, isolation, settings, own, connect, run.logs / "network.jsonl")


def confinement_in(
    workspace: Path,
    isolation: Isolation,
    settings: Settings,
    read: Iterable[Path],
    connect: tuple[int, ...],
    network_log: Path,
) -> Confinement | None:
    """The same for any workspace; `read` is what its user may read besides the system and Python."""
    if isolation.kind == "none":
        return None
    return Confinement(
        read=(*SYSTEM, *HARDWARE, *(f"/etc/{name}" for name in SETTINGS_OF_THE_SYSTEM),
              *map(str, (*python_folders(settings), *read))),
        write=(str(workspace),),
        use=(*(f"/dev/{name}" for name in DEVICES), *_gpus(isolation)),
        share=(SHARED_MEMORY,),
        connect=connect,
        network_log=str(network_log),
        landlock=landlock.abi() > 0,
        broker=not isolation.lacks,
        bwrap=shutil.which("bwrap") or "" if isolation.kind == "bwrap" else "",
    )  # fmt: skip


def _gpus(isolation: Isolation) -> tuple[str, ...]:
    """NVIDIA's devices, and /proc, where CUDA writes the names of its threads as it starts.

    In /proc are switches of the kernel, too, which root reaches even without its rights. So root gets CUDA only where
    they are read-only, as in most containers and under bwrap.
    """
    devices = tuple(map(str, Path("/dev").glob("nvidia*")))
    safe = isolation.kind == "bwrap" or not any(os.access(switch, os.W_OK) for switch in KERNEL_SWITCHES)
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


def _problem(isolation: Isolation, settings: Settings) -> str:
    """Why it does not work here; nothing if it does."""
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as server:
        workspace, log = Path(folder, "workspace"), Path(folder, "log")
        workspace.mkdir()
        port = server.getsockname()[1]
        confinement = confinement_in(workspace, isolation, settings, (), (port,), Path(folder, "network"))
        command = [sys.executable, "-I", "-S", "-c", PROBE, str(port)]
        try:
            with AgentProcess(
                AgentCommand(command, str(workspace), {"PATH": os.defpath}, str(log), confinement), settings
            ) as process:
                ended = process.wait(PROBE_TIMEOUT_S)
        except InfrastructureError as error:
            return str(error)
        if ended is None:
            return "it does not answer"
        return "" if ended.exit_code == 0 else log.read_text(encoding="utf-8", errors="replace").strip()[-200:]
