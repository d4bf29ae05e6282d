"""Submits an adapter with so many patterns and layers that comparing all with all takes hours.

Patterns are looked up for each layer, not walked through; their number has a limit that depends on the base model.
"""

import json
import struct
from pathlib import Path

LEVEL = "sandbox"
PLAIN = {
    "peft_type": "LORA",
    "r": 1,
    "lora_alpha": 1,
    "bias": "none",
    "init_lora_weights": True,
    "target_modules": ["q"],
}
LAYERS, PATTERNS = 15_000, 6_000


def attack(scene):
    folder = Path("output", "adapter")
    folder.mkdir(parents=True, exist_ok=True)
    patterns = {f"x{n}.{'a' * 60}": 1 for n in range(PATTERNS)}
    (folder / "submitted.adapter_config.json").write_text(
        json.dumps(PLAIN | {"rank_pattern": patterns, "alpha_pattern": patterns})
    )
    names = [f"base_model.model.l.{n}.{'a' * 60}.lora_{part}.weight" for n in range(LAYERS) for part in "AB"]
    header = {
        name: {"dtype": "F32", "shape": [1, 1], "data_offsets": [4 * n, 4 * n + 4]} for n, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(4 * len(names)))


def held(after):
    import tempfile

    from a2rl.core.errors import InvalidSubmissionError
    from a2rl.grading.adapters import check_adapter
    from tests.redteam.look import slow
    from tests.small_model import build_base_model

    def check(base):
        try:
            check_adapter(after.run.workspace / "output" / "adapter", base)
        except InvalidSubmissionError as error:
            if "more than" not in str(error):  # its size is the only reason to refuse it
                raise AssertionError from error

    with tempfile.TemporaryDirectory() as folder:
        base = build_base_model(Path(folder) / "small")
        return slow(20, lambda: check(base))
