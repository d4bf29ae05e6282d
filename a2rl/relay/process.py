"""The relay as seen from the stage that runs the agent: started, and started again when it is killed."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType

from a2rl.background import note, pipeline_log
from a2rl.errors import InfrastructureError
from a2rl.keys import tell
from a2rl.process import child_environment, end_child, module_command
from a2rl.relay.record import llm_log
from a2rl.run import RunDir
from a2rl.settings import Settings

LOOPBACK = "127.0.0.1"
END_TIMEOUT_S = 8.0
MAX_RESTARTS = 20
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class RelayProcess(AbstractContextManager["RelayProcess"]):
    """Owns the listening socket and the process.

    Who asks while it is down, or not yet up, waits at the socket; what was under way is broken off, as with any server.
    If it is killed again and again it stays down: the agent then has no LLM, and ends.

    Args:
        base_url: of the provider's API.
        keys: by name.
        stand_ins: what the agent has in place of each key, by the name of the key.
    """

    def __init__(
        self, run: RunDir, settings: Settings, base_url: str, keys: Mapping[str, str], stand_ins: Mapping[str, str]
    ) -> None:
        self._run, self._settings = run, settings
        self._keys = dict(keys)
        self._told = {
            "base_url": base_url,
            "log": str(llm_log(run)),
            "max_tokens": run.spec.max_tokens,
            "stand_ins": {stand_in: name for name, stand_in in stand_ins.items()},
        }
        self._closing = threading.Event()
        self._guard = threading.Thread(target=self._replace_dead, name="relay", daemon=True)

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def pid(self) -> int:
        return self._process.pid

    def __enter__(self) -> "RelayProcess":
        llm_log(self._run).touch()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self._process = self._start()
        self._guard.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        end_child(self._process, END_TIMEOUT_S)
        if self._guard.is_alive():
            self._guard.join()
        self._listener.close()

    def _replace_dead(self) -> None:
        for _ in range(MAX_RESTARTS):
            status = self._process.wait()
            if self._closing.is_set():
                return
            note(pipeline_log(self._run), "the relay", InfrastructureError(f"it ended with {status}, and is replaced"))
            self._process = self._start()
            if self._closing.is_set():
                end_child(self._process, END_TIMEOUT_S)
                return

    def _start(self) -> "subprocess.Popen[bytes]":
        descriptor = self._listener.fileno()
        with (self._run.logs / "relay.log").open("ab") as log:
            process = subprocess.Popen(
                module_command("a2rl.relay", str(descriptor)),
                cwd=self._settings.root,
                env={**child_environment(self._settings), **self._settings.forwarded(CERTIFICATES)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        tell(process, self._keys)
        assert process.stdin is not None
        with suppress(OSError):  # it has died; it is replaced
            os.write(process.stdin.fileno(), (json.dumps(self._told) + "\n").encode())
        return process
