"""The errors of the pipeline: one flat vocabulary, raised at the source, classified once at the stage boundary.

A message is one line that a user can act on: what is wrong, then how to mend it.
"""

import difflib
from collections.abc import Iterable

from a2rl.printable import printable
from a2rl.secrets import scrub

MAX_CHARS = 4000


class A2rlError(Exception):
    """Base of all errors that a user sees as one line instead of a stack trace."""

    exit_code = 1

    def __str__(self) -> str:
        """One visible line without secrets, whatever an agent has named or written that stands in it."""
        return printable(scrub(super().__str__()), MAX_CHARS)


class UsageError(A2rlError):
    """The user asked for something that cannot be: an unknown task, a bad budget, a folder that is not there."""

    exit_code = 2


class InfrastructureError(A2rlError):
    """The machine failed us, not the agent: a full disk, a dead grader process, a hub out of reach. Worth a retry."""


class MissingInput(InfrastructureError):
    """A run's base model or data is not where it was, or is something else. It has no result until that is mended."""


class TaskDefinitionError(A2rlError):
    """A task or agent folder breaks its contract; its author has to mend it."""


class InvalidSubmission(A2rlError):
    """The agent handed in something that cannot be graded. It is recorded with this reason and is not a zero."""


class SpoiledWorkspace(A2rlError):
    """The agent left its folders so that it cannot be started in them again: a result, not a fault of the machine."""


class IntegrityError(A2rlError):
    """The ledger, a record or a checkpoint is not what was written: edited, truncated or corrupt."""


class RunFailed(A2rlError):
    """Runs that could not be finished; their records say so, and the others of the same command are whole."""


class Interrupted(A2rlError):
    """The user stopped the pipeline (Ctrl-C or SIGTERM); `a2rl resume` goes on from here."""

    exit_code = 130


def unknown(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """An error that lists what there is and guesses what was meant."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    return UsageError(f"no {kind} {name!r}.{guess} Known: {', '.join(names) or 'none'}")
