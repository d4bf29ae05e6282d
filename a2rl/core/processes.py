"""Child processes of the pipeline, and the event that stops all of them.

Every long-lived child watches its standard input: when the pipeline dies, however it dies, the pipe closes and the
child ends.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import IO, NamedTuple

from a2rl.core.errors import InfrastructureError, InterruptedByUserError, last_words
from a2rl.core.settings import WAY_OUT, Settings

STOP = threading.Event()
"""Set once, when the user stops the pipeline. A global, because signals concern the whole process: stages run in
Prefect's threads, where no KeyboardInterrupt arrives."""
_STOP_OF_RUN: ContextVar[threading.Event | None] = ContextVar("stop", default=None)
"""Set if this run must stop and its siblings in the same process go on. It is known in the thread that works on it."""
KILL_TIMEOUT_S = 5.0
TREE_TIMEOUT_S = 10.0
MAX_RESTARTS, RESTART_PAUSE_S = 20, 5.0
SHORT_LIFE_S = 1.0
"""A child that ends sooner is started again after the pause: what it lacks may come back."""
POLL_INTERVAL_S = 0.1
MAX_OUTPUT_BYTES = 64 << 20
"""Of each file that a limited process writes, and of what it prints."""
MAX_PROBLEM_BYTES = 4096
AWAKE_S = 5.0
"""After a pause of the whole machine, a process that has to report regularly has this time for it."""
KILLED = (-signal.SIGKILL, -signal.SIGTERM)
OF_MACHINE = 74
"""The exit status of our processes for a failure that certainly is this machine's."""


@contextlib.contextmanager
def stopped_by(stop: threading.Event) -> Iterator[None]:
    """Stops what this thread does within the context when the event is set."""
    token = _STOP_OF_RUN.set(stop)
    try:
        yield
    finally:
        _STOP_OF_RUN.reset(token)


def is_stopped() -> bool:
    """Says whether the user has stopped the pipeline, or this thread's run must stop."""
    own = _STOP_OF_RUN.get()
    return STOP.is_set() or (own is not None and own.is_set())


def check_stop() -> None:
    """Raises InterruptedByUserError if the user has stopped the pipeline, or if this thread's run must stop."""
    if is_stopped():
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
    "A2RL_TASKS_PYTHON",
    "A2RL_VLLM_PYTHON",
    *WAY_OUT,
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
        "HF_TOKEN_PATH": os.devnull,  # it is offline, and where it is confined, it could not even read the token
    }
    ours = {"PYTHONPATH": str(settings.root), "PYTHONUNBUFFERED": "1", "A2RL_ROOT": str(settings.root)}
    return {**settings.forwarded(FORWARDED_VARIABLES), **quiet, **ours}


