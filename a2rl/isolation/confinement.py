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
    landlock: bool = True
    broker: bool = True
    """Whether every connection is looked at. Without a broker, ports are all that is looked at."""
    bwrap: str = ""
    """The program bwrap, where it is to be used."""

    @classmethod
    def of(cls, fields: Sequence[Any]) -> "Confinement":
        """From JSON, which knows no tuples."""
        return cls._make(tuple(field) if isinstance(field, list) else field for field in fields)

    def reach(self) -> Reach:
        """In Landlock's terms. With a broker, no connection is the agent's own to make."""
        return Reach(
            read=tuple(map(Path, self.read)),
            write=tuple(map(Path, self.write)),
            use=tuple(map(Path, self.use)),
            share=tuple(map(Path, self.share)),
            connect=() if self.broker else self.connect,
            listen=self.broker,
        )
