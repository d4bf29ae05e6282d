"""Reads a JSON object that an agent may have written."""

import json
from pathlib import Path
from typing import Any

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.checkpoint import MAX_JSON_BYTES
from a2rl.models.weight_index import unique_keys


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
        if path.stat().st_size <= largest:
            value = json.loads(path.read_bytes(), object_pairs_hook=unique_keys)
            if isinstance(value, dict):
                return value
    except (ValueError, RecursionError) as error:
        raise InvalidSubmissionError(f"{name} is not valid JSON; save the model again") from error
    raise InvalidSubmissionError(f"{name} is not a JSON object of a sensible size; save the model again")
