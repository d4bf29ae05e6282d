"""The rate of requests to a provider that all runs of all machines share: a limit with slot decay in Prefect.

The flow makes the limit (flows/submission.py); the relay asks for a slot before each request, over Prefect's HTTP API.
It never holds a run up for long: after MOST_S, or if Prefect does not answer, the request is sent all the same, and the
provider's own limit decides.
"""

import asyncio
import time
from contextlib import suppress

import httpx
from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings

MOST_S = 60.0
"""How long one request waits for a slot."""
ASK_S = 5.0
"""How long Prefect may take to answer."""
LEAST_S = 0.05
LOCKED = 423
"""The status with which Prefect says that no slot is free."""


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
