"""The texts that are compared: the items of an eval set, what the agent was given, and every text that it wrote.

What it wrote is the history of its code, what is in its workspace, and what it printed. All texts that are left in the
workspace are searched, whatever their names, training files included, and what cannot be searched is said. Equal files
are searched once, because each checkpoint has a copy of the tokenizer. Of files that its processes were seen to open
and that are gone since, only the names are known.

Files with a zero byte at their beginning, such as weights, are no texts. The search does not see what they hide.
"""

import hashlib
import json
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.files import read_jsonl
from a2rl.core.printable import printable
from a2rl.linux.untrusted_folder import Limits, UntrustedFolder, printable_name
from a2rl.recording.code_history import BINARY_BYTES, run_git
from a2rl.run.directory import RunDir

FILES = ("eval.jsonl", "goals.jsonl")
QUESTIONS = ("question", "problem", "instruction", "prompt")
IDS = ("task_id", "id")
FEWEST_CHARS = 40
"""Of an item without any of these fields, a shorter text is not its question, but perhaps a word to guess."""
TEXT_FILES = ("*.jsonl", "*.json", "*.txt", "*.csv", "*.md")
MAX_GIVEN_BYTES = 256 << 20


def item_texts(hidden: Path) -> dict[str, str]:
    """Returns the question of each item by id, or else its longest text; nothing if the items are not texts, such as
    games."""
    for name in FILES:
        if (hidden / name).is_file():
            rows = read_jsonl(hidden / name)
            return {_id(row, place): text for place, row in enumerate(rows) if (text := _question(row))}
    return {}


def _id(row: dict[str, Any], place: int) -> str:
    return next((str(row[key]) for key in IDS if key in row), str(place))


def _question(row: dict[str, Any]) -> str:
    named = (row[key] for key in QUESTIONS if isinstance(row.get(key), str))
    others = _strings([value for key, value in row.items() if key not in IDS])
    return next(named, "") or max((text for text in others if len(text) >= FEWEST_CHARS), key=len, default="")


def given_texts(visible: Path, *others: Path) -> list[str]:
    """Returns the lines of the texts that the agent was given; of rows, the text of their fields.

    Args:
        visible: The folder of data.
        others: Further files, such as the description of the task, whose examples may be items of a secret draw.
    """
    found = [path for pattern in TEXT_FILES for path in sorted(visible.rglob(pattern))]
    return [text for path in (*found, *others) for text in _texts(path)]


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        lines = file.read(MAX_GIVEN_BYTES).decode("utf-8", "replace").split("\n")
    for line in lines:
        text = plain_text(line)
        if len(text) > 2:
            yield text


def plain_text(line: str) -> str:
    """Returns the strings in a line of JSON, one below the other, and then its keys; another line as it is."""
    if line.lstrip()[:1] not in ("{", "["):
        return line
    keys: dict[str, None] = {}

    def values(pairs: list[tuple[str, Any]]) -> list[Any]:
        """Keeps the values of all keys: in a dictionary, a key that stands twice would have only the last."""
        keys.update((key, None) for key, _ in pairs)
        return [value for _, value in pairs]

    try:
        strings = list(_strings(json.loads(line, object_pairs_hook=values)))
    except (ValueError, RecursionError):
        return line
    return "\n".join([*strings, *keys])  # the keys come last, so that none divides a text


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


MAX_FILE_BYTES = 64 << 20
"""Of a longer file, this much is searched..."""
READ_BYTES = MAX_FILE_BYTES + 1
"""...and one byte more is read, which shows that it is longer."""
MAX_BYTES = 512 << 20
"""This much is searched altogether..."""
MAX_READ_BYTES = 4 << 30
"""...and this much is read, which includes files that are equal to earlier ones or are no text."""
LIMITS = Limits(entries=200_000, depth=64, seconds=60.0)
NOT_TEXT = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npy", ".npz", ".so", ".png", ".arrow", ".parquet", ".gz")
"""Files whose names are not worth telling if they are gone."""
MOST_CONTENTS = 20_000
"""Objects of the code's history that are searched."""
LIBRARIES = frozenset({".git", "__pycache__", "site-packages", "node_modules"})
"""Folders of what others wrote, most likely. They are searched last, and not told of if they are gone."""
PIECE_CHARS = 4000
"""Longer lines are cut into pieces, and blocks of lines have about as much."""


class Piece(NamedTuple):
    """A part of a text, short enough to be shown: a line or a part of one, or a block of lines."""

    file: str
    """Relative to the run directory; for code that was changed later, with the digest of the file in its history."""
    line: int
    """The number of the first line."""
    text: str
    is_block: bool = False


class TooMuchTextError(Exception):
    """The agent wrote more text than is searched, or text that cannot be read."""


