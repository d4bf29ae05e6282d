"""Small programs that show, inside an agent's sandbox and with its environment, that what it needs works there."""

import importlib.util
import os
import re
from collections.abc import Sequence
from pathlib import Path

from a2rl.agent_systems.installation import Installation
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.execution.workspace import gpu_variables
from a2rl.linux.gpus import Gpu, driver_nodes
from a2rl.sandbox.isolation import Isolation
from a2rl.sandbox.policy import can_have_cuda
from a2rl.sandbox.trial import try_in_sandbox

CUDA_PROBE = """
import ctypes, importlib.util, sys
from pathlib import Path
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"the driver's library cannot be loaded: {error}")
if code := cuda.cuInit(0):
    sys.exit(f"CUDA does not start: error {code}")
count = ctypes.c_int()
if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
    sys.exit(f"CUDA does not count its devices: error {code}")
print(count.value)
torch = importlib.util.find_spec("torch")
if torch is not None and torch.origin:
    about = Path(torch.origin).with_name("version.py").read_text().splitlines()
    print(*(line for line in about if line.startswith("cuda") and line.endswith("= None")))
"""
"""Asks the driver itself, because importing torch takes seconds, and reads of torch only how it was built."""
NO_CUDA_FOR_ROOT = (
    "an agent that is root may not write to /proc here, without which CUDA does not start. Use --sandbox bwrap, run "
    "a2rl as an ordinary user, or in a container whose /proc/sys is read-only"
)
READ_PROBE = """
import itertools, os, stat, sys
def fail(error):
    sys.exit(f"{error.filename}: {error.strerror}")
def files(folder):
    for place, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (os.path.join(place, name) for name in names if not name.startswith("."))
for folder in sys.argv[2:]:
    below = files(folder)
    for path in itertools.islice(below if os.path.isdir(folder) else [folder], int(sys.argv[1])):
        try:
            if stat.S_ISREG(os.stat(path).st_mode):
                with open(path, "rb") as file:
                    file.read(1)
        except PermissionError as error:
            fail(error)
        except OSError:
            pass
"""
"""Reads a byte of each file, as the agent's user. Programs keep what is theirs alone in hidden folders."""
MAX_FILES = 2_000
"""Of each folder. Modes rarely differ within a folder, and an environment of Python has tens of thousands of files."""
OTHERWISE = "`a2rl doctor` says more about the sandbox, or use --sandbox none with agents that you trust"
WITHOUT_CUDA = re.compile(r"^cuda\b.*= None\s*$", re.MULTILINE)
CUDA_BUILD = "install the build of the same version for your driver from pytorch.org"
MAX_SHOWN = 300
PROGRAM_TIMEOUT_S = 120.0
"""Enough for a program that imports a lot on a busy machine."""
UNKNOWN_OPTION = 2
"""The exit code of a program that has started and does not know `--version`."""


def check_program(
    installation: Installation, isolation: Isolation, settings: Settings, read: tuple[Path, ...] = ()
) -> str:
    """Starts the agent's program in the sandbox with `--version`; returns what it says, or nothing if it has none.

    Args:
        installation: The installation of the agent.
        isolation: The layers of its sandbox.
        settings: The settings of this checkout.
        read: Further folders that it may read.

    Raises:
        UsageError: It does not start.
    """
    program = installation.program
    if program is None or program.name == "python":  # a library, which is run by a script of the definition
        return ""
    path = os.pathsep.join([*map(str, installation.paths), settings.environ.get("PATH", os.defpath)])
    own = (*installation.extra_read, installation.agent.folder, *read)
    command = [str(program), "--version"]
    ended = try_in_sandbox(command, isolation, settings, {"PATH": path}, own, timeout_s=PROGRAM_TIMEOUT_S)
    if ended.exit_code not in (0, UNKNOWN_OPTION):
        raise UsageError(
            f"{installation.agent.title} does not start in the sandbox ({_last(ended.output)}): install it again with "
            f"`a2rl agents install {installation.agent.id}`, or try --sandbox bwrap"
        )
    return f"{installation.agent.title} {installation.version or _last(ended.output)}"


def check_python(python: Path, isolation: Isolation, settings: Settings, read: Sequence[Path]) -> None:
    """Starts the agent's interpreter in the sandbox, as the agent's user, and reads what the agent will read.

    Args:
        python: The interpreter.
        isolation: The layers of the sandbox.
        settings: The settings of this checkout.
        read: The files and folders that the agent may read, among them those of the interpreter.

    Raises:
        UsageError: It does not start, or cannot read something.
    """
    command = [str(python), "-I", "-S", "-c", READ_PROBE, str(MAX_FILES), *map(str, read)]
    env = settings.forwarded(("LD_LIBRARY_PATH",))
    ended = try_in_sandbox(command, isolation, settings, env, tuple(read), timeout_s=PROGRAM_TIMEOUT_S)
    if ended.ok:
        return
    closed = "user" in isolation.layers
    remedy = "make what it needs readable with `chmod -R o+rX FOLDER`" if closed else OTHERWISE
    raise UsageError(f"the agent could not start in its sandbox ({_last(ended.output)}): {remedy}")


def check_gpus_in_sandbox(
    gpus: Sequence[Gpu], isolation: Isolation, settings: Settings, python: Path, read: tuple[Path, ...]
) -> str:
    """Counts in the sandbox the GPUs that CUDA can use there.

    Args:
        gpus: The GPUs that an agent should see.
        isolation: The layers of its sandbox.
        settings: The settings of this checkout.
        python: The interpreter with which it trains.
        read: Further folders that it may read, among them those of the interpreter.

    Raises:
        UsageError: It would not see them, or could not use them.
    """
    env = {**settings.forwarded(("LD_LIBRARY_PATH",)), **gpu_variables(gpus)}
    ended = try_in_sandbox(
        [str(python), "-I", "-c", CUDA_PROBE], isolation, settings, env, read, gpus=driver_nodes(gpus)
    )
    count, _, without = ended.output.partition("\n")
    if ended.ok and count == str(len(gpus)):
        if without:
            raise UsageError(f"the agent's torch ({python}) is a build without CUDA: {CUDA_BUILD}, or choose --python")
        return f"the agent sees {count}"
    why = f"CUDA sees {count} of {len(gpus)} GPUs" if ended.ok else _last(ended.output)
    remedy = OTHERWISE if can_have_cuda(isolation) else NO_CUDA_FOR_ROOT
    raise UsageError(f"the agent cannot use its GPUs inside the sandbox ({why}): {remedy}")


def check_torch() -> None:
    """Checks that torch here can use GPUs, without importing it.

    Raises:
        UsageError: It is a build for processors only.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return
    version = Path(found.origin).with_name("version.py")
    if version.is_file() and WITHOUT_CUDA.search(version.read_text(encoding="utf-8")):
        raise UsageError(
            f"a2rl's torch is a build without CUDA, which cannot grade on the GPUs: {CUDA_BUILD}, or set "
            "CUDA_VISIBLE_DEVICES to nothing"
        )


def _last(output: str) -> str:
    return (output.strip().splitlines() or ["it says nothing"])[-1][-MAX_SHOWN:]
