"""Rewrites the files of a checkpoint so that they contain only certain tensors, under certain names.

Every file gets a new header, so that nothing in it is as an agent wrote it: libraries differ in what they accept, and
the digest of the weights does not cover it. This is done in place. A tensor can be left out only by copying the others.
"""

import json
import os
import shutil
import struct
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.caps import MAX_JSON_BYTES
from a2rl.models.checkpoint import INDEX, WHOLE, Tensor, lie_in_order, tensors_in

ALIGNMENT = 8
BLOCK = 1 << 20


def keep_only(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Removes all other tensors from a folder's files, gives these their names, and writes the index.

    Raises:
        InvalidSubmissionError: The new names are too long for a header.
    """
    by_file: dict[Path, dict[str, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        by_file[tensor.file][name] = tensor
    for path in folder.glob("*.safetensors"):
        if path not in by_file:
            path.unlink()
    for path, kept in by_file.items():
        stored = tensors_in(path)
        start = min(each.start for each in stored.values())
        is_all = sum(each.size for each in stored.values()) == sum(each.size for each in kept.values())
        _rewrite(path, kept, is_complete=is_all and lie_in_order(kept.values(), start))
    (folder / INDEX).unlink(missing_ok=True)
    if {path.name for path in by_file} != {WHOLE}:
        index = {"metadata": {}, "weight_map": {name: tensors[name].file.name for name in sorted(tensors)}}
        (folder / INDEX).write_text(json.dumps(index), encoding="utf-8")


def _rewrite(path: Path, kept: Mapping[str, Tensor], is_complete: bool) -> None:
    with path.open("rb") as file:
        room = struct.unpack("<Q", file.read(8))[0]
    for with_format in (True, False):  # the agent's header may have no room for it, and no library needs it
        if is_complete and len(header := _header(kept, with_format)) <= room:
            with path.open("r+b") as file:
                file.seek(8)
                file.write(header.ljust(room))
                file.flush()
                os.fsync(file.fileno())
            return
    _copy_without_others(path, kept)


def _header(kept: Mapping[str, Tensor], with_format: bool = True) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}} if with_format else {}
    end = 0
    for name, tensor in sorted(kept.items(), key=lambda each: (each[1].start, each[1].size)):
        entries[name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [end, end + tensor.size]}
        end += tensor.size
    text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
    if len(text) > MAX_JSON_BYTES:
        raise InvalidSubmissionError("the names of the weights are too long; save the model with save_pretrained")
    return text


def _copy_without_others(path: Path, kept: Mapping[str, Tensor]) -> None:
    header, new = _header(kept), path.with_suffix(".rewritten")
    header = header.ljust(-(-len(header) // ALIGNMENT) * ALIGNMENT)
    with path.open("rb") as source, new.open("xb") as target:
        target.write(struct.pack("<Q", len(header)) + header)
        for tensor in sorted(kept.values(), key=lambda each: (each.start, each.size)):
            source.seek(tensor.start)
            left = tensor.size
            while left:
                block = source.read(min(BLOCK, left))
                target.write(block)
                left -= len(block)
        target.flush()
        os.fsync(target.fileno())
    shutil.move(new, path)