class Child:
    """A child process that ends when this process ends, however it does: it watches its standard input.

    It has a session of its own, so Ctrl-C reaches the pipeline alone.

    Args:
        environment: All of its environment variables.
        folder: Where it runs; None for the current folder.
        log: The file to which its output is added; None for our own output.
        answers: Whether its standard output is read here, as `answers`.

    Raises:
        OSError: It cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str | Path],
        environment: Mapping[str, str],
        folder: str | Path | None = None,
        log: Path | None = None,
        answers: bool = False,
        descriptors: Sequence[int] = (),
    ) -> None:
        with log.open("ab") if log else contextlib.nullcontext() as output:
            self._process = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE if answers else output,
                stderr=output,
                pass_fds=descriptors,
                start_new_session=True,
            )

    @classmethod
    def of_module(
        cls, module: str, *arguments: object, settings: Settings, log: Path | None = None, answers: bool = False,
        descriptors: Sequence[int] = (), variables: Mapping[str, str] | None = None,
    ) -> "Child":  # fmt: skip
        """Starts one of our modules in the checkout; `variables` are added to the environment of children."""
        environment = {**child_environment(settings), **(variables or {})}
        command = module_command(module, *map(str, arguments))
        return cls(command, environment, settings.root, log, answers, descriptors)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def requests(self) -> IO[bytes]:
        """Its standard input."""
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def answers(self) -> IO[bytes]:
        """Its standard output."""
        assert self._process.stdout is not None
        return self._process.stdout

    def tell(self, line: str) -> None:
        """Sends it a line. If it has died, that is noticed elsewhere."""
        unsent = line.encode() + b"\n"
        with contextlib.suppress(OSError, ValueError):
            while unsent:
                unsent = unsent[os.write(self.requests.fileno(), unsent) :]

    def is_healthy(self, url: str, timeout_s: float) -> bool:
        """Waits until it answers GET {url}/health; returns False if it ends first or takes too long."""
        import httpx  # takes a tenth of a second, and most users of this module do not need it

        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.is_alive:
            with contextlib.suppress(httpx.HTTPError):
                httpx.get(f"{url}/health", timeout=min(2.0, timeout_s)).raise_for_status()
                return True
            time.sleep(0.05)
        return False

    def wait(self) -> int:
        """Waits for its end and returns its exit status."""
        return self._process.wait()

    def end(self, timeout_s: float) -> bool:
        """Closes its standard input and waits for its end; returns False if it had to be killed after the timeout."""
        with contextlib.suppress(BrokenPipeError):
            self.requests.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # in an uninterruptible wait
                self._process.wait(KILL_TIMEOUT_S)
            return False
        return True

    def end_group(self, timeout_s: float) -> int:
        """Ends it and whatever it has started in its process group, and returns its exit status."""
        self.end(timeout_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if self._process.stdout is not None:
            self._process.stdout.close()
        return self._process.wait()

    def kill_tree(self) -> None:
        """Kills its process group and all of its descendants.

        Raises:
            InfrastructureError: It does not end, for example because it hangs in a system call.
        """
        kill_descendants(self.pid, with_group=True)
        try:
            self._process.wait(TREE_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError(
                f"process {self.pid} cannot be killed; it may hang in a system call of the driver or the disk"
            ) from error


class RestartedChild:
    """A child that is started again when it is killed. It listens on a socket of this process: requests wait there.

    Args:
        on_end: Called with the exit status when it has ended by itself.
        on_given_up: Called when it is not started again.
    """

    def __init__(
        self,
        start: Callable[[], Child],
        on_end: Callable[[int], None] = lambda _: None,
        on_given_up: Callable[[], None] = lambda: None,
    ) -> None:
        self._start, self._on_end, self._on_given_up = start, on_end, on_given_up
        self.child = start()
        self._closing = threading.Event()
        self._guard = threading.Thread(target=self._restart, daemon=True)

    def watch(self) -> None:
        """Starts it again whenever it ends from now on, up to `MAX_RESTARTS` times."""
        self._guard.start()

    def close(self, timeout_s: float) -> bool:
        """Ends it; returns False if it had to be killed after the timeout."""
        self._closing.set()
        has_ended = self.child.end(timeout_s)
        if self._guard.is_alive():
            self._guard.join()
        return has_ended

    def _restart(self) -> None:
        for _ in range(MAX_RESTARTS):
            begun_s = time.monotonic()
            status = self.child.wait()
            is_lasting = time.monotonic() - begun_s >= SHORT_LIFE_S
            if self._closing.is_set():
                return
            self._on_end(status)
            if not is_lasting and self._closing.wait(RESTART_PAUSE_S):
                return
            with contextlib.suppress(OSError):  # the machine lacks memory or processes now
                self.child = self._start()
            if self._closing.is_set():
                self.child.end(KILL_TIMEOUT_S)
                return
        self._on_given_up()


def kill_descendants(pid: int, *, with_group: bool = False, with_itself: bool = False) -> None:
    """Kills all descendants of a process."""
    import psutil  # most users of this module do not need it

    descendants: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):  # listed first: they cannot be found after their parents have ended
        process = psutil.Process(pid)
        descendants = [*process.children(recursive=True), *([process] if with_itself else [])]
    if with_group:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
    for process in descendants:
        with contextlib.suppress(psutil.Error):
            process.kill()


TIE = """
import ctypes, os, resource, sys
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
for kind, most in zip((resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE), map(int, sys.argv[2:5])):
    if most:  # at the limit on processor time, a signal of its own comes before the kill
        hard = resource.getrlimit(kind)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard - (kind == resource.RLIMIT_CPU))
        resource.setrlimit(kind, (most, most + (kind == resource.RLIMIT_CPU)))
