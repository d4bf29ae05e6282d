"""Submitted checkpoints: copied out of the agent's reach, checked against the base model, named by their weights.

The copy is what is graded, so nothing that happens to the agent's folder afterwards matters. Only the weights are the
agent's: configuration, tokenizer and chat template of the copy are the base model's own, so that no code, template or
vocabulary travels with a submission. Nothing is deserialised here but JSON.
"""

import hashlib
import json
import math
import os
import shutil
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeInt, Strict, model_validator

from a2rl.errors import InfrastructureError, InvalidSubmission, UsageError
from a2rl.files import digest_of
from a2rl.submitted_files import MAX_JSON_BYTES, SAFETENSORS_RECIPE, SubmittedFiles

BLOCK = 1 << 20
SIZE_LIMIT = 2.5
"""A submission may weigh this many times the base model: float32 weights of a bfloat16 model, and some room."""
SIZE_ALLOWANCE = 16 << 20
BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
"""The types that weights may have, and how many bytes a number takes."""
ARCHITECTURE = {
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "hidden_act",
}  # fmt: skip
"""Keys of config.json that must be the base model's. Others may differ: every version of transformers saves some in its
own way (`sliding_window`, `rope_scaling`), and the copy has the base model's config.json in any case."""


MAX_DIMENSIONS = 8
Dimension = Annotated[NonNegativeInt, Field(lt=1 << 63)]


@dataclass(frozen=True, slots=True)
class Tensor:
    """Where a tensor lies in a safetensors file."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    start: int
    """Offset of the first byte in the file."""
    size: int


class Entry(BaseModel):
    """What a safetensors header says of a tensor."""

    model_config = ConfigDict(strict=True)

    dtype: str
    # Short, and of numbers that a file can hold: to multiply a million long ones would take hours.
    shape: Annotated[tuple[Dimension, ...], Strict(False), Field(max_length=MAX_DIMENSIONS)]
    data_offsets: Annotated[tuple[NonNegativeInt, NonNegativeInt], Strict(False)]

    @model_validator(mode="after")
    def _in_order(self) -> "Entry":
        if self.data_offsets[0] > self.data_offsets[1]:
            raise ValueError("data_offsets end before they begin")
        return self


def tensors_of(folder: Path) -> dict[str, Tensor]:
    """All tensors in the *.safetensors of a folder, read from the headers alone.

    Raises:
        InvalidSubmission: a header is not valid or two files hold the same tensor.
    """
    tensors: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in _read_header(path).items():
            if name in tensors:
                raise InvalidSubmission(
                    f"tensor {name} is in both {tensors[name].file.name} and {path.name}; delete stale shards"
                )
            tensors[name] = tensor
    return tensors


def _read_header(path: Path) -> dict[str, Tensor]:
    # Format: https://huggingface.co/docs/safetensors/index#format
    total = path.stat().st_size
    broken = InvalidSubmission(f"{path.name} is not a valid safetensors file; {SAFETENSORS_RECIPE}")
    with path.open("rb") as file:
        prefix = file.read(8)
        if len(prefix) < 8:
            raise broken
        length = struct.unpack("<Q", prefix)[0]
        if length > min(total - 8, MAX_JSON_BYTES):
            raise broken
        try:
            header = json.loads(file.read(length))
            header.pop("__metadata__", None)
            tensors = {name: _tensor(path, 8 + length, Entry.model_validate(entry)) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
            raise broken from error
    if any(tensor.start + tensor.size > total for tensor in tensors.values()):
        raise InvalidSubmission(
            f"{path.name} is truncated; was the disk full or the save still going on? Save it again"
        )
    return tensors


def _tensor(path: Path, data_start: int, entry: Entry) -> Tensor:
    start, end = entry.data_offsets
    if entry.dtype in BYTES and end - start != math.prod(entry.shape) * BYTES[entry.dtype]:
        raise ValueError("offsets and shape disagree")
    return Tensor(path, entry.dtype, entry.shape, data_start + start, end - start)


def weights_digest(folder: Path) -> str:
    """SHA-256 (hex) over the tensors' names, types, shapes and bytes: the same however they are spread over files."""
    digests = []
    for name, tensor in sorted(tensors_of(folder).items()):
        digest = hashlib.sha256()
        with tensor.file.open("rb") as file:
            file.seek(tensor.start)
            left = tensor.size
            while left:
                block = file.read(min(BLOCK, left))
                if not block:
                    raise InvalidSubmission(f"{tensor.file.name} ended early; save it again")
                digest.update(block)
                left -= len(block)
        digests.append([name, tensor.dtype, tensor.shape, digest.hexdigest()])
    return digest_of(digests)


def check_base_model(folder: Path) -> None:
    """Refuses a base model that the pipeline could not use.

    Raises:
        UsageError: what is missing and how to mend it.
    """
    if not folder.is_dir():
        raise UsageError(
            f"no model folder {folder}: give a folder with config.json and *.safetensors, a hub id, or `tiny`"
        )
    for needed in ("config.json", "tokenizer_config.json"):
        if not os.access(folder / needed, os.R_OK):
            raise UsageError(
                f"{folder} has no readable {needed}: save the model and its tokenizer there with save_pretrained"
            )
    if not any(folder.glob("*.safetensors")):
        raise UsageError(f"{folder} has no *.safetensors: save the model there with save_pretrained")
    try:
        tensors_of(folder)
    except InvalidSubmission as error:
        raise UsageError(f"{folder}: {error}") from error


