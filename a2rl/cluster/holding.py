"""Holds a run while this process works on it: its lock here, and where a store is configured its claim and its copy."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from a2rl.cluster.claims import (
    Claim,
    ClaimLostError,
    Claims,
    Lease,
    NewRun,
    awake_and_asleep,
    lost,
    taken,
    this_owner,
)
from a2rl.cluster.copies import ObjectStore, read_spec
from a2rl.cluster.file_claims import FileClaims
from a2rl.cluster.postgres_claims import PostgresClaims
from a2rl.cluster.replica import Replica, progress_of
from a2rl.cluster.restore import bring_up_to_date
from a2rl.core.errors import A2rlError, InterruptedByUserError, UsageError
from a2rl.core.processes import STOP, stopped_by
from a2rl.core.secrets import register_secrets
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.failure import is_unfinished, refusal
from a2rl.run.names import FILE, read_stored
from a2rl.run.owner import is_made_here, locked, owned, trust
from a2rl.run.records import GradeRecord
from a2rl.run.spec import RunSpec


@dataclass(frozen=True)
class Cluster:
    """What the runs of several checkouts share."""

    store: ObjectStore
    claims: Claims

    @classmethod
    def of(cls, settings: Settings) -> "Cluster | None":
        """Returns what A2RL_STORE and A2RL_CLAIMS name; None if neither is set.

        Raises:
            UsageError: They do not fit together.
        """
        if not settings.store:
            if settings.claims:
                raise UsageError("A2RL_CLAIMS is set but A2RL_STORE is not: a run that moves needs both")
            return None
        store = ObjectStore(settings.store)
        if settings.claims:
            if not settings.claims.startswith(("postgresql://", "postgres://")):
                raise UsageError("A2RL_CLAIMS is no Postgres database: write postgresql://user:password@host/database")
            register_secrets(_passwords(settings.claims))
            return cls(store, PostgresClaims(settings.claims))
        if (folder := store.local_folder) is None:
            raise UsageError(
                f"A2RL_STORE={settings.store} is shared by machines, so A2RL_CLAIMS must name a Postgres database"
            )
        return cls(store, FileClaims(folder / "claims"))

    @classmethod
    def needed(cls, settings: Settings) -> "Cluster":
        """Returns the same, for commands that make no sense without it.

        Raises:
            UsageError: Nothing is configured.
        """
        if (found := cls.of(settings)) is None:
            raise UsageError("no store is configured: set A2RL_STORE (and A2RL_CLAIMS); see docs/cluster.md")
        return found


def _passwords(url: str) -> dict[str, str]:
    """Returns the passwords in the URL of a database, as they are written there and as they are meant.

    Raises:
        UsageError: It is not clear where its parts end. Postgres ends them elsewhere than we do.
    """
    try:
        parts = urlsplit(url)
        is_clear = "#" not in url and parts.netloc.count("@") <= 1 and "@" not in parts.path + parts.query
    except ValueError:
        is_clear = False
    if not is_clear:
        raise UsageError(
            "A2RL_CLAIMS cannot be read: in a name or a password, write %40 for @, %23 for #, %2F for /, %3F for ?, "
            "%5B for [ and %5D for ]"
        )
    query = (each.partition("=") for each in parts.query.split("&"))
    found = [parts.password or "", *(value for name, _, value in query if name in {"password", "sslpassword"})]
    forms = dict.fromkeys(form for each in found for form in (each, unquote(each)))
    return {f"password {number} of A2RL_CLAIMS": form for number, form in enumerate(forms, 1)}


@dataclass(frozen=True)
class Tenure:
    """The time in which this process works on a run."""

    lease: Lease | None = None

    @property
    def is_lost(self) -> bool:
        """Whether another process has taken the run over, so that nothing of it may be recorded here."""
        return self.lease is not None and self.lease.is_lost


@contextmanager
def held(
    run: RunDir,
    settings: Settings,
    on_lost: Callable[[], None] = lambda: None,
    cluster: Cluster | None = None,
    on_stored: Callable[[], object] | None = None,
) -> Iterator[Tenure]:
    """Holds a run for this process. With a store, the run is first restored from it, if another machine was further.

    If the claim is lost, what this thread does is stopped (`check_stop`); other runs of this process go on.

    Args:
        run: The run; with a store, its directory need not exist yet.
        on_lost: Called in another thread when the claim is lost, after that.
        cluster: What runs share, if not what the settings name.
        on_stored: Called once the end of the run is safe in the store. What it adds to the run is copied, too.

    Raises:
        UsageError: Another process holds the run, or there is no such run.
        ClaimLostError: Another process has taken the run over, or it was closed.
        InfrastructureError: The store, the claims or this machine failed.
    """
    if (cluster := cluster or Cluster.of(settings)) is None:
        _require_not_copied(run)
        with owned(run):
            yield Tenure()
        return
    row = cluster.claims.row(run.id)
    if row is not None and (row.live or row.done):
        raise taken(row)
    stored = read_spec(cluster.store, run.id)
    spec = stored if stored and not (run.root / "spec.json").exists() else run.load_spec()
    if stored not in (None, spec):
        raise UsageError(f"run {run.id} has other settings in the store: move {run.root} away, and resume the run")
    run.root.mkdir(parents=True, exist_ok=True)
    with locked(run):
        since = awake_and_asleep()
        claim = cluster.claims.take(new_run(spec), this_owner())
        with _claimed(run, cluster, claim, on_lost, on_stored, since) as lease:
            if not is_made_here(run, settings):  # a worker's checkout may have it only from the store
                trust(run, settings)
            yield Tenure(lease)


def _require_not_copied(run: RunDir) -> None:
    """Refuses a run that a store has a copy of, where none is named: its agent would wait for what it submits to be
    safe there, and another machine might work on it as well."""
    if read_stored(run) is not None:
        raise UsageError(
            f"run {run.id} is copied to a store: set A2RL_STORE, and A2RL_CLAIMS, as when it was begun; or, if no "
            f"machine will go on from there, remove {run.root / FILE}"
        )


@contextmanager
def _claimed(
    run: RunDir,
    cluster: Cluster,
    claim: Claim,
    on_lost: Callable[[], None],
    on_stored: Callable[[], object] | None,
    since: float,
) -> Iterator[Lease]:
    """Restores, copies and renews while the caller works; at the end it says how far the run has come.

    Args:
        since: When taking the claim began.
    """
    outcome, done, stop = "interrupted", False, threading.Event()

    def give_up() -> None:
        stop.set()
        on_lost()

    try:
        with stopped_by(stop), Lease(cluster.claims, claim, lambda: progress_of(run, claim), give_up, since) as lease:
            manifest = bring_up_to_date(run, cluster.store, claim)
            replica = Replica(run, cluster.store, cluster.claims, claim, manifest, lease)
            try:
                with replica:
                    yield lease
            finally:
                if not lease.is_lost:
                    replica.finish()
                    if on_stored is not None:
                        on_stored()
                        replica.finish()
            if lease.is_lost:
                raise lost(claim)
            outcome, done = outcome_of(run)
    except (ClaimLostError, InterruptedByUserError) as error:
        if stop.is_set() and not STOP.is_set():
            raise lost(claim) from error
        raise
    except A2rlError as error:
        outcome, done = outcome_of(run, str(error))
        raise
    finally:
        cluster.claims.release(claim, outcome, done)


def new_run(spec: RunSpec, pool: str = "") -> NewRun:
    """Returns what the claims know about a run from the beginning."""
    return NewRun(spec.run_id, spec.suite, spec.launch, pool, spec.budget_s)


REFUSED = "refused: "
"""How the outcome of a run begins whose setup failed for want of something: another machine may have it."""


def outcome_of(run: RunDir, problem: str = "") -> tuple[str, bool]:
    """Returns how a run stands, and whether nothing is left to do.

    Args:
        problem: Why its stages were left, or why its last state is not in the store.
    """
    if reason := refusal(run):
        return f"{REFUSED}{reason}", False
    graded = run.read("grade", GradeRecord)
    if graded is not None and graded.failed_stage is not None:
        return f"failed in {graded.failed_stage}: {graded.reason}", False
    if graded is not None and not problem and not is_unfinished(run):
        return graded.verdict, True
    return problem or "interrupted", False
