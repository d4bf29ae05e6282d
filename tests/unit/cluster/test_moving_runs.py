"""A run that is copied to a store and goes on in another checkout."""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import find_agent
from a2rl.anchor.signatures import read_signatures
from a2rl.anchor.signing import Signer, sign_heads
from a2rl.cluster.claims import Claim, ClaimLostError, ClaimTakenError, Lease, RunRow
from a2rl.cluster.copies import read_manifest, read_spec, write_spec
from a2rl.cluster.file_claims import FileClaims
from a2rl.cluster.holding import Cluster, held, new_run
from a2rl.cluster.replica import STATE_EVERY_S, Replica, progress_of
from a2rl.cluster.restore import bring_up_to_date
from a2rl.config.provision import provision_of
from a2rl.contamination.check import text_hits
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import write_model
from a2rl.core.processes import STOP
from a2rl.core.settings import Settings
from a2rl.execution.attempt import close_lost_attempt
from a2rl.grading.service import GradingService
from a2rl.judge.account import Account
from a2rl.recording.trajectory import keep_summary, read_summary
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, SubmissionAccepted
from a2rl.run.failure import forget_failure, mark_refused
from a2rl.run.names import stored_entries
from a2rl.run.owner import is_made_here
from a2rl.validity.checks import RunEvidence
from stages.setup import _Inputs, setup
from tests.run_maker import FakePool, checkout, end_agent, submit_checkpoint
from tests.signing_key import make_key
from tests.small_model import trained_copy


@pytest.fixture
def store(tmp_path: Path, settings: Settings) -> Cluster:
    settings.environ["A2RL_STORE"] = f"file://{tmp_path}/store"
    return Cluster.needed(settings)


@pytest.fixture
def other(tmp_path: Path, settings: Settings, store: Cluster) -> Settings:
    """Another checkout with the same store."""
    folder = tmp_path / "elsewhere" / "checkout"
    folder.mkdir(parents=True)
    made = checkout(folder)
    made.environ["A2RL_STORE"] = settings.environ["A2RL_STORE"]
    return made


def submit(run: RunDir, base_model: Path) -> SubmissionAccepted:
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    (run.workspace / "code" / "train.py").write_text("print('hello')\n")
    service = GradingService(run, FakePool())  # type: ignore[arg-type]
    return submit_checkpoint(service, "output/v1").outcome.result(60).accepted


def copy_by_hand(run: RunDir, cluster: Cluster, owner: str = "first:1:a") -> Replica:
    claim = cluster.claims.take(new_run(run.spec), owner)
    assert bring_up_to_date(run, cluster.store, claim) is None
    lease = Lease(cluster.claims, claim, lambda: None, lambda: None)
    return Replica(run, cluster.store, cluster.claims, claim, None, lease)


def abandon(cluster: Cluster, run: RunDir) -> None:
    """Ends the claim as if its machine had died."""
    assert isinstance(cluster.claims, FileClaims)
    cluster.claims._locks.pop(run.id).release()


def refuse(run: RunDir, error: UsageError) -> None:
    forget_failure(run)
    mark_refused(run, error)
    raise error


def die_hours_ago(run: RunDir) -> None:
    """Leaves the clock as a pipeline does that was killed two hours ago, when 60 seconds were used."""
    used = {"consumed_s": 60.0, "running_since": time.monotonic() - 7200.0}
    write_model(run.clock.path, run.clock.read_state().model_copy(update=used))


