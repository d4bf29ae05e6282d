"""Tests that shards that do not belong together, and indexes that lie about them, are refused."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.small_model import trained_copy
from tests.submission_tools import INDEX, NORM, as_shards, edit_index


# Each function spoils a submission.
def _same_tensor_twice(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder / "old.safetensors")
    (folder / "model.safetensors").rename(folder / "new.safetensors")


def _index_names_a_missing_file(folder: Path) -> None:
    edit_index(folder, **{NORM: "model-00003-of-00002.safetensors"})


def _index_points_outside(folder: Path) -> None:
    trained_copy(folder, folder.parent / "other", seed=2)
    edit_index(folder, **{NORM: "../other/model.safetensors"})


def _index_points_to_the_root(folder: Path) -> None:
    edit_index(folder, **{NORM: "/etc/x.safetensors"})


def _index_names_no_text(folder: Path) -> None:
    edit_index(folder, **{NORM: ["model-00001-of-00002.safetensors"]})


def _index_puts_a_tensor_elsewhere(folder: Path) -> None:
    as_shards(folder)
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    other = next(file for file in index.values() if file != index[NORM])
    (folder / INDEX).write_text(json.dumps({"weight_map": index | {NORM: other}}))


def _index_names_a_tensor_twice(folder: Path) -> None:
    as_shards(folder)
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace('"weight_map": {', f'"weight_map": {{"{NORM}": "x.safetensors", ', 1))


def _shards_saved_over_a_whole_model(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    as_shards(folder)
    (folder / "model.safetensors").write_bytes(whole)


def _index_without_end(folder: Path) -> None:
    as_shards(folder)
    with (folder / INDEX).open("r+b") as file:
        file.truncate(1 << 36)  # sparse


def _index_with_a_million_names(folder: Path) -> None:
    edit_index(folder, **{f"model.layers.{number}": "a" * 20 for number in range(1_000_000)})


def _index_is_a_list(folder: Path) -> None:
    as_shards(folder)
    (folder / INDEX).write_text('{"weight_map": []}')


def _truncated_shard(folder: Path) -> None:
    as_shards(folder)
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


BAD = {
    "the same tensor twice": (_same_tensor_twice, "is in both.*delete stale shards"),
    "an index that names a missing file": (
        _index_names_a_missing_file,
        "00003.*not in the folder; save",
    ),
    "an index that points outside": (_index_points_outside, r"no \*.safetensors file of the folder; save"),
    "an index that points to the root": (_index_points_to_the_root, r"no \*.safetensors file of the folder; save"),
    "an index that names no text": (_index_names_no_text, "index.*save the model again"),
    "an index that puts a tensor elsewhere": (_index_puts_a_tensor_elsewhere, "which lacks it; save it again"),
    "an index that names a tensor twice": (_index_names_a_tensor_twice, "not a valid index"),
    "shards saved over a whole model": (_shards_saved_over_a_whole_model, "holds two models: remove model.safetensors"),
    "an index without end": (_index_without_end, "index.json.*save the model again"),
    "an index with a million names": (_index_with_a_million_names, "index.json.*save the model again"),
    "an index that is a list": (_index_is_a_list, "not a valid index"),
    "a truncated shard": (_truncated_shard, "00001-of-00002.safetensors is truncated"),
}
"""Faults: a name, the function that makes it, and what the refusal says."""


@pytest.mark.parametrize("flaw", BAD)
def test_a_bad_index_is_refused_with_a_way_to_mend_it(refused: Callable[..., None], flaw: str) -> None:
    refused(*BAD[flaw])
