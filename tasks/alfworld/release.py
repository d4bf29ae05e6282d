"""The released games: their files, their PDDL domain and their text grammar.

The files are in a folder, an archive for each split, or the single archive of the release. Domain and grammar are for
writing games of our own that both engines accept. They belong to ALFWorld, so neither is in this repository. The
alfworld wheel has another edition of them; the released ones (json_2.1.1) result from the few edits below, and digests
verify the result.
"""

import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import IO

from a2rl.core.errors import IntegrityError, TaskDefinitionError, UsageError
from tasks.alfworld.alfred.game import DOMAIN, GRAMMAR, digest, without_task

GAME = "game.tw-pddl"
LAYOUT = "a folder <split>/ or json_2.1.1/<split>/, <split>.tar.xz, or json_2.1.2_tw-pddl.zip"
_SINK = "(receptacleType ?r SinkType)"
_HELP = re.compile(r'"#help\.feedback#";\s+grammar :: """(.*?)""";', re.DOTALL)
_NO_TASK = "UNKNOWN GOAL."


def has_split(mirror: Path, split: str) -> bool:
    """Whether the mirror has the games of a split."""
    return bool(_folder(mirror, split)) or (mirror / f"{split}.tar.xz").is_file() or _whole(mirror) is not None


def copy_split(mirror: Path, split: str, target: Path) -> None:
    """Copies the games of a split, without other files, to `target/<type>/<trial>/game.tw-pddl`.

    Raises:
        UsageError: the mirror does not have the split.
        IntegrityError: an archive is broken.
    """
    try:
        for trial, file in _games(mirror, split):
            path = target / trial / GAME
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as copy:
                shutil.copyfileobj(file, copy)
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise IntegrityError(f"the archive of {split} in {mirror} cannot be read: {error}") from error


def _games(mirror: Path, split: str) -> Iterator[tuple[str, IO[bytes]]]:
    """Yields the games of a split: '<type>/<trial>' and the open file."""
    archive, whole = mirror / f"{split}.tar.xz", _whole(mirror)
    if folder := _folder(mirror, split):
        for path in folder.glob(f"*/*/{GAME}"):
            with path.open("rb") as file:
                yield _trial(path.as_posix()), file
    elif archive.is_file():
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(f"/{GAME}") and (packed := tar.extractfile(member)):
                    yield _trial(member.name), packed
    elif whole:
        with zipfile.ZipFile(whole) as release:
            for name in release.namelist():
                if name.endswith(f"/{GAME}") and PurePosixPath(name).parts[-4] == split:
                    with release.open(name) as unpacked:
                        yield _trial(name), unpacked
    else:
        raise UsageError(f"{mirror} has no games of {split}: a mirror of ALFWorld has {LAYOUT}")


def _folder(mirror: Path, split: str) -> Path | None:
    return next((path for path in (mirror / split, mirror / "json_2.1.1" / split) if path.is_dir()), None)


def _whole(mirror: Path) -> Path | None:
    return next(iter(sorted(mirror.glob("json_2.1.*_tw-pddl.zip"))), None)


def _trial(name: str) -> str:
    """Returns '<type>/<trial>' of a game's path: the last two folders only, so that no archive writes elsewhere."""
    kind, trial = PurePosixPath(name).parts[-3:-1]
    if {kind, trial} & {"..", "."}:
        raise IntegrityError(f"an archive has a game with an unsafe path, {name!r}")
    return f"{kind}/{trial}"


@cache
def released_domain() -> str:
    """Returns the `pddl_domain` of every released game."""
    text = _shipped("alfred.pddl").replace(f";{_SINK}", _SINK)  # cleaning works at a Sink, too
    return _checked(text.removesuffix("\n)\n").rstrip("\n") + "\n)\n", DOMAIN)


def released_grammar(task_sentence: str) -> str:
    """Returns the `grammar` of a released game with this task, e.g. "put a clean mug in desk."."""
    if not task_sentence.endswith(".") or set(task_sentence) & set('"\\\n#{}[]|'):
        raise ValueError(f"a task sentence must be plain text that ends with a full stop, not {task_sentence!r}")
    return _grammar().replace(_NO_TASK, task_sentence)


@cache
def _grammar() -> str:
    text = _HELP.sub(_plain_help, _shipped("alfred.twl2"))
    _checked(without_task(text), GRAMMAR)
    return text


def _plain_help(action: re.Match[str]) -> str:
    """Returns the help text itself; the wheel's grammar has a rule that yields it."""
    (rule,) = json.loads(action[1])["help.feedback"]
    return f'"{rule["rhs"]}";'


def _shipped(name: str) -> str:
    spec = find_spec("alfworld")  # not imported, because that would create folders in the home directory
    if spec is None or spec.origin is None:
        raise UsageError(
            "the package alfworld is not installed: `pip install --no-deps -r requirements.lock` installs it"
        )
    return (Path(spec.origin).parent / "data" / name).read_text()


def _checked(text: str, expected: str) -> str:
    if digest(text) != expected:
        raise TaskDefinitionError("the installed alfworld has a different domain or grammar: install alfworld==0.4.2")
    return text
