"""The items of an eval set as texts, and the texts that the agent was given."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from a2rl.core.files import read_jsonl

FILES = ("eval.jsonl", "goals.jsonl")
QUESTIONS = ("question", "problem", "instruction", "prompt")
IDS = ("task_id", "id")
TEXT_FILES = ("*.jsonl", "*.json", "*.txt", "*.csv", "*.md")
MAX_FILE_BYTES = 256 << 20


def item_texts(hidden: Path) -> dict[str, str]:
    """Returns the question of each item by id; nothing if the items are not texts, such as games.

    Args:
        hidden: The grader's data.
    """
    for name in FILES:
        if (hidden / name).is_file():
            rows = read_jsonl(hidden / name)
            return {_id(row, place): text for place, row in enumerate(rows) if (text := _question(row))}
    return {}


def _id(row: dict[str, Any], place: int) -> str:
    return next((str(row[key]) for key in IDS if key in row), str(place))


def _question(row: dict[str, Any]) -> str:
    return next((row[key] for key in QUESTIONS if isinstance(row.get(key), str)), "")


def given_texts(visible: Path) -> list[str]:
    """Returns the lines of the texts that the agent was given; of rows, the text of their fields."""
    return [text for pattern in TEXT_FILES for path in sorted(visible.rglob(pattern)) for text in _texts(path)]


def _texts(path: Path) -> Iterator[str]:
    with path.open("rb") as file:
        lines = file.read(MAX_FILE_BYTES).decode("utf-8", "replace").splitlines()
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
