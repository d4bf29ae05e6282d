"""One check of a run, and what it found."""

from collections.abc import Callable
from typing import NamedTuple

from a2rl.core.errors import A2rlError, IntegrityError

MAX_CHARS = 500
TOLERANCE = 1e-6
"""In points. A score that is fitted to data may differ in the last bits between machines."""


class CheckOutcome(NamedTuple):
    """The outcome of one check."""

    what: str
    problem: str = ""
    """Empty if the check passed."""
    not_checked: str = ""
    """Why it could not be made; empty if it was made."""
    note: str = ""
    """What a check that passed has found, if it is worth telling."""


class NotCheckedError(A2rlError):
    """A check cannot be made, because something that it needs is not here. That says nothing about the run."""


def made(what: str, check: Callable[[], str | None]) -> CheckOutcome:
    """Makes a check, which raises for a problem, and may return a note."""
    try:
        return CheckOutcome(what, note=check() or "")
    except NotCheckedError as error:
        return CheckOutcome(what, not_checked=str(error))
    except A2rlError as error:
        return CheckOutcome(what, problem=str(error))
    except FileNotFoundError as error:
        return CheckOutcome(what, problem=f"{error.filename} is missing")
    except Exception as error:  # noqa: BLE001 - what is checked may be forged, and no way to fail makes it sound
        return CheckOutcome(what, problem=f"it cannot be checked: {error!r}"[:MAX_CHARS])


def require(holds: bool, problem: str) -> None:
    """Raises an IntegrityError unless something holds."""
    if not holds:
        raise IntegrityError(problem)


def same(left: float | None, right: float | None) -> bool:
    """Says whether two figures are the same; None is the same as None alone."""
    if left is None or right is None:
        return left is right
    return abs(left - right) < TOLERANCE


class Absent(NamedTuple):
    """Parts of a run that cannot be checked here; that says nothing against the run."""

    weights: frozenset[str] = frozenset()
    """The digests of checkpoints whose weights are elsewhere."""
    base_model: bool = False
    """The base model is only known by its name, and what has that name here may be another build of it."""
    files: frozenset[str] = frozenset()
    """Paths of files in the run directory that were left out."""


NOTHING_ABSENT = Absent()
