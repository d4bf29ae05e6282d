"""Reads the headers of a checkpoint's safetensors files, and computes the digest that identifies its weights.

Nothing except JSON is deserialised here. An index (which tensor is in which file) may come from an agent, so nothing in
it is believed: it must be short, and name files by plain names.
"""

import hashlib
import math
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, Strict, model_validator

from a2rl.core.errors import InvalidSubmissionError, UsageError
from a2rl.core.files import digest_of
from a2rl.models.caps import (
    MAX_DIMENSIONS,
    MAX_INDEX_BYTES,
    MAX_NAME_CHARS,
    MAX_NAME_PARTS,
    UNKNOWN_BASE,
    Caps,
    parse_json,
)

INDEX = "model.safetensors.index.json"
WHOLE = "model.safetensors"
"""The file of a checkpoint that is not sharded."""
SMALL_FILES = ("*.json", "*.txt", "*.jinja", "*.model")
"""The files of a base model besides its weights: configuration, tokenizer and chat template."""
OTHER_LAYOUTS = ("consolidated", "adapter_")
"""Beginnings of the names of files that are no part of a transformers checkpoint: Mistral's own layout (the same
weights under other names), and adapters."""
BLOCK = 1 << 20
SAFETENSORS_RECIPE = "save the weights with model.save_pretrained(path), which writes *.safetensors"
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""The data types that weights may have, with the number of bytes per value."""
UNPACKED = 4
"""Bytes for each byte of quantised weights: a byte has two values, and each takes two bytes."""
IN_NAME = re.compile(r"(?<![\d.])(?:(\d+)x)?(\d+(?:\.\d+)?)([BM])(?![A-Za-z])", re.IGNORECASE)
"""The number of parameters in the name of a model, such as 7B, 0.5B or 8x7B."""
Dimension = Annotated[NonNegativeInt, Field(lt=1 << 63)]


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


@dataclass(frozen=True, slots=True)
class Tensor:
    """The position of a tensor in a safetensors file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of the first byte in the file."""
    size: int


class Entry(BaseModel):
    """The entry for one tensor in a safetensors header."""

    model_config = ConfigDict(strict=True)

    dtype: str
    # Both the number of dimensions and their sizes are limited: multiplying a million long numbers would take hours.
    shape: Annotated[tuple[Dimension, ...], Strict(False), Field(max_length=MAX_DIMENSIONS)]
    data_offsets: Annotated[tuple[NonNegativeInt, NonNegativeInt], Strict(False)]

    @model_validator(mode="after")
    def _in_order(self) -> "Entry":
        if self.data_offsets[0] > self.data_offsets[1]:
            raise ValueError("data_offsets end before they begin")
        return self


def tensors_of(folder: Path, caps: Caps = UNKNOWN_BASE) -> dict[str, Tensor]:
    """Returns the tensors of a checkpoint by name. Only the headers of its files are read, none if they are too long.

    If there is an index, it says which tensors count and where they are; all other files are ignored. Without one,
    `model.safetensors` is the whole model. If that is missing, too, all *.safetensors together are.

    Raises:
        InvalidSubmissionError: The index or a header is not valid, exceeds the caps, or two files contain the same
            tensor.
    """
    if (folder / INDEX).exists():
        return _indexed(folder, read_index(folder / INDEX), caps)
    tensors: dict[str, Tensor] = {}
    files = files_that_count({path.name for path in folder.glob("*.safetensors")})
    for path, found in _headers([folder / file for file in files], caps):
        for name, tensor in found.items():
            if name in tensors:
                raise InvalidSubmissionError(
                    f"tensor {name[:200]} is in both {tensors[name].file.name} and {path.name}; delete stale shards"
                )
            tensors[name] = tensor
    return tensors


def unpacked_bytes(folder: Path) -> int:
    """Returns what the weights of a checkpoint take when nothing in them is quantised, as in every submission.

    Raises:
        InvalidSubmissionError: As `tensors_of`.
    """
    return sum(each.size * (1 if each.dtype in BYTES else UNPACKED) for each in tensors_of(folder).values())


def _headers(files: Iterable[Path], caps: Caps) -> Iterator[tuple[Path, dict[str, Tensor]]]:
    """Yields the tensors of each file, after a look at how long all headers are."""
    paths = list(files)
    caps.check_header_bytes(sum(map(_header_length, paths)))
    number = 0
    for path in paths:
        found = tensors_in(path, caps)
        number += len(found)
        caps.check_number(number)
        yield path, found


def _header_length(path: Path) -> int:
    """Returns how long the header of a file says it is; no more than the file."""
    with path.open("rb") as file:
        prefix = file.read(8)
    return min(path.stat().st_size, int(struct.unpack("<Q", prefix)[0])) if len(prefix) == 8 else 0


def _indexed(folder: Path, index: Mapping[str, str], caps: Caps) -> dict[str, Tensor]:
    caps.check_number(len(index))
    files = sorted(set(index.values()))
    if missing := [file for file in files if not (folder / file).is_file()]:
        raise InvalidSubmissionError(missing_file(missing[0]))
    headers = {path.name: found for path, found in _headers([folder / file for file in files], caps)}
    for name, file in index.items():
        if name not in headers[file]:
            raise InvalidSubmissionError(f"{INDEX} says that {name[:200]} is in {file}, which lacks it; save it again")
    return {name: headers[file][name] for name, file in index.items()}


def tensors_in(path: Path, caps: Caps = UNKNOWN_BASE) -> dict[str, Tensor]:
    """Returns the tensors of one safetensors file by name; only the header is read.

    Raises:
        InvalidSubmissionError: The file is not valid, exceeds the caps, or is shorter than its header says.
    """
    # Format: https://huggingface.co/docs/safetensors/index#format
    total = path.stat().st_size
    broken = InvalidSubmissionError(f"{path.name} is not a valid safetensors file; {SAFETENSORS_RECIPE}")
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise broken
        length = struct.unpack("<Q", prefix)[0]
        if length > total - 8:
            raise broken
        caps.check_header_bytes(length)
        try:
            header = parse_json(file.read(length))
            metadata = header.pop("__metadata__", None)
            if metadata is not None and not all(isinstance(text, str) for text in metadata.values()):
                raise broken  # the library would refuse it
            caps.check_number(len(header))
            _refuse_long_names(header, path.name)
            tensors = {
                name: _tensor(path, name, 8 + length, Entry.model_validate(entry)) for name, entry in header.items()
            }
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise broken from error
    end = max((tensor.start + tensor.size for tensor in tensors.values()), default=8 + length)
    if end > total:
        raise InvalidSubmissionError(
            f"{path.name} is truncated; was the disk full or the save still going on? Save it again"
        )
    if end < total or not lie_in_order(tensors.values(), 8 + length):
        raise broken
    return tensors


def _refuse_long_names(names: Iterable[str], file: str) -> None:
    """Refuses names that no model has."""
    for name in names:
        if len(name) > MAX_NAME_CHARS or name.count(".") >= MAX_NAME_PARTS:
            raise InvalidSubmissionError(
                f"{file} has a tensor whose name has more than {MAX_NAME_CHARS} characters or {MAX_NAME_PARTS} parts: "
                f"{name[:100]}...; {SAFETENSORS_RECIPE}"
            )


def lie_in_order(tensors: Iterable[Tensor], start: int) -> bool:
    """Returns whether the tensors lie one behind the other, with neither holes nor overlaps."""
    for tensor in sorted(tensors, key=lambda each: (each.start, each.size)):
        if tensor.start != start:
            return False
        start += tensor.size
    return True


def _tensor(path: Path, name: str, data_start: int, entry: Entry) -> Tensor:
    start, end = entry.data_offsets
    if entry.dtype in BYTES and end - start != math.prod(entry.shape) * BYTES[entry.dtype]:
        raise ValueError("offsets and shape disagree")
    return Tensor(path, entry.dtype, entry.shape, data_start + start, end - start)


SIZE_ALLOWANCE = 16 << 20


def largest_size(base: Mapping[str, Tensor]) -> int:
    """Returns how many bytes the weights of a submission may have, given the base model's tensors.

    They may be in float32, whatever the base model is stored in, contain a copy of the embedding as head, and have a
    margin of a quarter.
    """
    values = [tensor.size / BYTES.get(tensor.dtype, 0.5) for tensor in base.values()]  # half a byte: quantised
    stored = sum(tensor.size for tensor in base.values())
    return int(1.25 * max(stored, 4 * sum(values) + 4 * max(values, default=0))) + SIZE_ALLOWANCE


Look = Callable[[str, Tensor, bytes], None]
"""Called with a tensor's name, the tensor and each block of its bytes while the bytes are read for the digest."""