def copy_submission(workspace: Path, model_path: str, target: Path, base_model: Path) -> None:
    """Copies the weights of a submission into `target` and puts the base model's other files beside them.

    Its files are opened once, checked as opened, and copied from there, so that a link, a swap in mid-copy or a device
    gains nothing. It ends in any case: what is read more slowly than beneath.SLOWEST is given up.

    Args:
        workspace: the agent's workspace; the submission must lie inside it.
        model_path: as the agent named it, absolute or relative to the workspace.
        target: a new folder.
        base_model: the folder of the base model.

    Raises:
        InvalidSubmission: it cannot be graded; the message says why and how to mend it.
        InfrastructureError: this machine cannot copy it, such as for lack of room.
    """
    try:
        limit = int(SIZE_LIMIT * sum(tensor.size for tensor in tensors_of(base_model).values())) + SIZE_ALLOWANCE
        target.mkdir(parents=True)
        with SubmittedFiles(workspace, model_path) as files:
            files.check_sizes(limit)
            files.copy(target)
        _check_against_base(target, base_model)
        _take_from_base(target, base_model)
    except OSError as error:
        raise InfrastructureError(
            f"the grader could not copy the submission: {error.strerror or error}; submit again later"
        ) from error


def _check_against_base(copy: Path, base_model: Path) -> None:
    _check_config(
        _read_json(copy / "submitted.config.json", "config.json"), _read_json(base_model / "config.json", "config.json")
    )
    submitted, base = tensors_of(copy), tensors_of(base_model)
    submitted.pop("lm_head.weight", None) if "lm_head.weight" not in base else None  # a tied head, saved twice
    if missing := sorted(base.keys() - submitted.keys()):
        raise InvalidSubmission(
            f"{len(missing)} weights of the base model are missing, {missing[0]} first; submit the full model"
        )
    if extra := sorted(submitted.keys() - base.keys()):
        raise InvalidSubmission(
            f"{len(extra)} weights are not the base model's, {extra[0]} first; submit the base model's architecture"
        )
    for name, tensor in submitted.items():
        if tensor.shape != base[name].shape:
            raise InvalidSubmission(
                f"{name} has shape {tensor.shape}, the base model's has {base[name].shape}; do not resize it"
            )
        if tensor.dtype not in BYTES:
            raise InvalidSubmission(
                f"{name} is stored as {tensor.dtype}; save the weights as bfloat16, float16 or float32"
            )
    _check_tokenizer(copy / "submitted.tokenizer.json", base_model / "tokenizer.json")


def _check_config(submitted: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    if "auto_map" in submitted:
        raise InvalidSubmission(
            "config.json asks for code of its own (auto_map); the grader runs none: submit the base architecture"
        )
    for key in sorted(ARCHITECTURE & base.keys() & submitted.keys()):
        if submitted[key] != base[key]:
            raise InvalidSubmission(
                f"config.json has {key} = {submitted[key]!r}, the base model has {base[key]!r}; "
                "submit the base model's architecture"
            )


def _check_tokenizer(submitted: Path, base: Path) -> None:
    if not (submitted.exists() and base.exists()):
        return  # the grader uses the base model's in any case
    theirs, ours = _read_json(submitted, "tokenizer.json"), _read_json(base, "tokenizer.json")
    if _vocabulary(theirs) != _vocabulary(ours):
        raise InvalidSubmission(
            "the tokenizer is not the base model's; the grader uses the base model's, so train with it"
        )


def _vocabulary(tokenizer: Mapping[str, Any]) -> list[Any]:
    """What decides which token is which. A merge is "a b" or ["a", "b"], as the version of the library writes it."""
    model = tokenizer.get("model")
    model = model if isinstance(model, dict) else {}
    merges = model.get("merges")
    pairs = [each.split(" ") if isinstance(each, str) else each for each in merges] if isinstance(merges, list) else []
    return [model.get("vocab"), pairs, tokenizer.get("added_tokens")]


def _read_json(path: Path, name: str) -> dict[str, Any]:
    try:
        if path.stat().st_size <= MAX_JSON_BYTES:
            value = json.loads(path.read_bytes())
            if isinstance(value, dict):
                return value
    except (ValueError, RecursionError) as error:
        raise InvalidSubmission(f"{name} is not valid JSON; save the model again") from error
    raise InvalidSubmission(f"{name} is not a JSON object of a sensible size; save the model again")


def _take_from_base(copy: Path, base_model: Path) -> None:
    for path in copy.glob("submitted.*"):
        path.unlink()
    for path in base_model.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name != "model.safetensors.index.json":
            shutil.copyfile(path, copy / path.name)
    _write_index(copy)


def _write_index(folder: Path) -> None:
    """Sharded weights are found through an index; ours is made from the headers, not taken from the agent."""
    tensors = tensors_of(folder)
    if {tensor.file.name for tensor in tensors.values()} != {"model.safetensors"}:
        index = {"metadata": {}, "weight_map": {name: tensor.file.name for name, tensor in tensors.items()}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
