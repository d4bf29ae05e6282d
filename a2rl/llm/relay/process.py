"""The relay's process, which is restarted when it is killed."""

import socket
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

from pydantic import Field

from a2rl.config.params import TokenPrices
from a2rl.core.errors import InfrastructureError
from a2rl.core.event_log import log_failure
from a2rl.core.files import StrictModel
from a2rl.core.processes import Child, RestartedChild
from a2rl.core.settings import Settings
from a2rl.llm.keys import keys_message
from a2rl.llm.relay.request_log import request_log_path
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.rules import rules

LOOPBACK = "127.0.0.1"
END_TIMEOUT_S = 8.0


class RelaySettings(StrictModel):
    """What the relay of one run is told."""

    base_url: str
    """The URL of the provider's API."""
    keys: dict[str, str] = Field(repr=False)
    """The stand-in that the agent has for each key, by the key's name."""
    log: Path
    """The log with one line per request. Existing lines count towards the limits. Once it is full, nothing is
    forwarded, so that each request that was forwarded is in it."""
    prices: dict[str, TokenPrices] = Field(default_factory=dict)
    """The prices of params.yaml, by model."""
    allowed: tuple[str, ...] = ()
    """What requests may ask of the provider besides text: see `beyond_text`."""
    max_tokens: int | None = None
    """The limit on tokens; once it is used up, nothing is forwarded."""
    max_cost_usd: float | None = None
    """The same for the cost. Models without a known price are then refused."""


class RelayProcess(AbstractContextManager["RelayProcess"]):
    """Owns the listening socket and the process.

    While the process is down, new requests wait at the socket; requests in progress are aborted. After many
    restarts, the process is not started again, and connections are refused: the agent then has no LLM.

    Args:
        stand_ins: The agent's stand-in for each key, by the name of the key.
        prices: The prices of params.yaml, by model.
    """

    def __init__(
        self,
        run: RunDir,
        settings: Settings,
        base_url: str,
        keys: Mapping[str, str],
        stand_ins: Mapping[str, str],
        prices: Mapping[str, TokenPrices] | None = None,
    ) -> None:
        self._run, self._settings = run, settings
        self._keys = dict(keys)
        self._told = RelaySettings(
            base_url=base_url,
            keys=dict(stand_ins),
            log=request_log_path(run),
            prices=dict(prices or {}),
            allowed=rules().provider.allowed,
            max_tokens=run.spec.max_tokens,
            max_cost_usd=run.spec.max_cost_usd,
        )

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
        self._process = RestartedChild(self._start, self._note_end, self._listener.close)
        self._process.watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close(END_TIMEOUT_S)
        self._listener.close()

    def _note_end(self, status: int) -> None:
        problem = InfrastructureError(f"it ended with {status} and is restarted")
        log_failure(pipeline_log(self._run), "the relay", problem)

    def _start(self) -> Child:
        descriptor, log = self._listener.fileno(), self._run.logs / "relay.log"
        child = Child.of_module(
            "a2rl.llm.relay.app", descriptor, settings=self._settings, log=log, descriptors=[descriptor]
        )
        child.tell(keys_message(self._keys))
        child.tell(self._told.model_dump_json())
        return child