def weights_digest(folder: Path) -> str:
    """Returns the SHA-256 digest (hex) of the names, types, shapes and bytes of all tensors.

    It does not depend on how the tensors are distributed over files.
    """
    tensors = tensors_of(folder)
    return digest_of_tensors(tensors, {name: tensor_digest(name, tensor) for name, tensor in tensors.items()})


def digest_of_tensors(tensors: Mapping[str, Tensor], digests: Mapping[str, str]) -> str:
    """Returns the digest of a checkpoint from those of its tensors' bytes."""
    return digest_of([[name, tensor.dtype, tensor.shape, digests[name]] for name, tensor in sorted(tensors.items())])


def tensor_digest(name: str, tensor: Tensor, look: Look = lambda name, tensor, block: None) -> str:
    """Returns the SHA-256 digest (hex) of a tensor's bytes. Each byte is read once."""
    digest = hashlib.sha256()
    for block in blocks_of(tensor):
        look(name, tensor, block)
        digest.update(block)
    return digest.hexdigest()


def blocks_of(tensor: Tensor) -> Iterator[bytes]:
    """Yields a tensor's bytes in blocks of whole numbers.

    Raises:
        InvalidSubmissionError: The file ends before the tensor does.
    """
    with tensor.file.open("rb") as file:
        file.seek(tensor.start)
        left = tensor.size
        while left:
            block = file.read(min(BLOCK, left))
            if not block:
                raise InvalidSubmissionError(f"{tensor.file.name} ended early; save it again")
            yield block
            left -= len(block)


