"""Tests that tensors are hashed while their file passes by, whatever the blocks, and that nothing is read again."""

import random
import struct
from pathlib import Path

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.checkpoint import weights_digest
from a2rl.models.tensor_digests import TensorHasher
from tests.small_model import Weight, build_base_model, read_weights, write_raw_safetensors, write_safetensors


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_base_model(tmp_path_factory.mktemp("model"))


def hashed(path: Path, rng: random.Random) -> dict[str, str]:
    hasher, data = TensorHasher(), path.read_bytes()
    while data:
        size = rng.choice([1, 7, 100, 5000])
        hasher.update(data[:size])
        data = data[size:]
    return hasher.digests()


@pytest.mark.parametrize("seed", range(5))
def test_every_tensor_is_hashed_whatever_the_blocks(model: Path, seed: int) -> None:
    path = model / "model.safetensors"
    digests = hashed(path, random.Random(seed))
    assert digests.keys() == read_weights(model).keys()
    digest = weights_digest(model)
    path_away = path.rename(model / "away")
    try:
        write_safetensors(path, {name: Weight(w.dtype, w.shape, bytes(len(w.data))) for name, w in _weights(path_away)})
        assert weights_digest(model, {path.name: digests}) == digest != weights_digest(model)
    finally:
        path_away.rename(path)


def _weights(path: Path) -> list[tuple[str, Weight]]:
    folder = path.parent
    path.rename(folder / "only.safetensors")
    weights = list(read_weights(folder).items())
    (folder / "only.safetensors").rename(path)
    return weights


def test_tensors_without_bytes_are_right(tmp_path: Path) -> None:
    header = {
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]},
        "none": {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]},
        "a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "end": {"dtype": "F32", "shape": [0], "data_offsets": [12, 12]},
    }
    path = tmp_path / "model.safetensors"
    write_raw_safetensors(path, header, bytes(range(12)))
    for seed in range(20):
        digests = hashed(path, random.Random(seed))
        assert digests.keys() == header.keys()
        assert weights_digest(tmp_path, {path.name: digests}) == weights_digest(tmp_path)


@pytest.mark.parametrize("seed", range(5))
def test_only_tensors_that_are_not_finite_have_no_digest(tmp_path: Path, seed: int) -> None:
    path, nan = tmp_path / "model.safetensors", struct.pack("<f", float("nan"))
    weights = {name: Weight("F32", (300,), bytes(1200)) for name in ("a", "b", "c")}
    place = 4 * random.Random(seed).randrange(300)
    weights["b"] = Weight("F32", (300,), bytes(place) + nan + bytes(1196 - place))
    write_safetensors(path, weights, {"odd": "x" * seed})  # so that numbers begin at any offset
    assert hashed(path, random.Random(seed)).keys() == {"a", "c"}
    for size in (1, 3, 1201):
        hasher, data = TensorHasher(), path.read_bytes()
        for start in range(0, len(data), size):
            hasher.update(data[start : start + size])
        assert hasher.digests().keys() == {"a", "c"}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
          "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}}, bytes(12)),
        ({"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}}, bytes(8)),
        ({"a": 1}, bytes(8)),
        ([1, 2], b""),
    ],
)  # fmt: skip
def test_an_invalid_file_has_no_digests_but_fails_the_checks(tmp_path: Path, header: object, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    write_raw_safetensors(path, header, data)
    assert hashed(path, random.Random(0)) == {}


def test_a_truncated_file_has_digests_only_of_its_whole_tensors(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((model / "model.safetensors").read_bytes()[:-8])
    digests = hashed(path, random.Random(0))
    assert len(digests) == len(read_weights(model)) - 1
    with pytest.raises(InvalidSubmissionError, match="truncated"):
        weights_digest(tmp_path, {path.name: digests})


def test_a_header_of_impossible_size_is_not_collected() -> None:
    hasher = TensorHasher()
    hasher.update(b"\xff" * 8)
    for _ in range(10):
        hasher.update(bytes(1 << 20))
    assert hasher.digests() == {}
