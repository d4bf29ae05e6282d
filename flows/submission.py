"""Submits runs to a work pool, one flow run for each attempt of a run, and starts those again whose attempt has ended
without a result: `a2rl suite reconcile`, every 30 s from a timer.

The deployment of a pool is made here, once, and it has no path of a machine: a worker's checkout is the one that
A2RL_ROOT names, or the one in whose environment it runs. Whether somebody works on a run is decided by its claim alone,
never by Prefect. Each decision is made by one statement of the claims, so several reconcilers may run at once.
"""

import os
import random
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import OrchestrationResult
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    WorkPoolFilter,
    WorkPoolFilterName,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.client.schemas.responses import SetStateStatus
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.flows import Flow
from prefect.runtime import deployment, flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Crashed, Pending
from prefect.utilities.callables import parameter_schema

from a2rl.cluster.claims import REOPENED, RunRow
from a2rl.cluster.copies import read_spec, write_spec
from a2rl.cluster.holding import REFUSED, Cluster, new_run
from a2rl.cluster.status import BROKEN
from a2rl.core.errors import InfrastructureError, NotReadyError, UsageError, first_line
from a2rl.core.settings import Settings
from a2rl.core.urls import require_proxies
from a2rl.execution.preflight import require_ready
from a2rl.run.spec import RunSpec

FLOW, ENTRYPOINT = "a2rl", "flows.pipeline.a2rl"
PULL_STEPS: list[dict[str, dict[str, str]]] = [{"a2rl.core.settings.enter_checkout": {}}]
ASK_S = 30.0
"""How long to ask for a flow run while some wait, but none is given: the pool may also be paused."""


def submit_runs(specs: Sequence[RunSpec], pool: str, flow: Flow[..., Any], settings: Settings) -> list[str]:
    """Submits runs; those that were submitted before stay as they are. Returns their ids.

    Raises:
        UsageError: No store is configured.
        InfrastructureError: The store or the claims failed; what was registered is submitted by the reconciler.
    """
    cluster = Cluster.needed(settings)
    specs = [spec.model_copy(update={"side_by_side": 1}) for spec in specs]  # a worker does one run at a time
    with prefect_client() as client:
        ensure_deployment(client, pool, flow)  # without a server, nothing is registered
        for spec in specs:
            write_spec(cluster.store, spec)
        cluster.claims.register([new_run(spec, pool) for spec in specs])
        for spec in specs:
            row = RunRow(run_id=spec.run_id, suite=spec.suite, launch=spec.launch, pool=pool)
            submit_attempt(client, cluster, row)
    return [spec.run_id for spec in specs]


