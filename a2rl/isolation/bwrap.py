"""bwrap (bubblewrap): the same confinement inside a file system and a table of processes of its own.

Contract: `bwrap_command` is a prefix for a command. What a `Confinement` does not name is not there at all; names,
metadata and command lines of what is outside cannot be seen either, and /dev/shm and the terminals are the agent's own.
The network is the machine's: inside, the launcher applies Landlock, seccomp and the broker as it does without bwrap.
Source: the manual's bwrap(1).
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import a2rl
from a2rl.isolation.confinement import Confinement

ALONE = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent")
TMP = Path("/tmp")
OWN = ("proc", "dev")
"""Made anew inside; not taken from the machine."""


def bwrap_command(confinement: Confinement, cwd: str, env: Mapping[str, str]) -> list[str]:
    """To be followed by the launcher's command."""
    library = str(Path(a2rl.__file__).parent)  # for the launcher; Landlock then hides it from the agent
    binds = [("--ro-bind", path) for path in (*confinement.read, library)]
    binds += [("--bind", path) for path in confinement.write]
    # Not Path.exists, which fails for what lies in a folder that is not this user's.
    binds = [(kind, path) for kind, path in binds if _top(path) not in OWN and os.path.exists(path)]  # noqa: PTH110
    devices = [("--dev-bind-try", path) for path in confinement.use if Path(path).name.startswith("nvidia")]
    binds.sort(key=lambda bind: len(Path(bind[1]).parts))
    mounts = [word for kind, path in binds + devices for word in (kind, path, path)]
    links = [word for path in env.values() if Path(path).parent == TMP and os.path.islink(path)  # noqa: PTH114
             for word in ("--symlink", os.readlink(path), path)]  # fmt: skip # noqa: PTH115
    names = [word for name in ("passwd", "group") if confinement.names
             for word in ("--ro-bind", f"{confinement.names}/{name}", f"/etc/{name}")]  # fmt: skip
    ways = _ways(path for _, path in binds) if confinement.user else []
    return [confinement.bwrap, *ALONE, *_made(confinement), *links, *ways, *mounts, *names, "--chdir", cwd, "--"]


def _made(confinement: Confinement) -> list[str]:
    """What is the agent's own of what every system has."""
    for_all = ("--perms", "1777") if confinement.user else ()
    return ["--proc", "/proc", "--dev", "/dev", *for_all, "--tmpfs", "/dev/shm", *for_all, "--tmpfs", "/tmp"]


def _ways(paths: Iterable[str]) -> list[str]:
    """The folders above paths; those that bwrap makes by itself are closed to all but its own user."""
    above = dict.fromkeys(str(folder) for path in paths for folder in reversed(Path(path).parents) if folder.name)
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)]


def _top(path: str) -> str:
    return Path(path).parts[1]
