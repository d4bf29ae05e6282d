"""The relay's process, which is restarted when it is killed."""

import json
import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from types import TracebackType

from a2rl.config.params import TokenPrices
from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import Child, RestartedChild
from a2rl.core.settings import Settings
from a2rl.llm.keys import keys_message
from a2rl.llm.relay.rate import SharedRate
from a2rl.llm.relay.request_log import request_log_path
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.rules import rules

LOOPBACK = "127.0.0.1"
END_TIMEOUT_S = 8.0


class RelayProcess(AbstractContextManager["RelayProcess"]):
    """Owns the listening socket and the process.

    While the process is down, new requests wait at the socket; requests in progress are aborted. After many
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

    @property
    def port(self) -> int:
        """The loopback port that it listens on."""
        return int(self._listener.getsockname()[1])

    @property
    def pid(self) -> int:
        """The process id of the running relay."""
        return self._process.child.pid

    def __enter__(self) -> "RelayProcess":
        request_log_path(self._run).touch()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self._process = RestartedChild(self._start, self._note_end)
        self._process.watch()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.close(END_TIMEOUT_S)
        self._listener.close()

    def _note_end(self, status: int) -> None:
        problem = InfrastructureError(f"it ended with {status} and is restarted")
        log_failure(pipeline_log(self._run), "the relay", problem)

    def _start(self) -> Child:
        descriptor, log = self._listener.fileno(), self._run.logs / "relay.log"
        child = Child.of_module(
            "a2rl.llm.relay", descriptor, settings=self._settings, log=log, descriptors=[descriptor]
        )
        child.tell(keys_message(self._keys))
        child.tell(json.dumps(self._configuration))
        return child
