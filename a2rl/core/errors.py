"""The errors of the pipeline: one flat hierarchy, raised at the source and classified once at the stage boundary.

A message is one line that a user can act on: what is wrong, then how to fix it.
"""

import difflib
import re
from collections.abc import Iterable

from a2rl.core.printable import printable
from a2rl.core.secrets import scrub

MAX_CHARS = 4000


class A2rlError(Exception):
    """Base of all errors that a user sees as one line instead of a stack trace."""

    exit_code = 1

    def __str__(self) -> str:
        """The message as one printable line without secrets, whatever text of an agent it contains."""
        return printable(scrub(super().__str__()), MAX_CHARS)


class UsageError(A2rlError):
    """The user asked for something impossible: an unknown task, an invalid budget, a missing folder."""

    exit_code = 2


class NotReadyError(UsageError):
    """Runs cannot start: everything that is wrong with their settings and with this machine, found at once."""

    def __init__(self, problems: Iterable[str], machine: str = "") -> None:
        """Makes the error.

        Args:
            problems: One line for each problem: what is wrong, and how to fix it.
            machine: The machine that has them, if the user sits at another one.
        """
        self.problems = tuple(problems)
        outcome = f"{machine} took nothing" if machine else "nothing was started"
        super().__init__(f"{outcome}: " + "; ".join(self.problems))


class InfrastructureError(A2rlError):
    """The machine failed, not the agent: a full disk, a dead grader process, an unreachable hub. A retry may help."""


class MissingInputError(InfrastructureError):
    """A run's base model or data is missing or has changed. The run has no result until it is restored."""


class UnclearFaultError(InfrastructureError):
    """Whether the machine or the model is to blame is not known. A run must end, so this is a verdict on the model."""


class LackOfMemoryError(UnclearFaultError):
    """A model does not fit into the memory that is free."""


class TaskDefinitionError(A2rlError):
    """A task or agent folder breaks its contract; its author has to fix it."""


class InvalidSubmissionError(A2rlError):
    """The agent submitted something that cannot be graded. It is recorded with this reason and has no score."""


class SpoiledWorkspaceError(A2rlError):
    """The agent left its folders in a state that prevents a restart. This is a result, not a machine failure."""


class IntegrityError(A2rlError):
    """The ledger, a record or a checkpoint has changed since it was written: it was edited, truncated or corrupted."""


class RunFailedError(A2rlError):
    """Some runs could not be finished. Their records say why; the other runs of the command are complete."""


class InterruptedByUserError(A2rlError):
    """The user stopped the pipeline (Ctrl-C or SIGTERM); `a2rl resume` continues from here."""

    exit_code = 130


WARNING = re.compile(r":\d+: \w*Warning: |^warnings\.warn\(|\[W\d{4} |^[\d:.,TZ -]*WARN(ING)?\b")
"""The lines of warnings: of Python, with the place and then the code, of PyTorch's libraries, and of logs."""


def first_line(error: BaseException) -> str:
    """Returns the first line of an error's message, or its kind if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def last_words(output: str, nothing: str = "it says nothing") -> str:
    """Returns the line in which a program that has ended says why: its last one, but for warnings.

    Libraries also warn while a process ends, after the exception that ended it.

    Args:
        output: What it wrote.
        nothing: What is returned if it wrote nothing.
    """
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = (line for line in reversed(lines) if not WARNING.search(line))
    return next(telling, lines[-1] if lines else nothing)


MOST_LISTED = 40


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Makes an error that lists the known names, of many only the last ones, and suggests the closest one."""
    names = sorted(known)
    begin_so = [each for each in names if each.startswith(name)]
    close = begin_so or difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    listed = ", ".join(names[-MOST_LISTED:]) or "none"
    more = f"{len(names) - MOST_LISTED} more and " if len(names) > MOST_LISTED else ""
    return UsageError(f"no {kind} {name!r}.{guess} Known: {more}{listed}")
