"""A command run as an ordinary user although we are root, and although our Python may lie in root's home.

In a mount namespace of its own, each folder above Python and this checkout that only root may enter is replaced by an
empty one in which just what is needed is mounted again. It takes `unshare` and `setpriv` of util-linux.
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
    return all(shutil.which(program) for program in ("unshare", "setpriv", "mount"))


def as_nobody(command: Iterable[str]) -> list[str]:
    """The command line that runs a command as the user `nobody`."""
    needed = {REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()}
    lines = ["set -e", "hold=$(mktemp -d)", *_mounts(needed)]
    user = f"--reuid={NOBODY} --regid={NOBODY} --clear-groups --inh-caps=-all"
    lines.append(f"exec setpriv {user} {shlex.join(command)}")
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join(lines)]


def _mounts(needed: Iterable[Path]) -> Iterator[str]:
    """Shell commands that make the needed folders reachable for everybody, in this namespace."""
    closed: dict[Path, list[Path]] = {}
    for folder in needed:
        if (above := _closed_folder(folder)) is not None:
            closed.setdefault(above, []).append(folder)
    for above, folders in closed.items():
        held = {shlex.quote(str(folder)): f"$hold/{place}" for place, folder in enumerate(folders)}
        for folder, place in held.items():
            yield f"mkdir -p {place} && mount --bind {folder} {place}"
        yield f"mount -t tmpfs -o mode=755 tmpfs {shlex.quote(str(above))}"
        for folder, place in held.items():
            yield f"mkdir -p {folder} && mount --move {place} {folder}"


def _closed_folder(folder: Path) -> Path | None:
    """The outermost folder on the way that others may not enter."""
    for above in (*reversed(folder.parents), folder):
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return None