def check_base_model(folder: Path) -> None:
    """Refuses a base model that the pipeline could not use.

    Raises:
        UsageError: Something is missing; the message says what, and how to fix it.
    """
    if not folder.is_dir():
        raise UsageError(
            f"no model folder {folder}: give a folder with config.json and *.safetensors, a hub id, or a name of "
            "`a2rl models`"
        )
    for needed in ("config.json", "tokenizer_config.json"):
        if not os.access(folder / needed, os.R_OK):
            raise UsageError(
                f"{folder} has no readable {needed}: save the model and its tokenizer there with save_pretrained"
            )
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} has no *.safetensors: save the model there with save_pretrained")
    try:
        files = {tensor.file.name for tensor in tensors_of(folder).values()}
    except InvalidSubmissionError as error:
        raise UsageError(f"{folder}: {error}") from error
    if WHOLE not in files and (folder / WHOLE).exists():
        raise UsageError(
            f"{folder} has both {WHOLE} and an index of other files, and back ends differ in which they load: "
            "remove one of the two"
        )


def parameters_in_name(model: str) -> int | None:
    """Returns the number of parameters that a model's name states; None if it states none.

    A mixture such as 8x7B has fewer, because its experts share their attention.
    """
    named = IN_NAME.search(Path(model.partition("@")[0]).name)
    return None if named is None else round(int(named[1] or 1) * float(named[2]) * (1e9 if named[3] in "Bb" else 1e6))


def parameters_in(folder: Path) -> int | None:
    """Returns the number of parameters in a folder's safetensors files, whose headers alone are read; None if there are
    none that can be read."""
    try:
        return sum(prod(tensor.shape) for tensor in tensors_of(folder).values()) or None
    except (OSError, InvalidSubmissionError):
        return None
