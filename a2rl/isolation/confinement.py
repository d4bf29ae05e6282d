"""What an agent reaches, in the words of a file, a port and a program: plain data that goes from process to process.

Only the standard library is imported: this is read in the supervisor and in what becomes the agent.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.sandbox.landlock import Reach

SHARED_MEMORY = "/dev/shm"


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

    @property
    def own(self) -> tuple[str, ...]:
        """Folders that are the agent's to do with as it likes: those that it writes to, and those made for it alone."""
        made = ("/tmp", SHARED_MEMORY) if self.bwrap else (SHARED_MEMORY,) if self.devices else ()
        return (*self.write, *made)

    @property
    def keeps_metadata(self) -> bool:
        """Whether the kernel keeps the agent from changing modes, owners and times of files that are not its own: they
        belong to another user, or are mounted read-only."""
        return bool(self.user) or self.devices or (bool(self.bwrap) and os.geteuid() != 0)

    def reach(self) -> Reach:
        """In Landlock's terms. No connection is the agent's own to make: the broker makes them."""
        return Reach(
            read=tuple(map(Path, self.read)),
            write=tuple(map(Path, self.write)),
            use=tuple(map(Path, self.use)),
            share=tuple(map(Path, self.share)),
            listen=True,
        )