def test_a_run_goes_on_in_another_checkout_with_its_whole_state(
    run: RunDir, store: Cluster, other: Settings, base_model: Path
) -> None:
    accepted = submit(run, base_model)
    Account(run.account).add("judgement", "x", dollars=0.5)
    (run.workspace / "summary.md").write_text("It went well.")
    keep_summary(run)
    run.clock.heartbeat()
    copy_by_hand(run, store).push(logs=True)
    entries, elapsed_s = run.ledger.rows(), run.clock.elapsed_s()
    abandon(store, run)
    moved = RunDir(other.runs / run.id)
    with held(moved, other) as tenure:
        assert not tenure.is_lost
        assert moved.ledger.rows() == entries
        assert (moved.checkpoint(accepted.weights_digest) / "model.safetensors").exists()
        assert moved.items(accepted.weights_digest, "public").exists()
        assert (moved.code / "train.py").read_text() == "print('hello')\n"
        assert Account(moved.account).use().dollars == pytest.approx(0.5)
        assert moved.clock.elapsed_s() == pytest.approx(elapsed_s, abs=2.0)
        assert moved.clock.read_state().running_since is None
        assert read_summary(moved) == read_summary(run) != read_summary(RunDir(other.root))
        close_lost_attempt(moved)
        assert moved.clock.elapsed_s() == pytest.approx(elapsed_s, abs=2.0)
    [ended] = moved.ledger.events(AgentEnded)
    assert ended.reason == "lost"


@pytest.mark.parametrize(("started", "ended"), [(False, False), (True, False), (True, True)])
def test_what_a_run_that_moved_has_not_brought_is_noted(
    new_run: Callable[..., RunDir],
    base_model: Path,
    store: Cluster,
    other: Settings,
    monkeypatch: pytest.MonkeyPatch,
    started: bool,
    ended: bool,
) -> None:
    """What the agent was given is there again, and does not count as what it wrote."""
    run = new_run(started=started)
    if ended:
        end_agent(run)
    given = "".join(f'{{"question": "What is {n} + {n}?"}}\n' for n in range(8))  # which some eval items are, too
    run.agent_log.write_text(given)
    copy_by_hand(run, store).push(logs=True)
    abandon(store, run)
    data = shutil.copytree(run.checkout / "data-of" / run.id, other.root / "data-of" / run.id)
    (data / "visible").mkdir()
    (data / "visible" / "train.jsonl").write_text(given)

    @contextmanager
    def found_here(run: RunDir, settings: Settings) -> Iterator[_Inputs]:
        yield _Inputs(provision_of(run.spec, find_agent("noop", settings.root), settings), base_model, data, data)

    monkeypatch.setattr("stages.setup._inputs_of", found_here)
    moved = RunDir(other.runs / run.id)
    with held(moved, other):
        setup(moved, other)
        assert setup(moved, other).workspace_made_anew == started  # also the second time
        found = list(text_hits(RunEvidence(moved, other)))
    assert [(each.kind, each.level) for each in found] == [("not-checked", "note")] * started


def test_the_time_that_the_owner_reported_last_is_charged(run: RunDir, store: Cluster, other: Settings) -> None:
    copy_by_hand(run, store).push()
    claim = Claim(run.id, "first:1:a", 1, RunRow(run_id=run.id))
    store.claims.renew(claim, progress_of(run, claim).model_copy(update={"elapsed_s": 77.0}))
    abandon(store, run)
    moved = RunDir(other.runs / run.id)
    with held(moved, other):
        assert moved.clock.elapsed_s() == 77.0


def test_time_in_which_nobody_worked_is_not_charged(
    run: RunDir, settings: Settings, store: Cluster, other: Settings
) -> None:
    die_hours_ago(run)
    with held(run, settings):
        pass  # it is copied before the lost attempt is closed
    moved = RunDir(other.runs / run.id)
    with held(moved, other):
        assert moved.clock.elapsed_s() == 60.0


def test_a_copied_run_does_not_go_on_without_its_store(run: RunDir, store: Cluster, settings: Settings) -> None:
    with held(run, settings):
        pass
    del settings.environ["A2RL_STORE"]
    with pytest.raises(UsageError, match="set A2RL_STORE"), held(run, settings):
        pass


