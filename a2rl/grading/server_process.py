"""The grading service as seen from the stage that runs the agent: started, watched, and started again when it dies.

What the stage knows of it comes by a pipe of its own, not by the door that the agent floods.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from a2rl.errors import InfrastructureError, UsageError
from a2rl.grading.chain import open_receipts, ungraded
from a2rl.grading.worker_process import kill_tree
from a2rl.keys import grader_keys, tell
from a2rl.process import check_stop, child_environment, end_child, module_command
from a2rl.run import RunDir
from a2rl.settings import Settings

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60
SILENCE_S = 60.0
"""A service that says nothing for so long (it says something every second) is stuck, and is started again."""
MAX_RESTARTS = 20
MAX_STALLS = 3
"""How often the service is started again while the agent is gone because it gets nowhere."""
END_TIMEOUT_S = 10
ASK_EVERY_S = 2.0
PROBLEM_S = 10.0
"""For how long a problem that keeps what was received from being copied is not worth speaking of."""
COPY_LIMIT_S = 3600.0
"""Within which a copy of what was received, or its refusal, is in the ledger."""
BLOCK = 1 << 16


class GradingServer:
    """Owns the listening socket and the service's process."""

    def __init__(self, run: RunDir, settings: Settings, now: Callable[[], float] = time.monotonic) -> None:
        self._run, self._settings, self._now = run, settings, now
        self._restarts = 0
        self._listener = (
            socket.create_server((LOOPBACK, 0), backlog=128) if not run.spec.grading_port else self._fixed_port()
        )
        self._channel = -1
        self._process = self._start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def keep_alive(self) -> None:
        """Starts the service again if it has died or is stuck; to be called often, returns at once.

        Raises:
            InfrastructureError: it dies again and again.
        """
        self._listen()
        if self._process.poll() is not None:
            self._restart()
        elif self._now() > self._heard + (SILENCE_S if self._ready else START_TIMEOUT_S):
            kill_tree(self._process)
            self._restart()

    def wait_until_ready(self) -> None:
        """Returns when the service serves."""
        deadline = self._now() + START_TIMEOUT_S
        while self._now() < deadline:
            check_stop()
            self.keep_alive()
            if self._ready:
                return
            time.sleep(0.05)
        raise InfrastructureError(f"the grading service did not start; see {self._run.logs / 'service.log'}")

    def drain(self) -> None:
        """Returns when every submission has come to its end: what was received is copied in peace, what was accepted is
        graded, and what failed beside the agent is tried once more. To be called when the ledger says that the agent
        is gone.

        Raises:
            InfrastructureError: what was received cannot be copied here, or the service gets nowhere; the run can be
                resumed.
        """
        spec = self._run.spec
        patience_s = 2 * spec.grading_limits.time_limit_s(None, spec.budget_s) + COPY_LIMIT_S
        seen, since, stalls, next_ask = -1, self._now(), 0, self._now() + ASK_EVERY_S
        self._say_that_the_agent_is_gone()
        while True:
            entries = self._run.ledger.entries()
            if not open_receipts(entries) and not ungraded(entries):
                return
            check_stop()
            self.keep_alive()
            if self._problem and self._now() > self._well + PROBLEM_S:
                raise InfrastructureError(f"{self._problem}; mend that and `a2rl resume {self._run.id}`")
            if len(entries) != seen:
                seen, since = len(entries), self._now()
            elif self._now() > since + patience_s:
                stalls, since = stalls + 1, self._now()
                if stalls > MAX_STALLS:
                    raise InfrastructureError(f"grading gets nowhere; see {self._run.logs / 'grader.log'} and resume")
                kill_tree(self._process)
            if self._now() >= next_ask:
                next_ask = self._now() + ASK_EVERY_S
                self._say_that_the_agent_is_gone()
            time.sleep(0.1)

    def __enter__(self) -> "GradingServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_child(self._process, END_TIMEOUT_S)
        self._listener.close()
        os.close(self._channel)

    def _say_that_the_agent_is_gone(self) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has died, and will be told again
            os.write(self._process.stdin.fileno(), b"finish\n")

    def _listen(self) -> None:
        """Takes in what the service has said meanwhile."""
        with suppress(BlockingIOError):
            while block := os.read(self._channel, BLOCK):
                self._heard, self._ready = self._now(), True
                with suppress(ValueError, IndexError):  # a line that has not arrived whole
                    self._problem = str(json.loads(block.splitlines()[-1])["problem"])
                if not self._problem:
                    self._well = self._heard

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise InfrastructureError(
                f"the grading service died {MAX_RESTARTS} times; see {self._run.logs / 'service.log'}"
            )
        self._process = self._start()

    def _start(self) -> "subprocess.Popen[bytes]":
        if self._channel >= 0:
            os.close(self._channel)
        self._channel, theirs = os.pipe()
        os.set_blocking(self._channel, False)
        self._heard = self._well = self._now()
        self._ready, self._problem = False, ""
        descriptor = self._listener.fileno()
        try:
            with (self._run.logs / "service.log").open("ab") as log:
                process = subprocess.Popen(
                    module_command("a2rl.grading", str(self._run.root), str(descriptor), str(theirs)),
                    cwd=self._settings.root,
                    env=child_environment(self._settings),
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    pass_fds=(descriptor, theirs),
                    start_new_session=True,
                )
        finally:
            os.close(theirs)
        tell(process, grader_keys(self._settings))
        return process

    def _fixed_port(self) -> socket.socket:
        port = self._run.spec.grading_port
        try:
            return socket.create_server((LOOPBACK, port), backlog=128)
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used ({error.strerror}): choose another --grading-port, or 0 for a free one"
            ) from error
