"""Submits runs to a work pool: one flow run for each attempt of a run.

The deployment of a pool is made here, once, and it has no path of a machine: a worker's checkout is the one that
A2RL_ROOT names, or the one in whose environment it runs.
"""

import os
import random
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import Flow
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Pending
from prefect.utilities.callables import parameter_schema

from a2rl.cluster.claims import RunRow
from a2rl.cluster.copies import read_spec, write_spec
from a2rl.cluster.holding import Cluster, new_run
from a2rl.core.errors import InfrastructureError, NotReadyError, UsageError
from a2rl.core.settings import Settings
from a2rl.execution.preflight import require_ready
from a2rl.llm.relay.rate import limit_name
from a2rl.run.spec import RunSpec

FLOW, ENTRYPOINT = "a2rl", "flows.pipeline.a2rl"
PULL_STEPS: list[dict[str, dict[str, str]]] = [{"a2rl.core.settings.enter_checkout": {}}]
ASK_S = 30.0
"""How long to ask for a flow run while some wait, but none is given: the pool may also be paused."""
MINUTE_S = 60.0


def submit_runs(specs: Sequence[RunSpec], pool: str, flow: Flow[..., Any], settings: Settings) -> list[str]:
    """Submits runs; those that were submitted before stay as they are. Returns their ids.

    Raises:
        UsageError: No store is configured.
        InfrastructureError: The store or the claims failed; what was registered is submitted by the reconciler.
    """
    cluster = Cluster.needed(settings)
    for spec in specs:
        write_spec(cluster.store, spec)
    cluster.claims.register([new_run(spec, pool) for spec in specs])
    with prefect_client() as client:
        ensure_deployment(client, pool, flow)
        for spec in specs:
            row = RunRow(run_id=spec.run_id, suite=spec.suite, launch=spec.launch, pool=pool)
            submit_attempt(client, cluster, row)
    return [spec.run_id for spec in specs]


@contextmanager
def prefect_client() -> Iterator[SyncPrefectClient]:
    """Connects to the Prefect server.

    Raises:
        InfrastructureError: It does not answer.
    """
    url = PREFECT_API_URL.value()
    if not url:
        raise UsageError("no Prefect server is configured: set PREFECT_API_URL, such as http://127.0.0.1:4200/api")
    try:
        with get_client(sync_client=True) as client:
            yield client
    except httpx.HTTPError as error:
        text = (str(error).splitlines() or [type(error).__name__])[0]
        raise InfrastructureError(
            f"the Prefect server at {url} failed: {text}; start it, or set PREFECT_API_URL"
        ) from error


def submit_attempt(client: SyncPrefectClient, cluster: Cluster, row: RunRow) -> None:
    """Makes the flow run of the attempt in a row. Repeating this makes nothing new."""
    deployment = client.read_deployment_by_name(f"{FLOW}/{deployment_name(row.pool)}")
    made = client.create_flow_run_from_deployment(
        deployment.id,
        parameters={"run_ids": [row.run_id], "pool": row.pool},
        idempotency_key=f"{row.run_id}/{row.attempt}",
        name=f"{row.run_id}/{row.attempt}",
        tags=[row.suite, row.launch] if row.launch else [row.suite],
    )
    cluster.claims.started(row.run_id, row.attempt, str(made.id))


def take_flow_run(client: SyncPrefectClient, pool: str) -> FlowRun | None:
    """Takes one of the flow runs that wait in a pool, for this process to execute; None if none is left.

    Of several processes that ask at once, each gets another one. A worker with `--run-once` would try the first only.
    """
    last = time.monotonic() + ASK_S
    while True:
        for found in client.get_scheduled_flow_runs_for_work_pool(pool):
            answer: OrchestrationResult[Any] = client.set_flow_run_state(found.flow_run.id, Pending())
            if answer.status == SetStateStatus.ACCEPT:
                return found.flow_run
        # The server locks what it lists, and leaves out what another request has locked.
        if time.monotonic() > last or not _count_waiting(client, pool):
            return None
        time.sleep(random.uniform(0.1, 1.0))  # so that those that asked together do not ask together again


def _count_waiting(client: SyncPrefectClient, pool: str) -> int:
    """Returns how many flow runs of a pool wait, also those that another request has locked."""
    scheduled = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED]))
    return client.count_flow_runs(
        flow_run_filter=FlowRunFilter(state=scheduled),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    )


def deployment_name(pool: str) -> str:
    """Returns the name of the deployment whose flow runs go to a pool."""
    return f"run-on-{pool}"


def ensure_deployment(client: SyncPrefectClient, pool: str, flow: Flow[..., Any]) -> None:
    """Makes the work pool and its deployment if they are missing, and brings the deployment up to date."""
    try:
        client.read_work_pool(pool)
    except ObjectNotFound:
        with suppress(ObjectAlreadyExists):  # another process was faster
            client.create_work_pool(WorkPoolCreate(name=pool, type="process"))
    client.create_deployment(
        flow_id=client.create_flow_from_name(FLOW),
        name=deployment_name(pool),
        entrypoint=ENTRYPOINT,
        work_pool_name=pool,
        pull_steps=PULL_STEPS,
        parameter_openapi_schema=parameter_schema(flow).model_dump(),
        enforce_parameter_schema=False,
    )


def require_ready_here(run_ids: Sequence[str], settings: Settings) -> None:
    """Checks that this machine can do what submitted runs need, before it takes them.

    Raises:
        NotReadyError: It cannot. Nothing is taken and nothing is recorded as a result; their rows say what is missing.
    """
    cluster = Cluster.needed(settings)
    specs = [spec for run_id in run_ids if (spec := read_spec(cluster.store, run_id)) is not None]
    try:
        require_ready(specs, settings)
    except NotReadyError as error:
        refusal = NotReadyError(error.problems, socket.gethostname())
        for run_id in run_ids:
            cluster.claims.declined(run_id, str(refusal))
        raise refusal from None


@contextmanager
def reason_in_workers_log() -> Iterator[None]:
    """Under a worker, writes nothing to its log except why the flow run ended, in one line, if it did not succeed.

    A worker passes on what its flow runs write. After its death, anything that we or our children wrote would fail.
    """
    if not deployment.id:
        yield
        return
    log, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    for ours in (1, 2):
        os.dup2(nowhere, ours)
    try:
        yield
    except BaseException as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        with suppress(OSError):
            os.write(log, f"{flow_run.name}: {reason}\n".encode())
        raise


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