def test_a_run_from_the_store_counts_as_made_where_it_went_on(run: RunDir, store: Cluster, other: Settings) -> None:
    """So `a2rl report` signs it there, too, and what MLflow lacks is mirrored later."""
    write_spec(store.store, run.spec)
    moved = RunDir(other.runs / run.id)
    with held(moved, other):
        assert is_made_here(moved, other)


def test_a_folder_with_other_settings_than_the_stores_is_refused(run: RunDir, store: Cluster, other: Settings) -> None:
    write_spec(store.store, run.spec)
    sent = RunDir.create(other.runs, run.spec.model_copy(update={"base_url": "https://collects.example/v1"}))
    with pytest.raises(UsageError, match="has other settings in the store"), held(sent, other):
        pass
    assert read_spec(store.store, run.id) == run.spec
    assert not is_made_here(sent, other)


def test_what_an_agent_has_spent_is_copied_with_its_clock(
    run: RunDir, store: Cluster, other: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Small logs do not wait until large ones would be copied."""
    replica, spent = copy_by_hand(run, store), run.logs / "llm.jsonl"
    spent.write_text("$1\n")
    replica.look()
    spent.write_text("$1\n$2\n")
    later = time.monotonic() + STATE_EVERY_S
    with monkeypatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: later)
        replica.look()
    abandon(store, run)
    with held(RunDir(other.runs / run.id), other):
        assert (other.runs / run.id / "logs" / "llm.jsonl").read_text() == "$1\n$2\n"


def test_a_signature_is_copied_as_soon_as_it_exists(run: RunDir, store: Cluster, other: Settings) -> None:
    """After 15 minutes, no other machine could make up for it."""
    make_key(other.root / "key")
    replica, signer = copy_by_hand(run, store), Signer(other.root / "key")
    replica.look()
    sign_heads(run, signer)
    replica.look()
    abandon(store, run)
    moved = RunDir(other.runs / run.id)
    with held(moved, other):
        assert [each.seq for each in read_signatures(moved.root)] == [len(moved.ledger.rows())]


def test_a_stray_file_in_a_run_is_not_copied(run: RunDir, store: Cluster, other: Settings) -> None:
    (run.root / "notes.txt").write_text("mine")
    copy_by_hand(run, store).push()
    abandon(store, run)
    with held(RunDir(other.runs / run.id), other):
        assert not (other.runs / run.id / "notes.txt").exists()


def test_the_stage_under_way_is_told(run: RunDir) -> None:
    told, claim = [], Claim(run.id, "first:1:a", 1, RunRow(run_id=run.id))
    for stage in ("baseline", "setup"):
        told.append(progress_of(run, claim).stage)
        run.record_path(stage).unlink()
    assert [*told, progress_of(run, claim).stage] == ["execute", "baseline", "setup"]


def test_a_run_that_could_not_be_set_up_was_not_begun(
    run: RunDir, settings: Settings, other: Settings, store: Cluster
) -> None:
    for at in (settings, settings, other):
        found, missing = RunDir(at.runs / run.id), UsageError("the model is gated")
        with pytest.raises(UsageError, match="gated"), held(found, at):
            refuse(found, missing)
    for _ in range(2):
        with held(run, settings):
            forget_failure(run)
    row = store.claims.row(run.id)
    assert row is not None
    assert (row.epoch, row.attempts) == (5, 2)


def test_while_one_checkout_works_the_other_is_refused(
    run: RunDir, settings: Settings, other: Settings, store: Cluster
) -> None:
    """It leaves nothing behind."""
    with held(run, settings), pytest.raises(ClaimTakenError), held(RunDir(other.runs / run.id), other):
        pass
    assert not (other.runs / run.id).exists()


def test_the_first_checkout_takes_the_newer_state(
    run: RunDir, settings: Settings, other: Settings, store: Cluster
) -> None:
    """It sets its own aside."""
    with held(run, settings):
        pass
    shutil.copytree(settings.root / "data-of", other.root / "data-of")
    moved = RunDir(other.runs / run.id)
    with held(moved, other):
        moved.ledger.append(AgentEnded(attempt=1, elapsed_s=1.0, reason="lost", exit_code=None))
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="crashed", exit_code=1))  # what a zombie wrote here
    with held(run, settings):
        assert [event.reason for event in run.ledger.events(AgentEnded)] == ["lost"]
        assert run.ledger.verify() == moved.ledger.verify()
    assert list((run.root / ".replaced").glob("*/ledger.db"))


def test_a_checkout_ahead_of_its_copy_keeps_its_own_state(run: RunDir, settings: Settings, store: Cluster) -> None:
    with held(run, settings):
        pass
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="crashed", exit_code=1))
    with held(run, settings):
        assert [event.reason for event in run.ledger.events(AgentEnded)] == ["crashed"]
    row = store.claims.row(run.id)
    assert row is not None
    assert row.seq == len(run.ledger.rows())


def test_who_has_lost_the_run_copies_nothing_more(run: RunDir, other: Settings, store: Cluster) -> None:
    old = copy_by_hand(run, store)
    old.push()
    abandon(store, run)
    with held(RunDir(other.runs / run.id), other):
        pass
    before = store.claims.row(run.id)
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="crashed", exit_code=1))
    with pytest.raises(ClaimLostError):
        old.push()
    after = store.claims.row(run.id)
    assert before is not None
    assert after is not None
    assert (after.manifest, after.seq) == (before.manifest, before.seq)
    assert len(stored_entries(run)) < len(run.ledger.rows())


def test_an_agent_is_told_only_what_is_stored(run: RunDir, store: Cluster, base_model: Path) -> None:
    replica = copy_by_hand(run, store)
    submit(run, base_model)
    service = GradingService(run, FakePool())  # type: ignore[arg-type]
    assert stored_entries(run) == []
    assert service.status(1) is None
    replica.push()
    status = service.status(1)
    assert status is not None
    assert status.state == "graded"


def test_a_checkpoint_is_copied_once_and_removed_when_pruned(
    run: RunDir, store: Cluster, base_model: Path, tmp_path: Path
) -> None:
    accepted = submit(run, base_model)
    replica = copy_by_hand(run, store)
    replica.push()
    copied = tmp_path / "store" / "runs" / run.id / "checkpoints" / accepted.weights_digest[:16]
    written = (copied / "model.safetensors").stat().st_mtime_ns
    replica.push()
    assert (copied / "model.safetensors").stat().st_mtime_ns == written
    shutil.rmtree(run.checkpoint(accepted.weights_digest))
    replica.push()
    assert not list(copied.glob("*"))


def test_a_store_that_fails_leaves_the_copy_before_valid(
    run: RunDir, store: Cluster, tmp_path: Path, other: Settings
) -> None:
    replica = copy_by_hand(run, store)
    replica.push()
    row = store.claims.row(run.id)
    assert row is not None
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=9.0, reason="crashed", exit_code=1))
    blobs = tmp_path / "store" / "runs" / run.id / "ledger"
    moved = blobs.rename(blobs.with_name("moved"))
    blobs.write_text("a file is in the way")
    with pytest.raises(InfrastructureError, match="A2RL_STORE"):
        replica.push()
    blobs.unlink()
    moved.rename(blobs)
    assert read_manifest(store.store, row.manifest).seq == row.seq
    replica.push()
    after = store.claims.row(run.id)
    assert after is not None
    assert after.seq == row.seq + 1


def test_a_database_that_cannot_be_copied_is_a_machine_problem(
    run: RunDir, store: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.cluster.replica.LAST_COPY_S", 0.0)
    replica = copy_by_hand(run, store)
    broken = run.root / "broken-account.db"
    broken.write_text("no database at all, but long enough to be read as one" * 100)
    with pytest.raises(InfrastructureError, match=r"resume .* copies it"):
        replica.finish()
    broken.unlink()
    replica.finish()


def test_a_user_who_stops_a_run_waits_no_longer_for_the_store(
    run: RunDir, store: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    replica, tries = copy_by_hand(run, store), list[bool]()

    def fail(logs: bool) -> None:
        tries.append(logs)
        if len(tries) == 2:
            STOP.set()
        assert len(tries) < 5, "it goes on"
        raise InfrastructureError("the store is away")

    monkeypatch.setattr(replica, "push", fail)
    monkeypatch.setattr("a2rl.cluster.replica.STOPPED_COPY_S", 0.0)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    try:
        with pytest.raises(InfrastructureError, match="the store is away"):
            replica.finish()
    finally:
        STOP.clear()
    assert len(tries) == 2


def test_a_checkout_is_charged_for_what_another_one_used(run: RunDir, settings: Settings, store: Cluster) -> None:
    """It goes on from its own state all the same."""
    die_hours_ago(run)
    copy_by_hand(run, store).push()
    abandon(store, run)
    claim = store.claims.take(new_run(run.spec), "second:2:b")  # it copies nothing, but tells its time
    store.claims.renew(claim, progress_of(run, claim).model_copy(update={"elapsed_s": 77.0}))
    abandon(store, run)
    with held(run, settings):
        assert run.clock.elapsed_s() == 77.0


def test_a_copy_with_a_changed_entry_is_refused(run: RunDir, store: Cluster, tmp_path: Path, other: Settings) -> None:
    copy_by_hand(run, store).push()
    abandon(store, run)
    entry = tmp_path / "store" / "runs" / run.id / "ledger" / "00000001-000001.json"
    entry.write_text(entry.read_text().replace("spec_digest", "spec_digost"))
    with pytest.raises(Exception, match="changed after it was written"), held(RunDir(other.runs / run.id), other):
        pass


def test_a_submitted_run_begins_anywhere(
    new_run: Callable[..., RunDir], settings: Settings, other: Settings, store: Cluster
) -> None:
    spec = new_run(run_id="gsm8k-noop-2").spec
    write_spec(store.store, spec)
    fresh = RunDir(other.runs / spec.run_id)
    with held(fresh, other):
        assert fresh.spec == spec


def test_a_run_that_nobody_knows_is_refused(other: Settings) -> None:
    with pytest.raises(UsageError, match="no run"), held(RunDir(other.runs / "gsm8k-x-1"), other):
        pass
    assert not (other.runs / "gsm8k-x-1").exists()


@pytest.mark.parametrize(
    ("environ", "problem"),
    [
        ({"A2RL_CLAIMS": "postgresql://h/d"}, "A2RL_STORE is not"),
        ({"A2RL_STORE": "s3://bucket"}, "must name a Postgres database"),
        ({"A2RL_STORE": "/srv/a2rl"}, "write file:///folder or s3"),
        ({"A2RL_STORE": "file:/srv/a2rl"}, "write file:///folder or s3"),
        ({"A2RL_STORE": "file://srv/a2rl"}, "write file:///folder or s3"),
        ({"A2RL_STORE": "file:///x", "A2RL_CLAIMS": "mysql://h"}, "no Postgres database"),
    ],
)
def test_settings_that_do_not_fit_together_are_refused(
    settings: Settings, environ: dict[str, str], problem: str
) -> None:
    settings.environ.update(environ)
    with pytest.raises(UsageError, match=problem):
        Cluster.of(settings)


def test_without_a_store_a_run_is_held_by_its_lock_alone(run: RunDir, settings: Settings) -> None:
    with held(run, settings) as tenure:
        assert not tenure.is_lost
    assert not (run.root / "stored.json").exists()


def test_a_run_that_was_copied_before_it_had_a_clock_goes_on(run: RunDir, settings: Settings, store: Cluster) -> None:
    run.clock.path.unlink()
    for _ in range(2):
        with held(run, settings) as tenure:
            assert not tenure.is_lost
