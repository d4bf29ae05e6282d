"""Child processes of the pipeline, and the one wish that stops them all.

Every child that outlives a call watches its standard input: when the pipeline dies, however it dies, the pipe closes
and the child ends.
"""

import contextlib
import json
import subprocess
import sys
import threading
import time
from types import TracebackType

import psutil

from a2rl.errors import InfrastructureError, Interrupted
from a2rl.settings import Settings
from a2rl.supervisor import AgentCommand, AgentExit

STOP = threading.Event()
"""Set once, when the user stops the pipeline. Signals are a matter of the whole process, hence this one global: stages
run in Prefect's threads, where no KeyboardInterrupt arrives."""
END_TIMEOUT_S = 15


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
        process.wait()


def end_strays(workspace: str) -> int:
    """Kills what an agent left behind that lost its supervisor, known by where it works or by its environment."""
    strays = 0
    for process in psutil.process_iter():
        try:
            if process.cwd().startswith(workspace) or process.environ().get("WORKSPACE") == workspace:
                process.kill()
                strays += 1
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return strays


class AgentProcess:
    """A running agent under its supervisor. Leaving the context ends its whole process tree."""

    def __init__(self, command: AgentCommand, settings: Settings) -> None:
        self._workspace = command.cwd
        self._supervisor = subprocess.Popen(
            module_command("a2rl.supervisor"),
            cwd=settings.root,
            env=child_environment(settings),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C reaches the pipeline alone, which then stops the agent in order
        )
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.write(json.dumps(command._asdict()) + "\n")
        self._supervisor.stdin.flush()

    @property
    def pid(self) -> int:
        """The supervisor's; the agent is below it."""
        return self._supervisor.pid

    @property
    def is_running(self) -> bool:
        return self._supervisor.poll() is None

    def __enter__(self) -> "AgentProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.is_running:
            self.stop()

    def send(self, line: str) -> None:
        """Gives a line to the standard input of an agent that takes messages."""
        self._tell({"line": line})

    def end_input(self) -> None:
        """Tells such an agent that no more will come."""
        self._tell({"end": True})

    def _tell(self, message: dict[str, object]) -> None:
        assert self._supervisor.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended
            self._supervisor.stdin.write(json.dumps(message) + "\n")
            self._supervisor.stdin.flush()

    def wait(self, timeout_s: float) -> AgentExit | None:
        """How the agent ended; None if it still runs after the timeout."""
        try:
            self._supervisor.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        return self._exit()

    def stop(self) -> AgentExit:
        """Ends the agent and everything it started."""
        assert self._supervisor.stdin is not None
        self._supervisor.stdin.close()
        try:
            self._supervisor.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise InfrastructureError("the agent's processes cannot be ended (in an uninterruptible wait?)") from error
        return self._exit()

    def _exit(self) -> AgentExit:
        assert self._supervisor.stdout is not None
        line = self._supervisor.stdout.readline()
        if not line:
            end_strays(self._workspace)
            raise InfrastructureError("the agent's supervisor was killed; the agent was ended with it")
        ended = AgentExit(**json.loads(line))
        if ended.unconfined:
            raise InfrastructureError(f"the agent cannot be confined: {ended.unconfined}")
        return ended
