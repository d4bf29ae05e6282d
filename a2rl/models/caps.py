"""What a checkpoint may hold at most, so that a check of a hostile one takes seconds and less than 2 GiB of memory.

All caps are here, with the reading of JSON within them. They are far above what real models have: 100,000 tensors take
15 MiB of headers.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.errors import InvalidSubmissionError

MAX_JSON_BYTES = 64 << 20
"""The largest JSON text: the headers of a checkpoint's files, all together, or its tokenizer.json."""
MAX_JSON_VALUES = 4_000_000
"""The most values in one JSON text. The largest tokenizers have half as many."""
MAX_CONFIG_BYTES = 4 << 20
"""The largest config.json; those of real models have some kilobytes."""
MAX_ADAPTER_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 16 << 20
"""The index of a model with 100,000 tensors has about 10 MiB."""
MAX_FILES = 256
"""The number of files with weights. They are limited because all are open at the same time."""
MAX_FILES_IN_FOLDER = 2_000
MAX_NAME_CHARS, MAX_NAME_PARTS = 512, 32
"""The length of a tensor's name: renaming takes time that grows with the square of the number of parts."""
MAX_DIMENSIONS = 8
MAX_RANK = 4096
"""The rank of an adapter."""
TOKENIZER_SIZES = 4
"""A tokenizer.json may be so many times as large as the base model's, because versions of libraries indent it and write
merges in different ways."""
CHECK_S = 60
"""The processor time that a check of all but the numbers may take. Then it is ended, and the submission is refused."""


class Caps(NamedTuple):
    """What the headers of one checkpoint, or of one adapter, may hold."""

    header_bytes: int = MAX_JSON_BYTES
    tensors: int | None = None
    """The number of tensors, and of patterns of an adapter; None: as many as fit into the headers."""

    @classmethod
    def of(cls, base_tensors: int, *, are_adapter: bool = False) -> "Caps":
        """Returns the caps for a submission.

        Args:
            base_tensors: The number of the base model's tensors.
            are_adapter: Whether it is an adapter, which has up to three tensors for each of the base model's.
        """
        tensors = (3 if are_adapter else 2) * base_tensors + 1_000
        return cls(min(MAX_JSON_BYTES, (1 << 20) + tensors * 2 * MAX_NAME_CHARS), tensors)

    def check_header_bytes(self, length: int) -> None:
        """Refuses headers that are too long in all."""
        if length > self.header_bytes:
            raise InvalidSubmissionError(
                f"the headers of the weights take {length >> 10} KiB, more than the {self.header_bytes >> 10} KiB "
                "allowed for this base model; save the model alone with save_pretrained"
            )

    def check_number(self, number: int, what: str = "tensors") -> None:
        """Refuses more tensors or patterns than are allowed."""
        if self.tensors is not None and number > self.tensors:
            raise InvalidSubmissionError(
                f"there are more than {self.tensors} {what}, which is more than this base model can have; save the "
                "model alone with save_pretrained"
            )


UNKNOWN_BASE = Caps()
"""For checkpoints without a base model to compare them with, such as the base model itself."""


def parse_json(text: bytes) -> Any:
    """Returns the value of a JSON text, in time and memory that have limits.

    Raises:
        ValueError: It is not valid, has too many values or a key that is no text, or a key stands twice, and readers
            differ in which they take.
    """
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_JSON_VALUES:
        raise ValueError("it has too many values")
    return json.loads(text.decode(), object_pairs_hook=_unique_keys)  # of bytes, it would also read UTF-16


def read_json(path: Path, name: str, largest: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Reads a file with a JSON object.

    Args:
        name: What to call it in an error.

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
    "".join(found).encode()  # otherwise nothing could be made of it, such as a digest
    return found
