"""The folders of the control groups that this process is in, in both versions, and their limits on memory.

When it is imported, it loads the standard library only: the supervisor imports this module.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from pathlib import Path

_FILES = (("memory.max", "memory.current", ""), ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"))
"""In each version: a group's limit on memory, what it uses, and how what it uses with all below is named in
memory.stat."""


def free_memory() -> int:
    """Returns the bytes of memory that are free, of the machine's and of what this process's groups may use."""
    import psutil

    return min(psutil.virtual_memory().available, *(max(0, limit - used) for limit, used in _memory()))


def memory_limits() -> Iterator[int]:
    """Yields the limits on memory, in bytes, of this process's groups and of all above them."""
    return (limit for limit, _ in _memory())


def _memory() -> Iterator[tuple[int, int]]:
    """Yields the limits on memory of these groups and what each uses, without the files that the kernel can drop."""
    for folder in map(Path, itertools.chain(*hierarchies().values())):
        for limit, usage, prefix in _FILES:
            with contextlib.suppress(OSError, ValueError):
                most, used = int((folder / limit).read_text(encoding="ascii")), 0
                with contextlib.suppress(OSError, ValueError):
                    used = int((folder / usage).read_text(encoding="ascii"))
                    stat = dict(line.split() for line in (folder / "memory.stat").read_text("ascii").splitlines())
                    used -= sum(int(stat.get(f"{prefix}{kind}_file", 0)) for kind in ("active", "inactive"))
                yield most, used


def hierarchies() -> dict[str, list[str]]:
    """Returns the folders of this process's groups and those above, nearest first, by controller ("" for v2)."""
    mounts = list(_mounts())
    found: dict[str, list[str]] = {}
    for line in lines_of("/proc/self/cgroup"):
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            for kind, controllers, root, place in mounts:
                if (kind == "cgroup2" and not name) or (kind == "cgroup" and name and name in controllers):
                    found.setdefault(name, _upwards(place, root, path))
    return found


def _mounts() -> Iterator[tuple[str, list[str], str, str]]:
    """Yields type, controllers, mounted root and mount point of each cgroup mount; see proc(5)."""
    for line in lines_of("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, (kind, _, options, *_) = before.split(" "), [*after.split(" "), "", "", ""]
        if kind in {"cgroup", "cgroup2"} and len(fields) > 4:
            yield kind, options.split(","), fields[3], fields[4]


def _upwards(place: str, root: str, path: str) -> list[str]:
    below = os.path.relpath(path, root)
    own = Path(place) if below == "." or below.startswith("..") else Path(place, below)
    return [str(folder) for folder in (own, *own.parents) if folder.is_relative_to(place)]


def lines_of(path: str) -> list[str]:
    """Returns the lines of a file of the kernel; none if it cannot be read."""
    try:
        return Path(path).read_bytes().decode(errors="surrogateescape").splitlines()
    except OSError:
        return []
