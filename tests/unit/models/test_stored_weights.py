"""Tests that a rewritten file has exactly the tensors that were kept."""

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors import deserialize

from a2rl.models.checkpoint import tensors_in
from a2rl.models.stored_weights import keep_only
from tests.small_model import Weight, read_weights, write_safetensors


def test_parts_of_one_tensor_do_not_stand_for_another(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    write_safetensors(file, {"a": Weight("U8", (4,), b"1234"), "b": Weight("U8", (2,), b"56")})
    whole = tensors_in(file)["a"]
    first = replace(whole, shape=(2,), size=2)
    keep_only(tmp_path, {"first": first, "second": replace(first, start=first.start + 2)})
    assert {name: weight.data for name, weight in read_weights(tmp_path).items()} == {"first": b"12", "second": b"34"}
    assert set(tensors_in(file)) == {"first", "second"}


@pytest.mark.parametrize(
    "header",
    [
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"more":NaN}}',
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[-0,4]}}',
        '{"__metadata__":{"a":"\\ud800"},"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
        '{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}',
    ],
    ids=["no number", "minus zero", "half a letter", "no room for the format"],
)
def test_no_header_is_kept_as_an_agent_wrote_it(tmp_path: Path, header: str) -> None:
    """Libraries refuse some. The weights stay where they are: a copy of them takes time and space."""
    file = tmp_path / "model.safetensors"
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"1234")
    before = file.stat().st_ino
    keep_only(tmp_path, tensors_in(file))
    read: Any = deserialize  # the library gives it no types
    assert read(file.read_bytes()) == [("a", {"dtype": "F32", "shape": [1], "data": b"1234"})]
    assert file.stat().st_ino == before