@contextmanager
def prefect_client() -> Iterator[SyncPrefectClient]:
    """Connects to the Prefect server.

    Raises:
        UsageError: None is configured, the user's proxy cannot be used, or the server does not know what is asked for.
        InfrastructureError: It does not answer.
    """
    require_proxies(Settings.load().environ)
    url = PREFECT_API_URL.value()
    if not url:
        raise UsageError("no Prefect server is configured: set PREFECT_API_URL, such as http://127.0.0.1:4200/api")
    try:
        with get_client(sync_client=True) as client:
            yield client
    except ObjectNotFound as error:
        raise UsageError(
            f"the Prefect server at {url} does not know what was asked for: check PREFECT_API_URL; `a2rl bench --pool` "
            "makes the pool and its deployment"
        ) from error
    except httpx.HTTPError as error:
        raise InfrastructureError(
            f"the Prefect server at {url} failed: {first_line(error)}; start it, or set PREFECT_API_URL"
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
            cluster.claims.declined(run_id, f"{REFUSED}{refusal}")
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


MOST_ATTEMPTS = 3
"""How often a run is begun before it is given up."""
PAUSE_S = 30.0
"""How long a run that a machine could not take, or not set up, rests before it is offered again. Each further pause is
twice as long..."""
LONGEST_PAUSE_S = 600.0
"""...up to this. Such a run is never given up, because a machine may get what it needs later."""
STARTING_S = 120.0
"""After this time, a flow run that was started must have taken its run."""
SILENT_S = 30.0
PAGE = 200
OF_PREFECT = re.compile(r"^Flow run encountered an exception: (\w+: )?")
"""What Prefect writes before the message of an error."""
ENDED = frozenset({"COMPLETED", "FAILED", "CRASHED"})


class FlowState(NamedTuple):
    """The state of a flow run, as Prefect knows it."""

    type: str
    age_s: float
    message: str = ""


class Decision(NamedTuple):
    """What is to be done about a run."""

    act: str
    """wait, submit, again, close."""
    why: str = ""


def decide(row: RunRow, state: FlowState | None, most: int = MOST_ATTEMPTS) -> Decision:
    """Decides about a run.

    Args:
        state: The state of its flow run; None if there is none.
        most: How often a run is begun before it is given up.
    """
    if row.done or row.live:
        return Decision("wait")
    if not row.flow_run:
        return Decision("submit", "it was registered but not submitted")
    if state is not None and state.type == "CANCELLED":
        return Decision("close", "cancelled")
    if _is_resting(row, state) or not (why := _why_it_is_over(row, state)):
        return Decision("wait")
    if row.attempts >= most and not _is_untried(row):
        what = f"given up after {row.attempts} attempts"
        if row.progress.verdict not in {"", BROKEN}:
            what += f" to judge its result; `a2rl suite reopen {row.run_id}` allows one more"
        return Decision("close", f"failed: {what}: {row.outcome or why}")
    return Decision("again", why)


def _is_untried(row: RunRow) -> bool:
    """Returns whether no machine could begin the run since it was last taken, or reopened."""
    return row.outcome.startswith((REFUSED, REOPENED))


def _is_resting(row: RunRow, state: FlowState | None) -> bool:
    """Returns whether it is too early for the next attempt. A run whose machine died must not wait."""
    refused = row.attempt if row.outcome.startswith(REFUSED) else row.attempt - row.epoch
    if state is None or refused < 1 or (row.epoch and state.type != "FAILED"):
        return False
    return state.age_s < min(PAUSE_S * 2.0 ** min(refused - 1, 10), LONGEST_PAUSE_S)


def _why_it_is_over(row: RunRow, state: FlowState | None) -> str:
    """Returns why nobody will work on the present attempt any more; empty if somebody may."""
    if state is None:
        return "Prefect does not know its flow run"
    if state.type in ENDED:
        return state.message or f"its flow run is {state.type.lower()}"
    is_silent = row.beat_s is None or row.beat_s > SILENT_S
    if state.type != "SCHEDULED" and state.age_s > STARTING_S and is_silent:
        return f"its flow run is {state.type.lower()} for {state.age_s:.0f} s, and no process holds the run"
    return ""


def reconcile(cluster: Cluster, suite: str | None = None, most: int = MOST_ATTEMPTS) -> dict[str, Decision]:
    """Looks once at all open runs that were submitted, and starts again or closes those that nobody works on.

    Returns:
        What was done, by run, or why nothing could be.
    """
    rows = [row for row in cluster.claims.rows(suite) if row.pool and not row.done and not row.live]
    acted: dict[str, Decision] = {}
    if not rows:
        return acted
    with prefect_client() as client:
        states = _states(client, {row.flow_run for row in rows if row.flow_run})
        for row in rows:
            decision = decide(row, states.get(row.flow_run), most)
            try:
                if decision.act != "wait" and _act(client, cluster, row, decision):
                    acted[row.run_id] = decision
            except ObjectNotFound:  # the runs of other pools go on
                missing = f"the Prefect server has no deployment {deployment_name(row.pool)!r} any more"
                acted[row.run_id] = Decision("wait", f"{missing}: `a2rl bench --pool {row.pool}` makes it")
    return acted


def cancel(cluster: Cluster, suite: str) -> list[str]:
    """Closes all open runs of a suite: whoever works on one ends its agent within seconds. Returns their ids."""
    rows = [row for row in cluster.claims.rows(suite) if not row.done]
    for row in rows:
        cluster.claims.close(row.run_id, "cancelled")
    with prefect_client() as client:
        for row in rows:
            if row.flow_run and not row.live:
                _end(client, row.flow_run, Cancelled(message="the suite was cancelled"))
    return [row.run_id for row in rows]


def _act(client: SyncPrefectClient, cluster: Cluster, row: RunRow, decision: Decision) -> bool:
    if decision.act == "submit":
        submit_attempt(client, cluster, row)
        return True
    if decision.act == "close":
        return cluster.claims.give_up(row.run_id, row.attempt, decision.why)
    note = row.outcome if _is_untried(row) else decision.why  # a worker may die before it takes the run
    if not cluster.claims.next_attempt(row.run_id, row.attempt, note):
        return False  # somebody has taken the run, or another reconciler was faster
    _end(client, row.flow_run, Crashed(message=decision.why))
    submit_attempt(client, cluster, row.model_copy(update={"attempt": row.attempt + 1, "flow_run": ""}))
    return True


def _end(client: SyncPrefectClient, flow_run: str, state: State[Any]) -> None:
    """Marks a flow run as over, so that no worker begins it and Prefect shows what happened."""
    with suppress(ObjectNotFound):
        known = client.read_flow_run(UUID(flow_run))
        if known.state is None or not known.state.is_final():
            client.set_flow_run_state(UUID(flow_run), state, force=True)


def _states(client: SyncPrefectClient, flow_runs: Iterable[str]) -> dict[str, FlowState]:
    ids, found = sorted(flow_runs), dict[str, FlowState]()
    for first in range(0, len(ids), PAGE):
        page = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(each) for each in ids[first : first + PAGE]]))
        for each in client.read_flow_runs(flow_run_filter=page, limit=PAGE):
            found[str(each.id)] = state_of(each)
    return found


def state_of(flow_run: FlowRun) -> FlowState:
    """Returns the state of a flow run."""
    state = flow_run.state
    if state is None:
        return FlowState("PENDING", 0.0)
    age_s = (datetime.now(UTC) - state.timestamp).total_seconds()
    return FlowState(state.type.value, age_s, OF_PREFECT.sub("", state.message or ""))
