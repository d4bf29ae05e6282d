"""Child processes of the pipeline, and the one wish that stops them all.

Every child that outlives a call watches its standard input: when the pipeline dies, however it dies, the pipe closes
and the child ends.
"""

import contextlib
import fcntl
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from a2rl.errors import InfrastructureError, Interrupted
from a2rl.isolation.lines import Feed
from a2rl.isolation.strays import MARKER, Trace, end_strays, end_traced
from a2rl.isolation.tree import children, send
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand, AgentExit

STOP = threading.Event()
"""Set once, when the user stops the pipeline. Signals are a matter of the whole process, hence this one global: stages
run in Prefect's threads, where no KeyboardInterrupt arrives."""
END_TIMEOUT_S = 20.0
"""For the supervisor to end an agent. After that it is replaced by its guard, which gets TAKE_OVER_S."""
PIPE_BYTES = 1 << 20
"""So that a command with a long environment goes into the pipe at once."""
START_S = 2.0
TAKE_OVER_S = 15.0
KILL_TIMEOUT_S = 5.0
TRACE = "processes.json"
"""In the folder of a run's logs: what `end_strays` needs."""


def check_stop() -> None:
    """Raises Interrupted if the user has stopped the pipeline."""
    if STOP.is_set():
        raise Interrupted("stopped by the user")


def module_command(module: str, *arguments: str) -> list[str]:
    """A command that runs one of our modules. -P: nothing in the current folder can shadow a library."""
    return [sys.executable, "-P", "-m", module, *arguments]


PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR", "CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "HF_HOME", "A2RL_VLLM_PYTHON")


SPIN = "3000"
"""How long OpenMP's threads spin while they wait for each other, in turns of a loop: about ten microseconds.

Small models are made of many small steps. Threads that go to sleep between them make one a third slower; threads that
spin on (the default is a hundred times as long) make it 10 to 40 times slower where others want the same cores.
"""


def child_environment(settings: Settings) -> dict[str, str]:
    """What a child of the pipeline (not an agent) gets. Keys are not among it: see a2rl/keys.py."""
    quiet = {
        "TOKENIZERS_PARALLELISM": "false",
        "GOMP_SPINCOUNT": SPIN,
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    }
    ours = {"PYTHONPATH": str(settings.root), "PYTHONUNBUFFERED": "1", "A2RL_ROOT": str(settings.root)}
    return {**settings.forwarded(PASSED_ON), **quiet, **ours}


def is_healthy(process: "subprocess.Popen[bytes]", url: str, timeout_s: float) -> bool:
    """Waits for a child that serves at `url` to answer GET /health; False where it ends or takes too long."""
    import httpx  # takes a tenth of a second, which most who need this module can do without

    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.HTTPError):
            httpx.get(f"{url}/health", timeout=timeout_s).raise_for_status()
            return True
        time.sleep(0.05)
    return False


