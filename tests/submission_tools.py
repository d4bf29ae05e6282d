"""Changes the files of a submission, for tests of what the grader does with them."""

import json
import struct
from pathlib import Path

from tests.small_model import Weight, read_weights, write_raw_safetensors, write_safetensors

NORM = "model.norm.weight"


INDEX = "model.safetensors.index.json"


def header_of(path: Path) -> dict[str, object]:
    raw = path.read_bytes()
    return dict(json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]]))


def rewrite(folder: Path, **changed: Weight | None) -> None:
    weights = read_weights(folder)
    for name, weight in changed.items():
        if weight is None:
            del weights[name]
        else:
            weights[name] = weight
    write_safetensors(folder / "model.safetensors", weights)


def edit_header(folder: Path, **entry: object) -> None:
    """Changes one tensor's entry in the header, without changing the bytes."""
    path = folder / "model.safetensors"
    header = header_of(path)
    data = path.read_bytes()[8 + struct.unpack("<Q", path.read_bytes()[:8])[0] :]
    header[NORM] = {**dict(header[NORM]), **entry}  # type: ignore[call-overload]
    write_raw_safetensors(path, header, data)


def as_shards(folder: Path) -> None:
    """Splits the weights into two files with an index."""
    shard(folder, 2)


def edit_index(folder: Path, **changed: object) -> None:
    as_shards(folder)
    path = folder / INDEX
    index = json.loads(path.read_text())
    index["weight_map"] |= changed
    path.write_text(json.dumps(index))


def shard(folder: Path, files: int) -> None:
    """Splits the weights into several files, as save_pretrained does with large models."""
    weights = read_weights(folder)
    where: dict[str, str] = {}
    (folder / "model.safetensors").unlink()
    for number in range(files):
        part = {name: weight for place, (name, weight) in enumerate(weights.items()) if place % files == number}
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        write_safetensors(folder / file, part, {"format": "pt"})
        where |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def index_of(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / INDEX).read_text())["weight_map"])
