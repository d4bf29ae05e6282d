"""A running agent, as the pipeline sees it: a supervisor runs it, and ends it with everything that it started.

No library: `subprocess` starts the supervisor, and our protocol with it must work even if either side hangs.
"""

import contextlib
import fcntl
import json
import os
import secrets
import selectors
import signal
import subprocess
import time
from multiprocessing import connection
from pathlib import Path

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import machine_failure
from a2rl.core.processes import KILL_TIMEOUT_S, child_environment, module_command
from a2rl.core.settings import Settings
from a2rl.linux.orphans import MARKER, ProcessTrace, end_orphans, end_traced_processes
from a2rl.linux.process_tree import children, descendants, send_signal
from a2rl.sandbox.command import AgentCommand, AgentExit, LineWriter

END_TIMEOUT_S = 20.0
"""How long the supervisor may take to end an agent. After that, its guard takes over and gets TAKE_OVER_S."""
PIPE_BYTES = 1 << 20
"""Pipe size, large enough that a command with a long environment can be written at once."""
START_S = 30.0
"""How long the supervisor may take to start its two processes, on a machine that is busy."""
TAKE_OVER_S = 15.0


class AgentProcess:
    """A running agent under its supervisor. Leaving the context ends its whole process tree.

    All waits have a timeout, whatever the agent does.
    """

    def __init__(self, command: AgentCommand, settings: Settings) -> None:
        marker = secrets.token_hex(16)
        command = command._replace(env={MARKER: marker, **command.env})
        self._trace, self._marker = command.trace, marker
        try:
            self._supervisor = subprocess.Popen(
                module_command("a2rl.sandbox.supervisor"),
                cwd=settings.root,
                env=child_environment(settings),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,  # Ctrl-C must reach the pipeline only, which then stops the agent itself
            )
        except OSError as error:
            raise machine_failure("start the agent's supervisor", error) from error
        assert self._supervisor.stdin is not None
        self._ended = os.pidfd_open(self._supervisor.pid)
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._supervisor.stdin, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._feed = LineWriter(os.dup(self._supervisor.stdin.fileno()))
        self._supervisor.stdin.close()
        self._feed.put(json.dumps(command._asdict()).encode())

    @property
    def pid(self) -> int:
        """The pid of the supervisor's guard, the ancestor of all others."""
        return self._supervisor.pid

    @property
    def root(self) -> int:
        """The pid of the process whose only descendants are the agent's; waits up to START_S until it exists."""
        deadline = time.monotonic() + START_S
        while self.is_running and time.monotonic() < deadline:
            if child := next(descendants(self.pid), None):
                return child
            time.sleep(0.005)
        return self.pid

    @property
    def is_running(self) -> bool:
        """Whether the supervisor is running."""
        return self._supervisor.poll() is None

    def __enter__(self) -> "AgentProcess":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.is_running:
                self.stop()
        finally:
            self._feed.close()
            os.close(self._ended)
            assert self._supervisor.stdout is not None
            self._supervisor.stdout.close()

    def send(self, line: str) -> None:
        """Sends a line to the standard input of an agent that takes messages."""
        self._feed.put(json.dumps({"line": line}).encode())

    def end_input(self) -> None:
        """Closes the standard input of an agent that takes messages."""
        self._feed.put(json.dumps({"end": True}).encode())

    def wait(self, timeout_s: float) -> AgentExit | None:
        """Waits for the agent; returns how it ended, or None if it still runs after the timeout.

        Raises:
            InfrastructureError: The agent cannot be confined, or its supervisor was killed and the agent ended.
        """
        if not self._has_ended(timeout_s):
            return None
        ended = self._report()
        if ended.lost:
            raise InfrastructureError("the agent's supervisor was killed; the agent was ended with it")
        return ended

    def stop(self) -> AgentExit:
        """Ends the agent and everything that it started; the result lists what could not be ended.

        Raises:
            InfrastructureError: The agent could not be confined, so it has not run.
        """
        self._feed.close()
        if not self._has_ended(END_TIMEOUT_S):
            for child in children(self._supervisor.pid)[:1]:  # it hangs or was stopped, so its guard takes over
                send_signal(child, signal.SIGKILL)
            if not self._has_ended(TAKE_OVER_S):
                self._supervisor.kill()
                self._has_ended(KILL_TIMEOUT_S)
        return self._report()

    def _has_ended(self, timeout_s: float) -> bool:
        """Waits for the supervisor to end, and sends it buffered messages in the meantime."""
        deadline = time.monotonic() + timeout_s
        while True:
            with selectors.PollSelector() as selector:
                selector.register(self._ended, selectors.EVENT_READ)
                if self._feed.waits_for is not None:
                    selector.register(self._feed.waits_for, selectors.EVENT_WRITE)
                ready = [key.fileobj for key, _ in selector.select(max(0.0, deadline - time.monotonic()))]
            if self._ended in ready:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._supervisor.wait(KILL_TIMEOUT_S)
                return True
            if ready:
                self._feed.push()
            elif time.monotonic() >= deadline:
                return False

    def _report(self) -> AgentExit:
        """Returns the supervisor's report. If one part of it was killed, the other reports; if both were killed, the
        orphans of the agent are ended from here."""
        assert self._supervisor.stdout is not None
        said, deadline = b"", time.monotonic() + TAKE_OVER_S
        while not said.endswith(b"\n") and (left_s := deadline - time.monotonic()) > 0:
            if connection.wait([self._supervisor.stdout.fileno()], left_s):
                if not (block := os.read(self._supervisor.stdout.fileno(), 1 << 16)):
                    break
                said += block
        if said.endswith(b"\n"):
            ended = AgentExit.of(json.loads(said.splitlines()[0]))
            if ended.unconfined:
                raise InfrastructureError(f"the agent cannot be confined: {ended.unconfined}")
            return ended
        survivors = end_orphans(Path(self._trace)) if self._trace else ()
        survivors = survivors or end_traced_processes(ProcessTrace.begin(self._marker, None))
        return AgentExit(-signal.SIGKILL, "", 0, survivors=survivors, lost=True)
