"""Reads JSON that an agent may have written."""

import json
from pathlib import Path
from typing import Any

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.caps import MAX_JSON_BYTES, MAX_JSON_VALUES


def parse_json(text: bytes) -> Any:
    """Returns the value of a JSON text, in time and memory that have limits.

    Raises:
        ValueError: It is not valid, has too many values, or a key stands twice, and readers differ in which they take.
    """
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise ValueError("it has too many values")
    return json.loads(text, object_pairs_hook=_unique_keys)


def read_json(path: Path, name: str, largest: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Reads a file with a JSON object.

    Args:
        path: The file.
        name: What to call it in an error.
        largest: The largest size in bytes.

    Raises:
        InvalidSubmissionError: It is something else.
    """
    try:
        with path.open("rb") as file:
            text = file.read(largest + 1)
        if len(text) <= largest and isinstance(value := parse_json(text), dict):
            return value
    except (ValueError, RecursionError) as error:
        raise InvalidSubmissionError(f"{name} is not valid JSON; save the model again") from error
    raise InvalidSubmissionError(f"{name} is not a JSON object of a sensible size; save the model again")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found
