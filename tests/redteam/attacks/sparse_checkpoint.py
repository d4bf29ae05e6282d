"""Submits sparse checkpoints that take no space but claim gigabytes, in many files, to fill the grader's disk.

They are refused before anything is copied: the limit holds for a submission as a whole, not for each of its files.
"""

import json
import struct

LEVEL = "run"
SPEC = {"budget": "20s"}


def attack(scene):
    for name, count, size in (("one", 1, 4 << 30), ("many", 300, 12 << 20), ("nearly", 3, 15 << 20)):
        folder = scene.copy_model(f"output/{name}")
        (folder / "model.safetensors").unlink()  # beside it, other files are ignored
        for number in range(count):
            with (folder / f"model-{number:05}.safetensors").open("wb") as file:
                header = json.dumps({f"w{number}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}).encode()
                file.write(struct.pack("<Q", len(header)) + header)
                file.truncate(size)
        status, _ = scene.submit(folder)
        if status == 200 or status >= 500:
            return f"{name}: answered {status}"
    raise PermissionError("each was refused")


def held(after):
    used = sum(path.stat().st_size for path in after.run.checkpoints.rglob("*") if path.is_file())
    return f"the grader keeps {used >> 20} MiB of it" if used > 64 << 20 else after.got or ""
