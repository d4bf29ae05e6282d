"""The grading service as seen from the stage that runs the agent: started, watched, and started again when it dies."""

import socket
import subprocess
import time
from types import TracebackType

import httpx

from a2rl.errors import InfrastructureError, UsageError
from a2rl.events import GradingFailed, SubmissionAccepted
from a2rl.keys import grader_keys, tell
from a2rl.process import check_stop, child_environment, end_child, module_command
from a2rl.run import RunDir
from a2rl.settings import Settings

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60
MAX_RESTARTS = 20
END_TIMEOUT_S = 10


class GradingServer:
    """Owns the listening socket and the service's process."""

    def __init__(self, run: RunDir, settings: Settings) -> None:
        self._run = run
        self._settings = settings
        self._restarts = 0
        self._listener = (
            socket.create_server((LOOPBACK, 0), backlog=128) if not run.spec.grading_port else self._fixed_port()
        )
        self._process = self._start()

    @property
    def url(self) -> str:
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def keep_alive(self) -> None:
        """Starts the service again if it has died; to be called often.

        Raises:
            InfrastructureError: it dies again and again.
        """
        if self._process.poll() is None:
            return
        self._restarts += 1
        if self._restarts > MAX_RESTARTS:
            raise InfrastructureError(
                f"the grading service died {MAX_RESTARTS} times; see {self._run.logs / 'service.log'}"
            )
        self._process = self._start()

    def wait_until_ready(self) -> None:
        """Returns when the service answers."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            check_stop()
            self.keep_alive()
            try:
                httpx.get(f"{self.url}/health", timeout=5).raise_for_status()
            except httpx.HTTPError:
                time.sleep(0.1)
            else:
                return
        raise InfrastructureError(f"the grading service did not start; see {self._run.logs / 'service.log'}")

    def drain(self) -> None:
        """Returns when every accepted submission has its grade; what failed beside the agent is tried once more."""
        if ungraded(self._run) & {event.weights_digest for event in self._run.ledger.events(GradingFailed)}:
            end_child(self._process, END_TIMEOUT_S)
            self._process = self._start()
        while ungraded(self._run):
            check_stop()
            self.keep_alive()
            time.sleep(0.2)

    def __enter__(self) -> "GradingServer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end_child(self._process, END_TIMEOUT_S)
        self._listener.close()

    def _start(self) -> "subprocess.Popen[bytes]":
        descriptor = self._listener.fileno()
        with (self._run.logs / "service.log").open("ab") as log:
            process = subprocess.Popen(
                module_command("a2rl.grading", str(self._run.root), str(descriptor)),
                cwd=self._settings.root,
                env=child_environment(self._settings),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
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


def ungraded(run: RunDir) -> set[str]:
    """Weights digests that were accepted and have no grade yet."""
    return {event.weights_digest for event in run.ledger.events(SubmissionAccepted)} - run.ledger.grades().keys()
