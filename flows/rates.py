"""Makes Prefect's limits for `llm_rates` of params.yaml; a2rl/llm/relay/rate.py asks for their slots."""

from collections.abc import Mapping

from a2rl.llm.relay.rate import limit_name
from flows.submission import prefect_client

MINUTE_S = 60.0


def declare_rates(rates: Mapping[str, int]) -> None:
    """Makes a limit for each host, or changes it: the requests of a minute at once, and then evenly.

    Args:
        rates: Requests per minute, by host.

    Raises:
        InfrastructureError: The Prefect server does not answer.
        UsageError: A host is not valid.
    """
    if not rates:
        return
    with prefect_client() as client:
        for host, per_minute in rates.items():
            client.upsert_global_concurrency_limit_by_name(limit_name(host), per_minute, per_minute / MINUTE_S)
