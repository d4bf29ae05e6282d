"""Claims in Postgres, for several machines: a row for each run, taken with a lease and fenced by its epoch.

All times are those of the database. A claim is taken by one statement, so that of two takers one wins. A commit locks
the row and checks the epoch in the transaction that names the new copy, so nobody who has lost a run can record
anything of it, however late its requests arrive. A connection may break while the answer to a COMMIT is on its way, so
each statement has the same effect when it is repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from a2rl.cluster.claims import LEASE_S, Claim, Commit, NewRun, Progress, RunRow, lost, taken
from a2rl.core.errors import InfrastructureError, UsageError, first_line

if TYPE_CHECKING:
    import psycopg

SCHEMA = """
CREATE TABLE IF NOT EXISTS a2rl_runs (
    run_id text PRIMARY KEY, suite text NOT NULL, launch text NOT NULL, pool text NOT NULL,
    number bigserial, created_at timestamptz NOT NULL DEFAULT now(),
    owner text NOT NULL DEFAULT '', epoch bigint NOT NULL DEFAULT 0,
    until timestamptz NOT NULL DEFAULT '-infinity', beat_at timestamptz,
    done boolean NOT NULL DEFAULT false, outcome text NOT NULL DEFAULT '',
    attempt int NOT NULL DEFAULT 1, flow_run text NOT NULL DEFAULT '',
    manifest text NOT NULL DEFAULT '', seq bigint NOT NULL DEFAULT 0, head text NOT NULL DEFAULT '',
    progress text NOT NULL DEFAULT '{}'
);
CREATE INDEX IF NOT EXISTS a2rl_runs_suite ON a2rl_runs (suite);
"""
SCHEMA_LOCK = 732_023
"""The number of the lock under which the table is made: two processes that make them at once would fail."""
COLUMNS = """run_id, suite, launch, pool, owner, epoch, done, outcome, attempt, flow_run, manifest, seq, head, progress,
    NOT done AND until > now() AS live, extract(epoch FROM now() - beat_at)::float AS beat_s,
    extract(epoch FROM now() - created_at)::float AS age_s"""
OPTIONS = {"connect_timeout": 5, "options": "-c statement_timeout=10s -c lock_timeout=5s", "tcp_user_timeout": 10_000}
PATIENCE_S = 60.0
"""How long a call outside of a running attempt waits for a database that is being restarted."""
T = TypeVar("T")


class PostgresClaims:
    """The rows of all runs in a Postgres database. Every call makes its own connection, so that a restart does no harm.

    Args:
        url: Such as `postgresql://a2rl:password@host/a2rl`.
        lease_s: For how long a claim holds without being renewed.
    """

    def __init__(self, url: str, lease_s: float = LEASE_S) -> None:
        self._url, self._lease_s = url, lease_s
        self._is_ready = False

    @property
    def lease_s(self) -> float:
        """For how long a claim holds without being renewed, in seconds."""
        return self._lease_s

    def register(self, runs: Sequence[NewRun]) -> None:
        """Adds runs; those that are known stay as they are."""

        def add(database: "psycopg.Connection[Any]") -> None:
            for run in runs:
                _insert(database, run)

        self._patiently(add)

    def take(self, run: NewRun, owner: str) -> Claim:
        """Takes a run, again if this owner has it. Raises ClaimTakenError if another one does, or if it is closed."""

        def take(database: "psycopg.Connection[Any]") -> Claim:
            _insert(database, run)
            before = _select(database, "WHERE run_id = %s FOR UPDATE", run.run_id)[0]
            row = database.execute(
                "UPDATE a2rl_runs SET owner = %s, epoch = epoch + 1, until = now() + %s * interval '1 second', "
                "beat_at = now(), outcome = '' WHERE run_id = %s AND NOT done AND (until < now() OR owner = %s) "
                "RETURNING epoch",
                (owner, self._lease_s, run.run_id, owner),
            ).fetchone()
            if row is None:
                raise taken(before)
            return Claim(run.run_id, owner, int(row[0]), before)

        return self._patiently(take)

    def renew(self, claim: Claim, progress: Progress | None) -> None:
        """Says that the owner lives. Raises ClaimLostError if the claim does not hold any more."""
        with self._transaction() as database:
            done = database.execute(
                "UPDATE a2rl_runs SET until = now() + %s * interval '1 second', beat_at = now(), "
                "progress = COALESCE(%s, progress) WHERE run_id = %s AND owner = %s AND epoch = %s AND NOT done",
                (self._lease_s, progress.model_dump_json() if progress else None, *_key(claim)),
            )
            if done.rowcount != 1:
                raise lost(claim)

    def commit(self, claim: Claim, commit: Commit) -> None:
        """Makes a copy the valid one. Raises ClaimLostError if the claim does not hold any more."""
        with self._transaction() as database:
            where = "WHERE run_id = %s AND owner = %s AND epoch = %s AND NOT done AND until > now() FOR UPDATE"
            held = _select(database, where, *_key(claim))
            if not held or not commit.continues(held[0]):
                raise lost(claim)
            seq, head = commit.entries[-1] if commit.entries else (held[0].seq, held[0].head)
            database.execute(
                "UPDATE a2rl_runs SET manifest = %s, seq = %s, head = %s, progress = %s WHERE run_id = %s",
                (commit.manifest, seq, head, commit.progress.model_dump_json(), claim.run_id),
            )

    def release(self, claim: Claim, outcome: str, done: bool) -> None:
        """Gives the run back; one that was closed meanwhile keeps its outcome."""
        self._patiently(
            lambda database: database.execute(
                "UPDATE a2rl_runs SET until = '-infinity', done = done OR %s, "
                "outcome = CASE WHEN done THEN outcome ELSE %s END "  # what closed it meanwhile remains
                "WHERE run_id = %s AND owner = %s AND epoch = %s",
                (done, outcome, *_key(claim)),
            )
        )

    def rows(self, suite: str | None = None) -> list[RunRow]:
        """Returns the rows of a suite or a launch, or all, in the order in which they were registered."""
        if suite is None:
            return self._patiently(lambda database: _select(database, "ORDER BY number"))
        where = "WHERE suite = %s OR launch = %s ORDER BY number"
        return self._patiently(lambda database: _select(database, where, suite, suite))

    def row(self, run_id: str) -> RunRow | None:
        """Returns the row of a run; None if it is unknown."""
        found = self._patiently(lambda database: _select(database, "WHERE run_id = %s", run_id))
        return found[0] if found else None

    def started(self, run_id: str, attempt: int, flow_run: str) -> None:
        """Notes which flow run is to work on an attempt."""
        self._change("UPDATE a2rl_runs SET flow_run = %s WHERE run_id = %s AND attempt = %s", flow_run, run_id, attempt)

    def declined(self, run_id: str, why: str) -> None:
        """Notes why a machine did not take a run that nobody holds."""
        self._change("UPDATE a2rl_runs SET outcome = %s WHERE run_id = %s AND NOT done AND until < now()", why, run_id)

    def next_attempt(self, run_id: str, attempt: int, why: str) -> bool:
        """Moves a run that nobody holds on from this attempt. Returns whether the next one has no flow run yet."""
        return bool(
            self._change(
                "UPDATE a2rl_runs SET attempt = %s, flow_run = '', outcome = %s WHERE run_id = %s "
                "AND (attempt = %s OR attempt = %s AND flow_run = '') AND NOT done AND until < now()",
                attempt + 1,
                why,
                run_id,
                attempt,
                attempt + 1,
            )
        )

    def close(self, run_id: str, outcome: str) -> None:
        """Marks a run as done; a live owner loses it at its next renewal."""
        self._change("UPDATE a2rl_runs SET done = true, outcome = %s WHERE run_id = %s", outcome, run_id)

    def give_up(self, run_id: str, attempt: int, outcome: str) -> bool:
        """Marks a run as done that nobody holds and that is still at this attempt. Returns whether it is."""
        statement = (
            "UPDATE a2rl_runs SET done = true, outcome = %s WHERE run_id = %s AND attempt = %s AND until < now()"
        )
        return bool(self._change(statement, outcome, run_id, attempt))

    def reopen(self, run_id: str) -> None:
        """Allows a closed run to be taken again, in another attempt."""
        self._change(
            "UPDATE a2rl_runs SET done = false, attempt = attempt + 1, flow_run = '' WHERE run_id = %s AND done", run_id
        )

    def _change(self, statement: str, *values: Any) -> int:
        """Executes a statement and returns the number of rows that it changed."""
        return int(self._patiently(lambda database: database.execute(statement.encode(), values).rowcount))

    def _patiently(self, work: "Callable[[psycopg.Connection[Any]], T]") -> T:
        """Does work in a transaction, again if the database does not answer."""

        def once() -> T:
            with self._transaction() as database:
                return work(database)

        attempts = Retrying(
            stop=stop_after_delay(PATIENCE_S),
            wait=wait_fixed(1),
            retry=retry_if_exception_type(_UnreachableError),
            reraise=True,
        )
        return attempts(once)

    @contextmanager
    def _transaction(self) -> "Iterator[psycopg.Connection[Any]]":
        driver = self._driver
        try:
            with driver.connect(self._url, **OPTIONS) as database:
                if not self._is_ready:
                    _make_table(database)
                    self._is_ready = True
                yield database
        except driver.Error as error:
            where = self._url.rpartition("@")[2]
            kind = _UnreachableError if isinstance(error, driver.OperationalError) else InfrastructureError
            raise kind(f"Postgres at {where} failed: {first_line(error)}; check A2RL_CLAIMS and that server") from error

    @cached_property
    def _driver(self) -> Any:
        try:
            import psycopg
        except ImportError as error:
            need = "A2RL_CLAIMS needs psycopg: `pip install --no-deps -r requirements-scale.lock` installs it"
            raise UsageError(need) from error
        return psycopg


class _UnreachableError(InfrastructureError):
    """The database does not answer; a later call may succeed."""


def _make_table(database: "psycopg.Connection[Any]") -> None:
    """Makes the table if it is missing."""
    known = database.execute("SELECT to_regclass('a2rl_runs')").fetchone()
    if known is None or known[0] is None:
        database.execute("SELECT pg_advisory_xact_lock(%s)", (SCHEMA_LOCK,))
        database.execute(SCHEMA)
        database.commit()


def _key(claim: Claim) -> tuple[str, str, int]:
    return claim.run_id, claim.owner, claim.epoch


def _insert(database: "psycopg.Connection[Any]", run: NewRun) -> None:
    database.execute(
        "INSERT INTO a2rl_runs (run_id, suite, launch, pool, progress) VALUES (%s, %s, %s, %s, %s) "
        "ON CONFLICT (run_id) DO NOTHING",
        (run.run_id, run.suite, run.launch, run.pool, Progress(budget_s=run.budget_s).model_dump_json()),
    )


def _select(database: "psycopg.Connection[Any]", where: str, *values: Any) -> list[RunRow]:
    cursor = database.execute(f"SELECT {COLUMNS} FROM a2rl_runs {where}".encode(), values)
    names = [column.name for column in cursor.description or ()]
    found = (dict(zip(names, row, strict=True)) for row in cursor.fetchall())
    return [RunRow.model_validate({**row, "progress": Progress.model_validate_json(row["progress"])}) for row in found]
