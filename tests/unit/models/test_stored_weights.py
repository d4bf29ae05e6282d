"""Tests that a rewritten file has exactly the tensors that were kept."""

from dataclasses import replace
from pathlib import Path

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
