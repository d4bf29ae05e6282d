"""Child processes of the pipeline, and the event that stops all of them.

Every long-lived child watches its standard input: when the pipeline dies, however it dies, the pipe closes and the
child ends.
"""

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from a2rl.core.errors import InfrastructureError, InterruptedByUserError
from a2rl.core.settings import Settings

STOP = threading.Event()
"""Set once, when the user stops the pipeline. A global, because signals concern the whole process: stages run in
Prefect's threads, where no KeyboardInterrupt arrives."""
KILL_TIMEOUT_S = 5.0
POLL_INTERVAL_S = 0.1


def check_stop() -> None:
    """Raises InterruptedByUserError if the user has stopped the pipeline."""
    if STOP.is_set():
        raise InterruptedByUserError("stopped by the user")


def module_command(module: str, *arguments: str) -> list[str]:
    """Returns a command that runs one of our modules; with -P, files in the current folder cannot replace a library."""
    return [sys.executable, "-P", "-m", module, *arguments]


FORWARDED_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "CUDA_VISIBLE_DEVICES",
    "A2RL_GPU_LOCKS",
    "LD_LIBRARY_PATH",
    "HF_HOME",
    "A2RL_VLLM_PYTHON",
)


OPENMP_SPIN_COUNT = "3000"
"""How long OpenMP's threads spin while they wait for each other, in loop iterations: about ten microseconds.

Small models run many small steps. Threads that sleep between them make a model a third slower; threads that keep
spinning (the default is a hundred times as long) make it 10 to 40 times slower when other processes use the cores.
"""


def child_environment(settings: Settings) -> dict[str, str]:
    """Returns the environment for a child of the pipeline (not an agent). It has no keys: see a2rl/llm/keys.py."""
    quiet = {
        "TOKENIZERS_PARALLELISM": "false",
        "GOMP_SPINCOUNT": OPENMP_SPIN_COUNT,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    ours = {"PYTHONPATH": str(settings.root), "PYTHONUNBUFFERED": "1", "A2RL_ROOT": str(settings.root)}
    return {**settings.forwarded(FORWARDED_VARIABLES), **quiet, **ours}


def is_healthy(process: "subprocess.Popen[bytes]", url: str, timeout_s: float) -> bool:
    """Waits until a child answers GET {url}/health; returns False if it ends first or takes too long."""
    import httpx  # takes a tenth of a second, and most users of this module do not need it

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{url}/health", timeout=timeout_s).raise_for_status()
            return True
        time.sleep(0.05)
    return False


def end_child(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Closes the standard input that a child watches and waits for its end; kills it after the timeout."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in an uninterruptible wait
            process.wait(KILL_TIMEOUT_S)


TIE = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[2], sys.argv[2:])
"""


def tied_to_parent(command: list[str]) -> list[str]:
    """Wraps a command so that the kernel kills it when the thread that started it ends, or its process dies.

    The wrapper is a separate program, because code between fork and exec is unsafe in a process with threads.
    """
    return [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *command]


def run_child(
    command: list[str],
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
    on_wait: Callable[[], None] = lambda: None,
) -> int:
    """Runs a command to its end and returns its exit status. It never outlives this process or the user's patience.

    Args:
        command: The command. Its standard input is empty.
        environment: All of its environment variables.
        log: The file for its output.
        timeout_s: After this time it is killed.
        on_wait: Called several times a second.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: The time is over.
    """
    deadline = time.monotonic() + timeout_s
    with log.open("wb") as out:
        process = subprocess.Popen(
            tied_to_parent(command), env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        try:
            while process.poll() is None:
                check_stop()
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"`{' '.join(command[:4])} ...` took longer than {timeout_s:.0f} s")
                on_wait()
                time.sleep(POLL_INTERVAL_S)
        finally:
            process.kill()
            process.wait(KILL_TIMEOUT_S)
    return process.returncode
