"""bwrap (bubblewrap): the same confinement, with a separate file system and process table for the agent.

Contract: `bwrap_command` returns the first part of a command line. Inside, only the files that a `Confinement` names
exist: the names and metadata of other files, and the command lines of other processes, are invisible. The agent has its
own /dev/shm and terminals, but shares the machine's network. Therefore the launcher applies Landlock, seccomp and the
broker inside, as it does without bwrap.
Source: the manual's bwrap(1).
"""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import a2rl
from a2rl.sandbox.confinement import Confinement

ALONE = ("--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent")
TMP = Path("/tmp")
OWN = ("proc", "dev")
"""Top-level folders that are created inside instead of being mounted from the machine."""


def bwrap_command(confinement: Confinement, cwd: str, env: Mapping[str, str]) -> list[str]:
    """Returns the start of a command line, which the launcher's command follows.

    Args:
        confinement: What the agent may access.
        cwd: The agent's working directory.
        env: The agent's environment; links that it names in /tmp are recreated inside.
    """
    library = str(Path(a2rl.__file__).parent)  # for the launcher; Landlock then hides it from the agent
    binds = [("--ro-bind", path) for path in (*confinement.read, library)]
    binds += [("--bind", path) for path in confinement.write]
    # Not Path.exists, which raises for paths in a folder that this user may not enter.
    binds = [(kind, path) for kind, path in binds if _top(path) not in OWN and os.path.exists(path)]  # noqa: PTH110
    devices = [("--dev-bind-try", path) for path in confinement.use if Path(path).name.startswith("nvidia")]
    binds.sort(key=lambda bind: len(Path(bind[1]).parts))
    mounts = [word for kind, path in binds + devices for word in (kind, path, path)]
    links = [word for path in env.values() if Path(path).parent == TMP and os.path.islink(path)  # noqa: PTH114
             for word in ("--symlink", os.readlink(path), path)]  # fmt: skip # noqa: PTH115
    names = [word for name in ("passwd", "group") if confinement.names
             for word in ("--ro-bind", f"{confinement.names}/{name}", f"/etc/{name}")]  # fmt: skip
    parents = _parent_folders(path for _, path in binds) if confinement.user else []
    return [
        confinement.bwrap,
        *ALONE,
        *_own_mounts(confinement),
        *links,
        *parents,
        *mounts,
        *names,
        "--chdir",
        cwd,
        "--",
    ]


def _own_mounts(confinement: Confinement) -> list[str]:
    """Returns the options for /proc, /dev, /dev/shm and /tmp of the agent's own."""
    for_all = ("--perms", "1777") if confinement.user else ()
    return ["--proc", "/proc", "--dev", "/dev", *for_all, "--tmpfs", "/dev/shm", *for_all, "--tmpfs", "/tmp"]


def _parent_folders(paths: Iterable[str]) -> list[str]:
    """Returns the options that create the folders above paths; bwrap's own would be closed to other users."""
    above = dict.fromkeys(str(folder) for path in paths for folder in reversed(Path(path).parents) if folder.name)
    return [word for folder in above for word in ("--perms", "0755", "--dir", folder)]


def _top(path: str) -> str:
    return Path(path).parts[1]
