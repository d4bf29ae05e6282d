"""Submits weights whose tensors have names of millions of characters and parts, to make the check of them take hours.

Such names are refused before they are taken apart.
"""

import json
import struct
from pathlib import Path

LEVEL = "sandbox"


def attack(scene):
    for number, names in enumerate(
        (["a." * 400_000 + "b"], ["x" * 900_000], [f"{n}." + "y." * 3_000 for n in range(250)])
    ):
        folder = Path("output", f"v{number}")
        folder.mkdir(parents=True, exist_ok=True)
        header = {
            name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)
        }
        text = json.dumps(header).encode()
        data = struct.pack("<Q", len(text)) + text + bytes(4 * len(names))
        (folder / "model.safetensors").write_bytes(data)
        (folder / "adapter_model.safetensors").write_bytes(data)


def held(after):
    from a2rl.core.errors import InvalidSubmissionError
    from a2rl.models.checkpoint import tensors_in
    from tests.redteam.look import slow

    files = sorted((after.run.workspace / "output").glob("v?/*.safetensors"))

    def read(path):
        try:
            tensors_in(path)
        except InvalidSubmissionError:
            return
        raise AssertionError(f"{path} was accepted")

    return slow(5, *(lambda path=path: read(path) for path in files)) if len(files) == 6 else "it could not try"
