"""The texts that are compared: the items of an eval set, what the agent was given, and every text that it wrote.

What it wrote is the history of its code, what is in its workspace, and what it printed. All texts that are left in the
workspace are searched, training files included. Equal files are searched once, because each checkpoint has a copy of
the tokenizer. Of files that its processes were seen to open and that are gone since, only the names are known.
"""

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.files import read_jsonl
from a2rl.linux.untrusted_folder import Limits, UntrustedFolder, printable_name
from a2rl.recording.code_history import run_git
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
    """Returns the strings in a line of JSON, one below the other; another line as it is."""
    if line.lstrip()[:1] not in ("{", "["):
        return line
    try:
        return "\n".join(_strings(json.loads(line)))
    except (ValueError, RecursionError):
        return line


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
LIMITS = Limits(entries=20_000, depth=32, seconds=10.0)
NOT_TEXT = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".npy", ".npz", ".so", ".png", ".arrow", ".parquet", ".gz")
BINARY_BYTES = 4096
"""A file with a zero byte among its first bytes is no text."""
SKIPPED = frozenset({".git", "__pycache__", "site-packages", "node_modules"})
LINE_CHARS = 4000
"""Longer lines are cut into pieces."""


class Piece(NamedTuple):
    """A part of a text, short enough to be shown."""

    file: str
    """Relative to the run directory; for code that was changed later, with the digest of the file in its history."""
    line: int
    text: str


class TooMuchTextError(Exception):
    """The agent wrote more text than is searched."""


def written_by_agent(run: RunDir) -> Iterator[Piece]:
    """Yields everything that the agent wrote, line by line.

    Raises:
        TooMuchTextError: There is too much text, so a part was left out; raised after the rest was yielded.
    """
    unread, unsearched, is_cut, seen = MAX_READ_BYTES, MAX_BYTES, False, set[bytes]()
    for file, content in _contents(run):
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
    if is_cut:
        raise TooMuchTextError


def read_and_gone(run: RunDir) -> list[str]:
    """Returns the files of the workspace that the agent's processes were seen to read, and that are gone."""
    log = run.logs / "processes.jsonl"
    rows = read_jsonl(log) if log.is_file() else []
    names = {str(name) for row in rows for name in row.get("read", ())}
    kept = (name for name in names if not name.lower().endswith(NOT_TEXT) and not set(name.split("/")) & SKIPPED)
    return sorted(name for name in kept if not os.path.lexists(run.workspace / name))


def pieces(file: str, content: bytes) -> Iterator[Piece]:
    """Yields the lines of a text."""
    for number, line in enumerate(content.decode("utf-8", "replace").split("\n"), start=1):
        if len(line) > 2:
            for start in range(0, len(line), LINE_CHARS):
                yield Piece(file, number, line[start : start + LINE_CHARS + LINE_CHARS // 8])


def _contents(run: RunDir) -> Iterator[tuple[str, bytes]]:
    yield from _code(run.code)
    yield from _workspace(run.workspace)
    for name in ("agent.log", "transcript-*.jsonl"):
        for path in sorted(run.logs.glob(name)):
            yield f"logs/{path.name}", _head(path)
    if run.trajectory.is_file():
        yield run.trajectory.name, _head(run.trajectory)


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(READ_BYTES)


def _workspace(folder: Path) -> Iterator[tuple[str, bytes]]:
    try:
        workspace = UntrustedFolder.at(folder)
    except FileNotFoundError:
        return
    with workspace:
        for entry in workspace.walk(limits=LIMITS, skip=SKIPPED):
            if entry.is_file and not entry.path.lower().endswith(NOT_TEXT):
                try:
                    content = workspace.read(entry.path, READ_BYTES)
                except OSError:  # the agent left a file that cannot be read, such as a second name of another one
                    continue
                yield f"workspace/{printable_name(entry.path)}", content


def _code(repository: Path) -> Iterator[tuple[str, bytes]]:
    """Yields each content that a file of the code had at any time."""
    git = repository / ".git"
    if not git.is_dir():
        return
    listed = run_git(git, "rev-list", "--objects", "--all").decode("utf-8", "replace")
    for line in islice(listed.splitlines(), LIMITS.entries):
        digest, _, path = line.partition(" ")
        if path and run_git(git, "cat-file", "-t", digest).strip() == b"blob":
            yield f"code/{path}@{digest[:12]}", run_git(git, "cat-file", "blob", digest)[:READ_BYTES]
