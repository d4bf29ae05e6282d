"""The relay's process, which is restarted when it is killed."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from types import TracebackType

from a2rl.config.params import TokenPrices
from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import child_environment, end_child, module_command
from a2rl.core.settings import Settings
from a2rl.llm.keys import send_keys
from a2rl.llm.relay.rate import SharedRate
from a2rl.llm.relay.request_log import request_log_path
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.rules import rules

LOOPBACK = "127.0.0.1"
END_TIMEOUT_S = 8.0
MAX_RESTARTS = 20


class RelayProcess(AbstractContextManager["RelayProcess"]):
    """Owns the listening socket and the process.

    While the process is down, new requests wait at the socket; requests in progress are aborted. After MAX_RESTARTS
    restarts, the process is not started again. The agent then has no LLM, and ends.

    Args:
        run: The run.
        settings: The settings of this checkout.
        base_url: The URL of the provider's API.
        keys: The API keys by name.
        stand_ins: The agent's stand-in for each key, by the name of the key.
        rate: The rate of requests that all runs share, if there is one.
        prices: The prices of params.yaml, by model.
    """

    def __init__(
        self,
        run: RunDir,
        settings: Settings,
        base_url: str,
        keys: Mapping[str, str],
        stand_ins: Mapping[str, str],
        rate: SharedRate | None = None,
        prices: Mapping[str, TokenPrices] | None = None,
    ) -> None:
        self._run, self._settings = run, settings
        self._keys = dict(keys)
        self._configuration = {
            "base_url": base_url,
            "log": str(request_log_path(run)),
            "prices": {name: each.model_dump() for name, each in (prices or {}).items()},
            "allowed": rules().provider.allowed,
            "max_tokens": run.spec.max_tokens,
            "max_cost_usd": run.spec.max_cost_usd,
            "rate": rate.model_dump() if rate else None,
            "stand_ins": {stand_in: name for name, stand_in in stand_ins.items()},
        }
        self._closing = threading.Event()
        self._guard = threading.Thread(target=self._restart_when_killed, name="relay", daemon=True)

    @property
    def port(self) -> int:
        """The loopback port that it listens on."""
        return int(self._listener.getsockname()[1])

    @property
    def pid(self) -> int:
        """The process id of the running relay."""
        return self._process.pid

    def __enter__(self) -> "RelayProcess":
        request_log_path(self._run).touch()
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

    def _restart_when_killed(self) -> None:
        for _ in range(MAX_RESTARTS):
            status = self._process.wait()
            if self._closing.is_set():
                return
            log_failure(
                pipeline_log(self._run), "the relay", InfrastructureError(f"it ended with {status} and is restarted")
            )
            self._process = self._start()
            if self._closing.is_set():
                end_child(self._process, END_TIMEOUT_S)
                return

    def _start(self) -> "subprocess.Popen[bytes]":
        descriptor = self._listener.fileno()
        with (self._run.logs / "relay.log").open("ab") as log:
            process = subprocess.Popen(
                module_command("a2rl.llm.relay", str(descriptor)),
                cwd=self._settings.root,
                env=child_environment(self._settings),
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        send_keys(process, self._keys)
        assert process.stdin is not None
        with suppress(OSError):  # it has died and is restarted
            os.write(process.stdin.fileno(), (json.dumps(self._configuration) + "\n").encode())
        return process