def written_by_agent(run: RunDir) -> Iterator[Piece]:
    """Yields everything that the agent wrote, in pieces.

    Raises:
        TooMuchTextError: A part was left out, because there is too much or it cannot be read; raised after the rest was
            yielded.
    """
    unread, unsearched, is_cut, seen = MAX_READ_BYTES, MAX_BYTES, False, set[bytes]()
    missed: list[str] = []
    for file, content in _contents(run, missed.append):
        digest = hashlib.sha256(content).digest()
        unread -= len(content)
        if unread < 0:
            raise TooMuchTextError
        if digest in seen or b"\0" in content[:BINARY_BYTES]:
            continue
        seen.add(digest)
        if not unsearched:
            raise TooMuchTextError
        searched = content[: min(unsearched, MAX_FILE_BYTES)]
        unsearched -= len(searched)
        is_cut = is_cut or len(searched) < len(content)
        yield from pieces(file, searched)
    if is_cut or missed:
        raise TooMuchTextError


def read_and_gone(run: RunDir) -> list[str]:
    """Returns the files of the workspace that the agent's processes were seen to read, and that are gone."""
    log = run.logs / "processes.jsonl"
    rows = read_jsonl(log) if log.is_file() else []
    names = {str(name) for row in rows for name in row.get("read", ())}
    kept = (name for name in names if not name.lower().endswith(NOT_TEXT) and not _is_of_library(name))
    return sorted(name for name in kept if not os.path.lexists(run.workspace / name))


def pieces(file: str, content: bytes) -> Iterator[Piece]:
    """Yields the lines of a text, and blocks of lines, each of which shares a half with the one before. A line of JSON
    is a text by itself, and in no block."""
    block: deque[tuple[int, str]] = deque()
    chars = fresh = 0
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), start=1):
        if len(line) <= 2:
            continue
        for start in range(0, len(line), PIECE_CHARS):
            yield Piece(file, number, line[start : start + PIECE_CHARS + PIECE_CHARS // 8])
        if len(line) > PIECE_CHARS // 2 or plain_text(line) != line:
            continue
        block.append((number, line))
        chars, fresh = chars + len(line) + 1, fresh + len(line) + 1
        if chars >= PIECE_CHARS:
            yield _block(file, block)
            fresh = 0
            while chars > PIECE_CHARS // 2:
                chars -= len(block.popleft()[1]) + 1
    if fresh and len(block) > 1:
        yield _block(file, block)


def _block(file: str, lines: Sequence[tuple[int, str]]) -> Piece:
    return Piece(file, lines[0][0], "\n".join(line for _, line in lines), is_block=True)


def _contents(run: RunDir, on_missed: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    yield from _code(run.code, on_missed)
    yield from _workspace(run.workspace, on_missed)
    for name in ("agent.log", "transcript-*.jsonl"):
        for path in sorted(run.logs.glob(name)):
            yield f"logs/{path.name}", _head(path)
    if run.trajectory.is_file():
        yield run.trajectory.name, _head(run.trajectory)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(READ_BYTES)


def _workspace(folder: Path, on_missed: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    try:
        workspace = UntrustedFolder.at(folder)
    except FileNotFoundError:
        on_missed(folder.name)
        return
    with workspace:
        files = [each for each in workspace.walk(limits=LIMITS, on_missed=on_missed) if each.names]
        # A file of which all names are in the workspace is the agent's own.
        further = {file: count - 1 for file, count in Counter(each.id for each in files).items()}
        for entry in sorted(files, key=lambda each: _is_of_library(each.path)):
            try:
                content = workspace.read(entry.path, BINARY_BYTES, further)
                if b"\0" not in content and len(content) == BINARY_BYTES:
                    content = workspace.read(entry.path, READ_BYTES, further)
            except OSError:
                on_missed(entry.path)
                continue
            yield f"workspace/{printable_name(entry.path)}", content


def _is_of_library(path: str) -> bool:
    return not LIBRARIES.isdisjoint(path.split("/"))


def _code(repository: Path, on_missed: Callable[[str], object]) -> Iterator[tuple[str, bytes]]:
    """Yields each content that a file of the code had at any time."""
    git = repository / ".git"
    if not git.is_dir():
        return
    listed = run_git(git, "cat-file", "--batch-all-objects", "--batch-check").split(b"\n")
    blobs = [line.split()[0] for line in listed if line.split()[1:2] == [b"blob"]]
    if len(blobs) > MOST_CONTENTS:
        on_missed("code")
    # Of a name with a line break, only the beginning is known.
    named = dict(
        line.split(b" ", 1) for line in run_git(git, "rev-list", "--objects", "--all").split(b"\n") if b" " in line
    )
    for blob in blobs[:MOST_CONTENTS]:
        digest, path = blob.decode(), printable(named.get(blob, b"").decode("utf-8", "replace"))
        yield f"code/{path}@{digest[:12]}", run_git(git, "cat-file", "blob", digest)[:READ_BYTES]