if os.getppid() == int(sys.argv[1]):
    os.execvp(sys.argv[5], sys.argv[5:])
"""


def tied_to_parent(command: list[str], memory_bytes: int = 0, cpu_s: int = 0, file_bytes: int = 0) -> list[str]:
    """Wraps a command so that the kernel kills it when the thread that started it ends, or its process dies.

    The wrapper is a separate program, because code between fork and exec is unsafe in a process with threads.

    Args:
        memory_bytes: The limit on its address space; 0 for none, as for the others.
    """
    limits = map(str, (memory_bytes, cpu_s, file_bytes))
    return [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *limits, *command]


def run_child(
    command: list[str],
    environment: Mapping[str, str],
    log: Path,
    timeout_s: float,
    on_wait: Callable[[], None] = lambda: None,
    folder: Path | None = None,
) -> int:
    """Runs a command to its end and returns its exit status. It never outlives this process or the user's patience.

    Args:
        command: The command. Its standard input is empty.
        environment: All of its environment variables.
        on_wait: Called several times a second.
        folder: Where it runs; None for the current folder.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        InfrastructureError: The time is over.
    """
    with log.open("wb") as out:
        process = subprocess.Popen(
            tied_to_parent(command),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        if not _ended_in_time(process, timeout_s, on_wait):
            raise InfrastructureError(f"`{' '.join(command[:4])} ...` took longer than {timeout_s:.0f} s")
    return process.returncode


def _ended_in_time(process: "subprocess.Popen[bytes]", timeout_s: float, on_wait: Callable[[], None]) -> bool:
    """Waits for the end of a process, and kills it if it takes too long or the user stops the pipeline."""
    deadline = time.monotonic() + timeout_s
    try:
        while process.poll() is None and time.monotonic() <= deadline:
            check_stop()
            on_wait()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(POLL_INTERVAL_S)
        return process.poll() is not None
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # in an uninterruptible wait
            process.wait(KILL_TIMEOUT_S)


class Reading(NamedTuple):
    """What a limited process printed."""

    output: bytes
    problem: str
    """Why it did not come to its end; empty if it did."""
    is_machines: bool = False
    """Whether the machine ended it: it was killed, or lacked memory or time, without having reached its own limits."""
    is_certain: bool = False
    """Whether it said itself that the machine is the reason."""


def read_apart(
    module: str,
    arguments: Sequence[str],
    settings: Settings,
    stdin: str,
    timeout_s: float,
    memory_bytes: int = 0,
    cpu_s: int = 0,
) -> Reading:
    """Runs one of our modules in a limited process, because it reads what an agent wrote: that may take any amount of
    time and memory, and may fail in any way.

    Args:
        memory_bytes: The limit on its address space; 0 for none.
        cpu_s: The limit on its processor time, which does not depend on what else the machine does; 0 for none.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
        OSError: The process cannot be started.
    """
    command = tied_to_parent(module_command(module, *arguments), memory_bytes, cpu_s, MAX_OUTPUT_BYTES)
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as problems:
        given.write(stdin.encode())
        given.seek(0)
        process = subprocess.Popen(
            command, cwd=settings.root, env=child_environment(settings), stdin=given, stdout=out, stderr=problems
        )
        problem = "" if _ended_in_time(process, timeout_s, lambda: None) else f"it took longer than {timeout_s:.0f} s"
        is_machines, code = bool(problem and cpu_s), process.returncode
        if code and not problem:
            problems.seek(max(0, problems.seek(0, os.SEEK_END) - MAX_PROBLEM_BYTES))
            ended = f"its process ended with status {code}"
            problem = last_words(problems.read().decode("utf-8", "replace"), ended) if code > 0 else ended
            is_machines = code in (*KILLED, OF_MACHINE) or (problem == "MemoryError" and not memory_bytes)
            if code == -signal.SIGXCPU:
                problem = f"it needed more than {cpu_s} s of processor time"
        out.seek(0)
        return Reading(out.read(), problem, is_machines, code == OF_MACHINE)
