"""Starts runs again whose attempt has ended without a result: `a2rl suite reconcile`, every 30 s from a timer.

Whether somebody works on a run is decided by its claim alone, never by Prefect. Each decision is made by one statement
of the claims, so several reconcilers may run at once.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelled, Crashed

from a2rl.cluster.claims import RunRow
from a2rl.cluster.holding import Cluster
from flows.submission import prefect_client, submit_attempt

MOST_ATTEMPTS = 3
"""How often a run is taken before it is given up."""
PAUSE_S = 30.0
"""How long a run that no machine could take rests before it is offered again. Each further pause is twice as long..."""
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
        row: What the claims know about it.
        state: The state of its flow run; None if there is none.
        most: How often a run is taken before it is given up.
    """
    if row.done or row.live:
        return Decision("wait")
    if not row.flow_run:
        return Decision("submit", "it was registered but not submitted")
    if state is not None and state.type == "CANCELLED":
        return Decision("close", "cancelled")
    if _is_resting(row, state) or not (why := _why_it_is_over(row, state)):
        return Decision("wait")
    if row.epoch >= most:
        return Decision("close", f"failed: given up after {row.epoch} attempts: {row.outcome or why}")
    return Decision("again", why)


def _is_resting(row: RunRow, state: FlowState | None) -> bool:
    """Returns whether it is too early for the next attempt. A run whose machine died must not wait."""
    refused = row.attempt - row.epoch
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
    """Looks at all open runs once, and starts again or closes those that nobody works on.

    Returns:
        What was done, by run.
    """
    rows = [row for row in cluster.claims.rows(suite) if row.pool and not row.done and not row.live]
    acted: dict[str, Decision] = {}
    with prefect_client() as client:
        states = _states(client, {row.flow_run for row in rows if row.flow_run})
        for row in rows:
            decision = decide(row, states.get(row.flow_run), most)
            if decision.act != "wait" and _act(client, cluster, row, decision):
                acted[row.run_id] = decision
    return acted


def cancel(cluster: Cluster, suite: str) -> list[str]:
    """Closes all open runs of a suite: whoever works on one ends its agent within seconds. Returns their ids."""
    rows = [row for row in cluster.claims.rows(suite) if not row.done]
    for row in rows:
        cluster.claims.close(row.run_id, "cancelled")
    with prefect_client() as client:
        for row in rows:
            if row.flow_run and not row.live:
                _set_state(client, row.flow_run, is_cancelled=True, why="the suite was cancelled")
    return [row.run_id for row in rows]


def _act(client: SyncPrefectClient, cluster: Cluster, row: RunRow, decision: Decision) -> bool:
    if decision.act == "submit":
        submit_attempt(client, cluster, row)
        return True
    if decision.act == "close":
        cluster.claims.close(row.run_id, decision.why)
        return True
    if not cluster.claims.next_attempt(row.run_id, row.attempt, decision.why):
        return False  # somebody has taken the run, or another reconciler was faster
    _set_state(client, row.flow_run, is_cancelled=False, why=decision.why)
    submit_attempt(client, cluster, row.model_copy(update={"attempt": row.attempt + 1, "flow_run": ""}))
    return True


def _set_state(client: SyncPrefectClient, flow_run: str, *, is_cancelled: bool, why: str) -> None:
    """Marks a flow run as over, so that no worker begins it and Prefect shows what happened."""
    try:
        known = client.read_flow_run(UUID(flow_run))
        if known.state is None or not known.state.is_final():
            state: State[object] = Cancelled(message=why) if is_cancelled else Crashed(message=why)
            client.set_flow_run_state(UUID(flow_run), state, force=True)
    except ObjectNotFound:
        return


def _states(client: SyncPrefectClient, flow_runs: Iterable[str]) -> dict[str, FlowState]:
    ids, found = sorted(flow_runs), dict[str, FlowState]()
    for first in range(0, len(ids), PAGE):
        page = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(each) for each in ids[first : first + PAGE]]))
        for flow_run in client.read_flow_runs(flow_run_filter=page, limit=PAGE):
            found[str(flow_run.id)] = state_of(flow_run)
    return found


def state_of(flow_run: FlowRun) -> FlowState:
    """Returns the state of a flow run."""
    state = flow_run.state
    if state is None:
        return FlowState("PENDING", 0.0)
    age_s = (datetime.now(UTC) - state.timestamp).total_seconds()
    return FlowState(state.type.value, age_s, OF_PREFECT.sub("", state.message or ""))
