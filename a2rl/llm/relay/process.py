"""The relay's process, which is restarted when it is killed, and the rate of its requests.

The rate to a provider that all runs of all machines share is a limit with slot decay in Prefect. The flow makes the
limit (flows/submission.py); the relay asks for a slot before each request, over Prefect's HTTP API. It never holds a
run up for long: after MOST_S, or if Prefect does not answer, the request is sent all the same, and the provider's own
limit decides.
"""

import asyncio
import socket
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import httpx
from pydantic import BaseModel, ConfigDict, Field

from a2rl.config.params import TokenPrices
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.event_log import log_failure
from a2rl.core.processes import Child, RestartedChild
from a2rl.core.settings import Settings
from a2rl.llm.keys import keys_message
from a2rl.llm.relay.request_log import request_log_path
from a2rl.run.directory import RunDir, pipeline_log
from a2rl.run.rules import rules

MOST_S = 60.0
"""How long one request waits for a slot."""
ASK_S = 5.0
"""How long Prefect may take to answer."""
LEAST_S = 0.05
LOCKED = 423
"""The status with which Prefect says that no slot is free."""
LOOPBACK = "127.0.0.1"
END_TIMEOUT_S = 8.0


class SharedRate(BaseModel):
    """Where slots are asked for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    api: str
    """The URL of Prefect's API."""
    auth: str = ""
    """`user:password`, if the server wants one."""
    name: str
    """The name of the limit."""

    @classmethod
    def of(cls, host: str, rates: dict[str, int], settings: Settings) -> "SharedRate | None":
        """Returns the rate for a provider's host; None if there is none, or no Prefect server."""
        if host not in rates or not settings.prefect_api:
            return None
        return cls(api=settings.prefect_api.rstrip("/"), auth=settings.prefect_auth, name=limit_name(host))

    async def wait(self, http: httpx.AsyncClient, most_s: float = MOST_S) -> bool:
        """Waits for a slot. Returns whether it got one; the request may be sent either way."""
        deadline = time.monotonic() + most_s
        user, _, password = self.auth.partition(":")
        auth = httpx.BasicAuth(user, password) if self.auth else httpx.Auth()
        body = {"names": [self.name], "slots": 1, "mode": "rate_limit"}
        while (left_s := deadline - time.monotonic()) > 0:
            try:
                answer = await http.post(
                    f"{self.api}/v2/concurrency_limits/increment",
                    json=body,
                    auth=auth,
                    timeout=ASK_S,
                )
            except httpx.HTTPError:
                return False
            if answer.status_code != LOCKED:
                return answer.is_success
            await asyncio.sleep(min(_seconds(answer.headers.get("retry-after", "")), left_s))
        return False


def _seconds(header: str) -> float:
    with suppress(ValueError):
        return max(LEAST_S, float(header))
    return 1.0


def limit_name(host: str) -> str:
    """Returns the name of the limit in Prefect.

    Raises:
        UsageError: It is not a valid host name.
    """
    if not host or set(host) & set("/%&<> "):
        raise UsageError(f"llm_rates: {host!r} is not a valid host; write, for example, api.anthropic.com")
    return f"a2rl-llm-{host}"


class RelaySettings(BaseModel):
    """What the relay of one run is told."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    base_url: str
    """The URL of the provider's API."""
    keys: dict[str, str] = Field(repr=False)
    """The stand-in that the agent has for each key, by the key's name."""
    log: Path
    """The log with one line per request. Existing lines count towards the limits. Once it is full, nothing is
    forwarded, so that each request that was forwarded is in it."""
    prices: dict[str, TokenPrices] = {}
    """The prices of params.yaml, by model."""
    allowed: tuple[str, ...] = ()
    """What requests may ask of the provider besides text: see `beyond_text`."""
    max_tokens: int | None = None
    """The limit on tokens; once it is used up, nothing is forwarded."""
    max_cost_usd: float | None = None
    """The same for the cost. Models without a known price are then refused."""
    rate: SharedRate | None = None
    """The rate that all runs share; None: as fast as the agent asks."""


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
        self._told = RelaySettings(
            base_url=base_url,
            keys=dict(stand_ins),
            log=request_log_path(run),
            prices=dict(prices or {}),
            allowed=rules().provider.allowed,
            max_tokens=run.spec.max_tokens,
            max_cost_usd=run.spec.max_cost_usd,
            rate=rate,
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
        self._process = RestartedChild(self._start, self._note_end)
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
            "a2rl.llm.relay", descriptor, settings=self._settings, log=log, descriptors=[descriptor]
        )
        child.tell(keys_message(self._keys))
        child.tell(self._told.model_dump_json())
        return child
