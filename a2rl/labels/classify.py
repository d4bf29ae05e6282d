"""Reads the route in the code of a program: which ways of training it has, in which order."""

from collections.abc import Mapping, Sequence

from a2rl.labels.code_walk import TooLargeError, Walk
from a2rl.labels.phases import Phase, chain_of
from a2rl.labels.program import Program
from a2rl.labels.routes import Chain


def classify(files: Mapping[str, str], commands: Sequence[Sequence[str]] = (), commit: str = "") -> Chain:
    """Returns the route that the code of a program shows, without running it.

    Args:
        files: Its files: text by path.
        commands: The command lines with which it was started, if they are known.
        commit: The commit of the files, for the evidence.
    """
    return chain_of(phases_in(Program(files), commands, commit))


def phases_in(program: Program, commands: Sequence[Sequence[str]] | None = (), commit: str = "") -> list[Phase]:
    """Returns the phases that the code of a program shows; none if there is too much of it.

    Args:
        program: Its files.
        commands: The command lines with which it was started; empty if they are not known. None: all that is in the
            files, whether or not something seems to run it.
        commit: The commit of the files, for the evidence.
    """
    try:
        walk = Walk(program)
        if commands is None:
            walk.run_all()
        else:
            walk.run(commands)
    except (TooLargeError, RecursionError, MemoryError):
        return []
    of_commit = {"commit": commit}
    return [each._replace(evidence=each.evidence.model_copy(update=of_commit)) for each in walk.result]
