"""Runs a command as an ordinary user although we are root, and although our Python may be in root's home.

In a new mount namespace, each parent folder of Python and this checkout that only root may enter is replaced by an
empty folder, in which only the needed files are mounted again. This needs `unshare` and `setpriv` of util-linux.
"""

import shlex
import shutil
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

NOBODY = 65534
REPOSITORY = Path(__file__).resolve().parents[2]


def is_available() -> bool:
    """Returns whether this machine has the programs that this needs."""
    return all(shutil.which(program) for program in ("unshare", "setpriv", "mount"))


def as_nobody(command: Iterable[str]) -> list[str]:
    """Returns the command line that runs a command as the user `nobody`."""
    needed = {REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    lines = ["set -e", "hold=$(mktemp -d)", *_mounts(needed)]
    user = f"--reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all"
    lines.append(f"exec setpriv {user} {shlex.join(command)}")
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)]


def _mounts(needed: Iterable[Path]) -> Iterator[str]:
    """Yields shell commands that make the needed folders accessible to everybody, in this namespace."""
    closed: dict[Path, list[Path]] = {}
    for folder in needed:
        if (above := _closed_folder(folder)) is not None:
            closed.setdefault(above, []).append(folder)
    for above, folders in closed.items():
        kept = {shlex.quote(str(folder)): f"$hold/{number}" for number, folder in enumerate(folders)}
        for path, copy in kept.items():
            yield f"mkdir -p {copy} && mount --bind {path} {copy}"
        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(above))}"
        for path, copy in kept.items():
            yield f"mkdir -p {path} && mount --move {copy} {path}"


def _closed_folder(folder: Path) -> Path | None:
    """Returns the outermost folder on the path that other users may not enter."""
    for above in (*reversed(folder.parents), folder):
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return None
