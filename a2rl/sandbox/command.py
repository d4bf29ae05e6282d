"""Messages between the pipeline and an agent's supervisor: what to run, what it may access, and how it ended.

They are lines in pipes, which are read and written without blocking, even if the process at the other end hangs.
Standard library only: the supervisor and the process that becomes the agent import this module. It does not use
asyncio, because the supervisor forks, and waits for everything in one `select`.
"""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.linux.landlock import AccessRights
from a2rl.linux.resources import Resources

SHARED_MEMORY = "/dev/shm"
MAX_WAITING = 16 << 20
BLOCK = 1 << 16


class Confinement(NamedTuple):
    """Everything that an agent may access; all else is denied. Paths that do not exist are ignored."""

    read: tuple[str, ...]
    """Files and folders to read and execute."""
    write: tuple[str, ...]
    """Folders in which to read, change, create and remove files, and to use local sockets."""
    use: tuple[str, ...]
    """Devices to use."""
    share: tuple[str, ...]
    """Folders in which files can be used by name, but not listed."""
    connect: tuple[int, ...]
    """TCP ports on 127.0.0.1 and ::1 to connect to."""
    network_log: str
    """A file that logs its attempted connections; the agent cannot access it."""
    landlock: int = 0
    """The oldest version of Landlock that is acceptable; 0: Landlock is not required."""
    bwrap: str = ""
    """Path of the program bwrap, if it is used."""
    user: int = 0
    """The numeric id of its own user and group; 0: it shares the supervisor's user."""
    names: str = ""
    """A folder with the files `passwd` and `group` that name that user and replace those in /etc."""
    devices: bool = False
    """Whether it has its own /dev/shm and terminals; with bwrap it always has."""
    processes: bool = False
    """Whether it has its own process table; with bwrap it always has."""
    list_only: tuple[str, ...] = ()
    """Folders whose names of files it may see, with all below; it may read only what is in `read`."""

    @classmethod
    def of(cls, fields: Sequence[Any]) -> "Confinement":
        """Converts from JSON, which has no tuples."""
        return cls._make(tuple(field) if isinstance(field, list) else field for field in fields)

    @property
    def own(self) -> tuple[str, ...]:
        """Folders that belong to the agent: those that it may write to, and those that exist for it alone."""
        if self.bwrap:
            return (*self.write, "/tmp", SHARED_MEMORY)
        if self.devices:
            return (*self.write, SHARED_MEMORY)
        return self.write

    @property
    def keeps_metadata(self) -> bool:
        """Whether the kernel prevents the agent from changing modes, owners and times of other files.

        It does if they belong to another user, or are mounted read-only.
        """
        return bool(self.user) or self.devices or (bool(self.bwrap) and os.geteuid() != 0)

    def access_rights(self) -> AccessRights:
        """Returns the rights for Landlock. They allow no connections: the broker makes them."""
        return AccessRights(
            read=tuple(map(Path, self.read)),
            list_only=tuple(map(Path, self.list_only)),
            write=tuple(map(Path, self.write)),
            use=tuple(map(Path, self.use)),
            share=tuple(map(Path, self.share)),
            listen=True,
        )


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


class LineReader:
    """Reads complete lines of a file as they arrive."""

    def __init__(self, file: int) -> None:
        self._file, self._rest = file, b""
        self.is_over = False
        """Whether the end of the file was reached."""
        os.set_blocking(file, False)

    def read(self) -> list[bytes]:
        """Returns the lines that have arrived, without line ends; call it when the file is readable."""
        with contextlib.suppress(BlockingIOError):
            block = os.read(self._file, BLOCK)
            self.is_over = not block
            *lines, self._rest = (self._rest + block).split(b"\n")
            return lines
        return []


class LineWriter:
    """Writes lines to a reader that may be slow. Unread lines are buffered here, up to MAX_WAITING bytes."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file
        self._waiting = bytearray()
        self._ends = False
        os.set_blocking(file, False)

    @property
    def is_open(self) -> bool:
        """Whether lines can still be written."""
        return self._file is not None

    @property
    def waits_for(self) -> int | None:
        """The file descriptor to wait for before `push`; None if there is nothing to write."""
        return self._file if self._waiting else None

    def put(self, line: bytes) -> bool:
        """Writes a line, now or later; returns False if the buffer is full and the line was dropped."""
        if self._ends or self._file is None or len(self._waiting) + len(line) >= MAX_WAITING:
            return False
        self._waiting += line + b"\n"
        self.push()
        return True

    def end(self) -> None:
        """Closes the file once everything is written; no more lines are accepted."""
        self._ends = True
        self.push()

    def push(self) -> None:
        """Writes as much as possible without blocking."""
        try:
            while self._waiting and self._file is not None:
                del self._waiting[: os.write(self._file, self._waiting[:BLOCK])]
        except BlockingIOError:
            return
        except OSError:  # the reader is gone
            self._waiting.clear()
            self._ends = True
        if self._ends:
            self.close()

    def close(self) -> None:
        """Closes the file now and drops buffered lines."""
        self._waiting.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None
