"""Messages between the pipeline and an agent's supervisor: what to run, and how it ended."""

from typing import Any, NamedTuple

from a2rl.linux.resources import Resources
from a2rl.sandbox.confinement import Confinement


class AgentCommand(NamedTuple):
    """The command to run, with its limits."""

    command: list[str]
    cwd: str
    env: dict[str, str]
    log: str
    """File for the agent's output; the agent cannot access it, and its size is limited."""
    confinement: Confinement | None = None
    """What the agent may access; None: everything that its user may."""
    transcript: str = ""
    """File for its standard output, if that is kept separately from the log; its size is limited as well."""
    takes_messages: bool = False
    """Whether lines for its standard input follow."""
    secrets: dict[str, str] | None = None
    """Secrets by name, which are removed from everything that is written."""
    resources: Resources = Resources()
    """How much of the machine it may use."""
    trace: str = ""
    """File for the supervisor's trace, with which `end_orphans` ends the agent if the supervisor was killed; the agent
    cannot access it."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "AgentCommand":
        """Converts from JSON."""
        confinement, limits = fields.pop("confinement"), fields.pop("resources", ())
        return cls(
            **fields,
            confinement=Confinement.of(confinement) if confinement else None,
            resources=Resources.of(limits) if limits else Resources(),
        )


class AgentExit(NamedTuple):
    """How the agent ended."""

    exit_code: int | None
    """The agent's own exit status; negative: the signal that killed it; None: it could not be started."""
    error: str
    """Why it could not be started."""
    killed: int
    """Number of processes that were killed."""
    unconfined: str = ""
    """Why it could not be confined; in that case, nothing was run."""
    survivors: tuple[tuple[int, str], ...] = ()
    """Pid and printable name of processes that could not be ended."""
    stopped: str = ""
    """Why the supervisor ended it on its own, if it did."""
    lost: bool = False
    """Whether a part of the supervisor was killed, so that the agent was killed as well."""

    @classmethod
    def of(cls, fields: dict[str, Any]) -> "AgentExit":
        """Converts from JSON."""
        survivors = tuple((int(pid), str(name)) for pid, name in fields.pop("survivors", ()))
        return cls(**fields, survivors=survivors)