def end_child(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    """Closes the standard input that a child watches and waits; kills it if it does not end in time."""
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


def tied(command: list[str]) -> list[str]:
    """The same command, but the kernel kills it when the thread that starts it ends, or its process dies.

    A program between, and not work between fork and exec, which is unsafe in a process with threads.
    """
    return [sys.executable, "-I", "-S", "-c", TIE, str(os.getpid()), *command]


class AgentProcess:
    """A running agent under its supervisor. Leaving the context ends its whole process tree. Nothing here waits without
    an end, whatever the agent does."""

    def __init__(self, command: AgentCommand, settings: Settings) -> None:
        marker = secrets.token_hex(16)
        command = command._replace(env={MARKER: marker, **command.env})
        self._trace, self._marker = command.trace, marker
        self._supervisor = subprocess.Popen(
            module_command("a2rl.supervisor"),
            cwd=settings.root,
            env=child_environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C reaches the pipeline alone, which then stops the agent in order
        )
        assert self._supervisor.stdin is not None
        self._ended = os.pidfd_open(self._supervisor.pid)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._supervisor.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._feed = Feed(os.dup(self._supervisor.stdin.fileno()))
        self._supervisor.stdin.close()
        self._feed.put(json.dumps(command._asdict()).encode())

    @property
    def pid(self) -> int:
        """The supervisor's guard: all else is below it."""
        return self._supervisor.pid

    @property
    def root(self) -> int:
        """The process that has the agent, and nothing else, below it. Waits until it is there, START_S at most."""
        deadline = time.monotonic() + START_S
        while self.is_running and time.monotonic() < deadline:
            if found := children(self.pid):
                return found[0]
            time.sleep(0.005)
        return self.pid

    @property
    def is_running(self) -> bool:
        return self._supervisor.poll() is None

    def __enter__(self) -> "AgentProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self.is_running:
                self.stop()
        finally:
            self._feed.close()
            os.close(self._ended)
            assert self._supervisor.stdout is not None
            self._supervisor.stdout.close()

    def send(self, line: str) -> None:
        """Gives a line to the standard input of an agent that takes messages; it arrives when the agent reads it."""
        self._tell({"line": line})

    def end_input(self) -> None:
        """Tells such an agent that no more will come."""
        self._tell({"end": True})

    def _tell(self, message: dict[str, object]) -> None:
        self._feed.put(json.dumps(message).encode())

    def wait(self, timeout_s: float) -> AgentExit | None:
        """How the agent ended; None if it still runs after the timeout.

        Raises:
            InfrastructureError: the agent cannot be confined; or its supervisor was killed, and the agent was ended.
        """
        if not self._has_ended(timeout_s):
            return None
        ended = self._report()
        if ended.unconfined:
            raise InfrastructureError(f"the agent cannot be confined: {ended.unconfined}")
        if ended.lost:
            raise InfrastructureError("the agent's supervisor was killed; the agent was ended with it")
        return ended

    def stop(self) -> AgentExit:
        """Ends the agent and everything it started; what cannot be ended is in the answer.

        Raises:
            InfrastructureError: the agent could not be confined, so it has not run.
        """
        self._feed.close()
        if not self._has_ended(END_TIMEOUT_S):
            for child in children(self._supervisor.pid)[:1]:  # it is stuck, or was stopped; its guard takes over
                send(child, signal.SIGKILL)
            if not self._has_ended(TAKE_OVER_S):
                self._supervisor.kill()
                self._has_ended(KILL_TIMEOUT_S)
        ended = self._report()
        if ended.unconfined:
            raise InfrastructureError(f"the agent cannot be confined: {ended.unconfined}")
        return ended

    def _has_ended(self, timeout_s: float) -> bool:
        """Waits for the supervisor's end, and hands on what it has not read yet meanwhile."""
        deadline = time.monotonic() + timeout_s
        while True:
            outbox = [self._feed.waits_for] if self._feed.waits_for is not None else []
            left_s = max(0.0, deadline - time.monotonic())
            ended, writable, _ = select.select([self._ended], outbox, [], left_s)
            if ended:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._supervisor.wait(KILL_TIMEOUT_S)
                return True
            if writable:
                self._feed.push()
            elif time.monotonic() >= deadline:
                return False

    def _report(self) -> AgentExit:
        """What the supervisor said at the end. If it was killed, the part of it that lives still may; if none does,
        what is left of the agent is ended from here."""
        assert self._supervisor.stdout is not None
        said, deadline = b"", time.monotonic() + TAKE_OVER_S
        while not said.endswith(b"\n") and (left_s := deadline - time.monotonic()) > 0:
            if select.select([self._supervisor.stdout], [], [], left_s)[0]:
                if not (block := os.read(self._supervisor.stdout.fileno(), 1 << 16)):
                    break
                said += block
        if said.endswith(b"\n"):
            return AgentExit.of(json.loads(said.splitlines()[0]))
        survivors = end_strays(Path(self._trace)) if self._trace else ()
        survivors = survivors or end_traced(Trace.begin(self._marker, None))
        return AgentExit(-signal.SIGKILL, "", 0, survivors=survivors, lost=True)
