"""What the reconciler decides about a run, from its claim and the state of its flow run."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun
from prefect.exceptions import ObjectNotFound
from prefect.states import Failed

from a2rl.cluster.claims import REOPENED, Progress, RunRow
from a2rl.cluster.holding import Cluster, new_run
from a2rl.cluster.status import state_of_row, status_of
from a2rl.core.settings import Settings
from flows import submission
from flows.submission import Decision, FlowState, decide, reconcile, state_of
from tests.run_maker import spec

OPEN = RunRow(run_id="r", pool="p", flow_run="f", epoch=1, beat_s=200.0, owner="host-a:1:x")


@pytest.mark.parametrize(
    ("row", "state", "act"),
    [
        (OPEN.model_copy(update={"done": True}), FlowState("RUNNING", 900.0), "wait"),
        (OPEN.model_copy(update={"live": True}), FlowState("CRASHED", 900.0), "wait"),
        (OPEN.model_copy(update={"flow_run": ""}), None, "submit"),
        (OPEN, None, "again"),
        (OPEN, FlowState("SCHEDULED", 9000.0), "wait"),
        (OPEN, FlowState("PENDING", 30.0), "wait"),
        (OPEN, FlowState("PENDING", 130.0), "again"),
        (OPEN, FlowState("RUNNING", 130.0), "again"),
        (OPEN.model_copy(update={"beat_s": 5.0}), FlowState("RUNNING", 500.0), "wait"),
        (OPEN, FlowState("CRASHED", 1.0), "again"),
        (OPEN, FlowState("COMPLETED", 1.0), "again"),
        (OPEN, FlowState("CANCELLED", 1.0), "close"),
        (OPEN.model_copy(update={"epoch": 3}), FlowState("FAILED", 1.0), "close"),
        (OPEN.model_copy(update={"epoch": 3, "outcome": "refused: no key"}), FlowState("FAILED", 20.0), "wait"),
        (OPEN.model_copy(update={"epoch": 3, "outcome": "refused: no key"}), FlowState("FAILED", 40.0), "again"),
        (OPEN.model_copy(update={"epoch": 3, "attempt": 4, "outcome": REOPENED}), FlowState("CRASHED", 1.0), "again"),
        (OPEN.model_copy(update={"epoch": 4, "attempt": 4, "outcome": ""}), FlowState("CRASHED", 1.0), "close"),
        (OPEN.model_copy(update={"epoch": 4, "progress": Progress(refused=3)}), FlowState("CRASHED", 1.0), "again"),
        (OPEN.model_copy(update={"epoch": 6, "progress": Progress(refused=3)}), FlowState("CRASHED", 1.0), "close"),
        (OPEN.model_copy(update={"epoch": 0}), FlowState("FAILED", 20.0), "wait"),
        (OPEN.model_copy(update={"epoch": 0}), FlowState("FAILED", 40.0), "again"),
        (OPEN.model_copy(update={"attempt": 4}), FlowState("FAILED", 100.0), "wait"),
        (OPEN.model_copy(update={"attempt": 4}), FlowState("CRASHED", 1.0), "again"),
        (OPEN.model_copy(update={"epoch": 0, "attempt": 5000}), FlowState("FAILED", 590.0), "wait"),
        (OPEN.model_copy(update={"epoch": 0, "attempt": 5000}), FlowState("FAILED", 610.0), "again"),
    ],
)
def test_a_run_is_restarted_only_if_nobody_can_be_working_on_it(row: RunRow, state: FlowState | None, act: str) -> None:
    assert decide(row, state).act == act


def test_a_run_that_is_given_up_says_why() -> None:
    refused, outcome = Progress(refused=2), "failed in baseline: the disk is full"
    row = OPEN.model_copy(update={"epoch": 5, "progress": refused, "outcome": outcome})
    assert decide(row, FlowState("FAILED", 1.0)) == Decision(
        "close", "failed: given up after 3 attempts: failed in baseline: the disk is full"
    )


def test_a_result_that_could_not_be_judged_has_a_way_on() -> None:
    outcome = "validity: no GPU answers; the result stands, and `a2rl resume r` finishes the run"
    row = OPEN.model_copy(update={"epoch": 3, "progress": Progress(verdict="improved"), "outcome": outcome})
    assert decide(row, FlowState("FAILED", 1.0)) == Decision(
        "close",
        f"failed: given up after 3 attempts to judge its result; `a2rl suite reopen r` allows one more: {outcome}",
    )


def test_why_a_flow_run_failed_is_told_in_our_words_alone() -> None:
    message = "Flow run encountered an exception: NotReadyError: host-a took nothing: disk: it is full"
    told = state_of(FlowRun(flow_id=uuid4(), state=Failed(message=message)))
    assert (told.type, told.message) == ("FAILED", "host-a took nothing: disk: it is full")


def test_the_state_of_a_suite_adds_up() -> None:
    used = Progress(budget_s=100.0, elapsed_s=40.0, judge_usd=0.5, agent_usd=1.0)
    rows = [
        OPEN.model_copy(update={"done": True, "outcome": "improved", "progress": used}),
        OPEN.model_copy(update={"done": True, "outcome": "failed: given up"}),
        OPEN.model_copy(update={"live": True, "beat_s": 7.0, "progress": used}),
        OPEN.model_copy(update={"epoch": 0, "owner": ""}),
        OPEN.model_copy(update={"progress": Progress(refused=1)}),
        OPEN,
    ]
    assert [state_of_row(row) for row in rows] == ["done", "failed", "running", "waiting", "waiting", "stuck"]
    found = status_of(rows)
    assert (found.done, found.failed, found.running, found.waiting, found.stuck) == (1, 1, 1, 2, 1)
    assert (found.used_s, found.judge_usd, found.agent_usd) == (80.0, 1.0, 2.0)
    assert (found.left_s, found.oldest_beat_s) == (60.0, 7.0)


class _Prefect:
    """A server that has lost the deployment of one pool."""

    def read_deployment_by_name(self, name: str) -> SimpleNamespace:
        if name.endswith("-gone"):
            raise ObjectNotFound(LookupError(name))
        return SimpleNamespace(id=uuid4())

    def create_flow_run_from_deployment(self, *_: object, **__: object) -> SimpleNamespace:
        return SimpleNamespace(id=uuid4())


def test_a_lost_deployment_does_not_stop_other_pools(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def client() -> Iterator[_Prefect]:
        yield _Prefect()

    monkeypatch.setattr(submission, "prefect_client", client)
    settings.environ["A2RL_STORE"] = f"file://{tmp_path}/store"
    cluster = Cluster.needed(settings)
    cluster.claims.register([new_run(spec(run_id=f"run-{pool}"), pool) for pool in ("gone", "here")])
    acted = reconcile(cluster)
    assert {run: decision.act for run, decision in acted.items()} == {"run-gone": "wait", "run-here": "submit"}
    assert "`a2rl bench --pool gone` makes it" in acted["run-gone"].why
    assert [bool(row.flow_run) for row in cluster.claims.rows()] == [False, True]
