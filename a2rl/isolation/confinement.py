"""What an agent reaches, in the words of a file, a port and a program: plain data that goes from process to process.

Only the standard library is imported: this is read in the supervisor and in what becomes the agent.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.sandbox.landlock import Reach


class Confinement(NamedTuple):
    """All that an agent reaches; everything else it does not. Paths that do not exist are left out."""

    read: tuple[str, ...]
    """Files and folders to read and execute."""
    write: tuple[str, ...]
    """Folders to read, change, make and remove files in; and to have local sockets in."""
    use: tuple[str, ...]
    """Devices."""
    share: tuple[str, ...]
    """Folders for files whose name one has to know."""
    connect: tuple[int, ...]
    """TCP ports on 127.0.0.1 and ::1."""
    network_log: str
    """A file for what it connected to, and tried to; out of its reach."""
    landlock: int = 0
    """The version of Landlock that is needed at least; 0: none."""
    bwrap: str = ""
    """The program bwrap, where it is to be used."""
    user: int = 0
    """The number of a user and group of its own; 0: it is the supervisor's."""
    names: str = ""
    """A folder with `passwd` and `group`, in which that user has a name, to stand for those in /etc."""
    devices: bool = False
    """Whether it has /dev/shm and terminals of its own; with bwrap it has in any case."""
    processes: bool = False
    """Whether it has a table of processes of its own; with bwrap it has in any case."""

    @classmethod
    def of(cls, fields: Sequence[Any]) -> "Confinement":
        """From JSON, which knows no tuples."""
        return cls._make(tuple(field) if isinstance(field, list) else field for field in fields)

    def reach(self) -> Reach:
        """In Landlock's terms. No connection is the agent's own to make: the broker makes them."""
        return Reach(
            read=tuple(map(Path, self.read)),
            write=tuple(map(Path, self.write)),
            use=tuple(map(Path, self.use)),
            share=tuple(map(Path, self.share)),
            listen=True,
        )
