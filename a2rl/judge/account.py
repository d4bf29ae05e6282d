"""What a run has used of paid services: judgements with their tokens and dollars, and searches; and its limits.

The account is an SQLite file in the run's directory, shared by the run's graders and its grading service. An entry is
durable when `add` returns, so what was used before a restart counts afterwards.

    account = Account(run.account, limit_usd=5.0)
    account.require_money()                         # before each judgement; raises SpendLimitError
    account.add("judgement", "1f2e-public", prompt_tokens=900, completion_tokens=30, dollars=0.002)

A request whose reply did not arrive is counted with the highest price that it can have had, since the provider may
charge for it. Judgements that are in progress are not counted yet. So the limit may be exceeded by the price of the
requests that are in progress when it is reached, and by no more.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from a2rl.core.database import copy_database, open_database, read_database, rows_of
from a2rl.core.errors import InfrastructureError
from a2rl.core.files import StrictModel

Kind = Literal["judgement", "agent's judgement", "agent's question", "agent's search"]
"""An agent's question that needs a request to the judge is a judgement, too."""
JUDGEMENTS: tuple[Kind, Kind] = ("judgement", "agent's judgement")
ROUNDING = 1e-9
"""Sums of prices are exact to this many dollars."""
SCHEMA = """
CREATE TABLE IF NOT EXISTS uses (
    at REAL NOT NULL, kind TEXT NOT NULL, job TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL, dollars REAL NOT NULL
) STRICT"""
INSERT = "INSERT INTO uses VALUES (?, ?, ?, ?, ?, ?)"


class SpendLimitError(InfrastructureError):
    """The run's limit for its judge is used up: nothing more is asked."""


class Use(StrictModel):
    """What was used of one kind, or of all."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0


class Account:
    """The entries of one run; every call opens the file, so an account can be shared by threads and forks."""

    def __init__(self, path: Path, limit_usd: float | None = None) -> None:
        self._path, self._limit_usd = path, limit_usd

    def require_money(self) -> None:
        """Returns if another judgement may be asked for.

        Raises:
            SpendLimitError: The limit is reached.
            InfrastructureError: The file cannot be read.
        """
        if self._limit_usd is not None and (spent := self.use().dollars) > self._limit_usd - ROUNDING:
            raise SpendLimitError(
                f"the run's money for its judge is used up (${spent:.4f} spent, ${self._limit_usd:.4f} available to "
                "this grade); start another run with a higher --max-judge-usd"
            )

    def add(self, kind: Kind, job: str, prompt_tokens: int = 0, completion_tokens: int = 0, dollars: float = 0) -> None:
        """Adds one use. Raises InfrastructureError if it cannot be stored."""
        with self._open() as database:
            database.execute(INSERT, (time.time(), kind, job, prompt_tokens, completion_tokens, dollars))

    def take(self, kind: Kind, quota: int) -> bool:
        """Adds one use unless the quota of this kind is used up; says whether it was added."""
        with self._open() as database:
            [used] = database.execute("SELECT count(*) FROM uses WHERE kind = ?", (kind,)).fetchone()
            if used >= quota:
                return False
            database.execute(INSERT, (time.time(), kind, "", 0, 0, 0.0))
            return True

    def give_back(self, kind: Kind) -> None:
        """Removes one use of this kind that was taken."""
        with self._open() as database:
            database.execute("DELETE FROM uses WHERE rowid = (SELECT max(rowid) FROM uses WHERE kind = ?)", (kind,))

    def use(self, kind: Kind | None = None) -> Use:
        """Returns what was used of a kind, or of all kinds together."""
        if not self._path.exists():
            return Use()
        with self._errors(), read_database(self._path, SCHEMA) as database:
            row = database.execute(
                "SELECT count(*), total(prompt_tokens), total(completion_tokens), total(dollars) FROM uses"
                " WHERE ? IS NULL OR kind = ?",
                (kind, kind),
            ).fetchone()
        return Use(requests=row[0], prompt_tokens=int(row[1]), completion_tokens=int(row[2]), dollars=row[3])

    def paid(self) -> Use:
        """Returns all requests to the judge, those for the agent included."""
        own, agents = (self.use(kind) for kind in JUDGEMENTS)
        return Use(**{name: getattr(own, name) + getattr(agents, name) for name in Use.model_fields})

    def dearest_usd(self, ending: str) -> float:
        """Returns the price of the dearest job whose name ends so; 0 if there is none."""
        if not self._path.exists():
            return 0.0
        with self._errors(), read_database(self._path, SCHEMA) as database:
            rows = rows_of(database, "SELECT job, total(dollars) FROM uses GROUP BY job")
        return max((dollars for job, dollars in rows if job.endswith(ending)), default=0.0)

    def copy(self, target: Path) -> None:
        """Writes the entries into a new file."""
        with self._errors():
            copy_database(self._path, target, SCHEMA)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Opens one write transaction. The file is not for other users, such as that of an agent."""
        with self._errors():
            if not self._path.exists():
                self._path.touch(0o600)
            with open_database(self._path, SCHEMA) as database:
                database.execute("BEGIN IMMEDIATE")
                yield database
                database.execute("COMMIT")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise InfrastructureError(f"the account {self._path} cannot be used: {error}; check the disk") from error
