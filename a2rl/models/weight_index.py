"""The index of a checkpoint, `model.safetensors.index.json`: which tensor is in which file.

An index may come from an agent, so nothing in it is believed: it must be short, and name files by plain names.
"""

from collections.abc import Collection
from pathlib import Path

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.caps import MAX_INDEX_BYTES
from a2rl.models.json_object import parse_json

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
"""The file of a checkpoint that is not sharded."""
OTHER_LAYOUTS = ("consolidated", "adapter_")
"""Beginnings of the names of files that are no part of a transformers checkpoint: Mistral's own layout (the same
weights under other names), and adapters."""


def files_that_count(names: Collection[str]) -> list[str]:
    """Returns the names of the files with weights, for a folder without an index."""
    if WHOLE in names:
        return [WHOLE]
    return sorted(name for name in names if name.endswith(".safetensors") and not name.startswith(OTHER_LAYOUTS))


def read_index(path: Path) -> dict[str, str]:
    """Returns the file name of each tensor.

    Raises:
        InvalidSubmissionError: The index is not valid.
    """
    with path.open("rb") as file:
        return parse_index(file.read(MAX_INDEX_BYTES + 1))


def parse_index(text: bytes) -> dict[str, str]:
    """Returns the file name of each tensor from the bytes of an index.

    Raises:
        InvalidSubmissionError: The index is not valid.
    """
    broken = InvalidSubmissionError(f"{INDEX} is not a valid index; save the model again with save_pretrained")
    if len(text) > MAX_INDEX_BYTES:
        raise InvalidSubmissionError(f"{INDEX} has more than {MAX_INDEX_BYTES >> 20} MiB; save the model again")
    try:
        index = parse_json(text)["weight_map"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise broken from error
    if not isinstance(index, dict) or not index:
        raise broken
    for file in set(map(str, index.values())):
        if "/" in file or "\0" in file or not file.endswith(".safetensors") or file.startswith("."):
            raise InvalidSubmissionError(
                f"{INDEX} names {file[:200]!r}, which is no *.safetensors file of the folder; save the model again"
            )
    if not all(isinstance(file, str) for file in index.values()):
        raise broken
    return index


def missing_file(file: str) -> str:
    """Returns what is wrong with an index that names a file that is not there, and how to fix it."""
    return (
        f"{INDEX} names {file[:200]!r}, which is not in the folder; save the model again, or delete the index if "
        f"{WHOLE} is the whole model"
    )
