"""Owns the process of the grading service for the `execute` stage: starts it, watches it and restarts it when it dies.

The service reports to the stage through a pipe and not over HTTP, because the agent could flood HTTP with requests.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import machine_failure
from a2rl.core.processes import AWAKE_S, MAX_RESTARTS, Child, check_stop
from a2rl.core.settings import Settings
from a2rl.grading.submission_states import forget_crashes, open_receipts, ungraded
from a2rl.llm.keys import grader_keys, keys_message
from a2rl.run.directory import RunDir

LOOPBACK = "127.0.0.1"
SERVICE = "a2rl.grading.app"
START_TIMEOUT_S = 60
SILENCE_TIMEOUT_S = 60.0
"""A service that sends no report for this long is considered stuck and is restarted. It reports every second."""
MAX_STALLS = 3
"""How many times the service is restarted without progress after the agent has ended."""
END_TIMEOUT_S = 10
FINISH_INTERVAL_S = 2.0
"""How often the service is told that the agent has ended."""
PROBLEM_TOLERANCE_S = 10.0
"""A problem with copying submissions is reported only after it has lasted this long."""
COPY_TIMEOUT_S = 3600.0
"""A received submission must be copied or refused within this time."""
BLOCK = 1 << 16


class ServiceProcess(AbstractContextManager["ServiceProcess"]):
    """Owns the listening socket and the service's process."""

    def __init__(
        self, run: RunDir, settings: Settings, now: Callable[[], float] = time.monotonic, module: str = SERVICE
    ) -> None:
        """Starts the service."""
        self._module = module
        self._run, self._settings, self._now = run, settings, now
        self._restarts = 0
        forget_crashes(run)
        self._listener = listen(run.spec.grading_port)
        self._channel = -1
        self._last_report = self._last_ok = self._looked = 0.0
        self._ready, self._problem = False, ""
        self._process = self._start()

    @property
    def url(self) -> str:
        """The URL of the service."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def port(self) -> int:
        """The port on which the service listens."""
        return int(self._listener.getsockname()[1])

    def keep_alive(self) -> None:
        """Restarts the service if it has died or is stuck; call it often, it returns at once.

        Raises:
            InfrastructureError: The service has died too often.
        """
        self._read_reports()
        if self._now() > self._looked + AWAKE_S:  # the whole machine may have paused, and the service with it
            self._last_report = max(self._last_report, self._now() - SILENCE_TIMEOUT_S + AWAKE_S)
        self._looked = self._now()
        if not self._process.is_alive:
            self._restart()
        elif self._now() > self._last_report + (SILENCE_TIMEOUT_S if self._ready else START_TIMEOUT_S):
            self._process.kill_tree()
            self._restart()

    def wait_until_ready(self) -> None:
        """Returns when the service is ready for requests.

        Raises:
            InfrastructureError: It did not start in time.
        """
        deadline = self._now() + START_TIMEOUT_S
        while self._now() < deadline:
            check_stop()
            self.keep_alive()
            if self._ready:
                return
            time.sleep(0.05)
        raise InfrastructureError(f"the grading service did not start; see {self._run.logs / 'service.log'}")

    def drain(self) -> None:
        """Returns when every submission has been graded or refused; call it after the agent's end is in the ledger.

        Received submissions are copied, accepted ones are graded, and grades that failed while the agent was running
        are repeated once.

        Raises:
            InfrastructureError: A submission cannot be copied here, or there is no progress; the run can be resumed.
        """
        spec = self._run.spec
        patience_s = 2 * spec.grading_limits.time_limit_s(None, spec.budget_s) + COPY_TIMEOUT_S
        seen, since, stalls, next_finish = -1, self._now(), 0, self._now() + FINISH_INTERVAL_S
        self._process.tell("finish")
        while True:
            entries = self._run.ledger.entries()
            if not open_receipts(entries) and not ungraded(entries):
                return
            check_stop()
            self.keep_alive()
            if self._problem and self._now() > self._last_ok + PROBLEM_TOLERANCE_S:
                raise InfrastructureError(f"{self._problem}; fix that, then `a2rl resume {self._run.id}`")
            if len(entries) != seen:
                seen, since = len(entries), self._now()
            elif self._now() > since + patience_s:
                stalls, since = stalls + 1, self._now()
                if stalls > MAX_STALLS:
                    raise InfrastructureError(
                        f"grading makes no progress; see {self._run.logs / 'grader.log'}, then resume the run"
                    )
                self._process.kill_tree()
            if self._now() >= next_finish:
                next_finish = self._now() + FINISH_INTERVAL_S
                self._process.tell("finish")
            time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._process.end(END_TIMEOUT_S)
        self._listener.close()
        os.close(self._channel)

    def _read_reports(self) -> None:
        """Reads what the service has reported since the last call."""
        with suppress(BlockingIOError):
            while block := os.read(self._channel, BLOCK):
                self._last_report, self._ready = self._now(), True
                with suppress(ValueError, IndexError):  # an incomplete line
                    self._problem = str(json.loads(block.splitlines()[-1])["problem"])
                if not self._problem:
                    self._last_ok = self._last_report

    def _restart(self) -> None:
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise InfrastructureError(
                f"the grading service died {MAX_RESTARTS} times; see {self._run.logs / 'service.log'}"
            )
        self._process = self._start()

    def _start(self) -> Child:
        if self._channel >= 0:
            os.close(self._channel)
        self._channel, theirs = os.pipe()
        os.set_blocking(self._channel, False)
        self._last_report = self._last_ok = self._looked = self._now()
        self._ready, self._problem = False, ""
        descriptor = self._listener.fileno()
        try:
            child = Child.of_module(
                self._module, self._run.root, descriptor, theirs, settings=self._settings,
                log=self._run.logs / "service.log", descriptors=[descriptor, theirs],
            )  # fmt: skip
        except OSError as error:
            raise machine_failure("start the grading service", error) from error
        finally:
            os.close(theirs)
        child.tell(keys_message(grader_keys(self._settings)))
        return child


def listen(port: int) -> socket.socket:
    """Returns a socket that listens on a port; on any free one if it is 0.

    Raises:
        UsageError: This port is in use, or not for this user.
        InfrastructureError: No port is free.
    """
    try:
        return socket.create_server((LOOPBACK, port), backlog=128)
    except OSError as error:
        if not port:
            raise machine_failure("open a port for the grading service", error) from error
        raise UsageError(
            f"port {port} cannot be used ({error.strerror}): choose another --grading-port, or 0 for a free one"
        ) from error
