"""Claims in Postgres, for several machines: a row for each run, taken with a lease and fenced by its epoch.

All times are those of the database. Every change locks the row, and checks in the same transaction whether it may be
made. So of two takers one wins, and nobody who has lost a run can record anything of it, however late its requests
arrive. A connection may break while the answer to a COMMIT is on its way, so each change has the same effect when it is
repeated.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from a2rl.cluster.claims import LEASE_S, Claim, Claims, NewRun, Progress, RunRow, taken
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


class PostgresClaims(Claims):
    """The rows of all runs in a Postgres database. Every call makes its own connection, so that a restart does no harm.

    Args:
        url: Such as `postgresql://a2rl:password@host/a2rl`.
        lease_s: For how long a claim holds without being renewed.
    """

    def __init__(self, url: str, lease_s: float = LEASE_S) -> None:
        self._url, self.lease_s = url, lease_s
        self._is_ready = False

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
            if before.done or (before.live and before.owner != owner):
                raise taken(before)
            epoch = before.epoch + (not before.live)
            database.execute(
                "UPDATE a2rl_runs SET owner = %s, epoch = %s, until = now() + %s * interval '1 second', "
                "beat_at = now(), outcome = '' WHERE run_id = %s",
                (owner, epoch, self.lease_s, run.run_id),
            )
            return Claim(run.run_id, owner, epoch, before)

        return self._patiently(take)

    def release(self, claim: Claim, outcome: str, done: bool) -> None:
        """Gives the run back; one that was closed meanwhile keeps its outcome."""
        self._patiently(
            lambda database: database.execute(
                "UPDATE a2rl_runs SET until = '-infinity', done = done OR %s, "
                "outcome = CASE WHEN done THEN outcome ELSE %s END "  # what closed it meanwhile remains
                "WHERE run_id = %s AND owner = %s AND epoch = %s",
                (done, outcome, claim.run_id, claim.owner, claim.epoch),
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

    def _update(
        self, run_id: str, applies: Callable[[RunRow], bool], by_owner: bool = False, **changes: object
    ) -> bool:
        def update(database: "psycopg.Connection[Any]") -> bool:
            found = _select(database, "WHERE run_id = %s FOR UPDATE", run_id)
            if not found or not applies(found[0]):
                return False
            database.execute(f"UPDATE a2rl_runs SET {', '.join(sets)} WHERE run_id = %s".encode(), (*values, run_id))
            return True

        sets = [f"{column} = %s" for column in changes]
        values = [each.model_dump_json() if isinstance(each, Progress) else each for each in changes.values()]
        if not by_owner:
            return self._patiently(update)
        # This transaction may have begun before one that has renewed the claim meanwhile.
        sets += ["beat_at = now()", "until = GREATEST(until, now() + %s * interval '1 second')"]
        values.append(self.lease_s)
        with self._transaction() as database:
            return update(database)

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
            parts = urlsplit(self._url)  # a password may stand before the host, or in the query
            where = f"{parts.hostname or ''}{parts.path}"
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
