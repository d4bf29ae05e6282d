"""Submits checkpoints that are made to break readers: endless headers, shards elsewhere, missing weights.

Each is refused with a reason, and the service continues: a valid checkpoint after them is graded.
"""

import json
import struct

LEVEL = "run"
SPEC = {"budget": "20s"}


def header(entries, length=None):
    text = entries if isinstance(entries, bytes) else json.dumps(entries).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text


def attack(scene):
    deep = b'{"a":' * 100_000
    huge = {"w": {"dtype": "F32", "shape": [2**31, 2**31], "data_offsets": [0, 2**64 - 4]}}
    bombs = {
        "length": header({}, length=2**63), "negative": header({}, length=2**64 - 1), "deep": header(deep),
        "huge": header(huge), "overlap": header({"w": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]}}),
        "names": header({"\ud800" + "x" * 10**6: {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}),
        "empty": b"", "types": header({"w": [1, 2]}), "not_finite": header(b'{"w":{"dtype":"F32","shape":[NaN]}}'),
    }  # fmt: skip
    for name, content in bombs.items():
        folder = scene.copy_model(f"output/{name}")
        (folder / "model.safetensors").write_bytes(content)
        submit(scene, folder)
    folder = scene.copy_model("output/index")
    weights = dict.fromkeys(("a", "b"), scene.hidden)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    (folder / "config.json").write_text('{"vocab_size": 1e308}')
    submit(scene, folder)
    if submit(scene, scene.copy_model("output/honest")) != 200:
        return "the service takes no more submissions"
    raise PermissionError("each was refused")


def submit(scene, folder):
    status, _ = scene.submit(folder)
    if status >= 500:
        raise AssertionError(f"{folder}: answered with a server error, {status}")
    return status


def held(after):
    from a2rl.run.events import Graded, SubmissionAccepted

    accepted, graded = after.run.ledger.events(SubmissionAccepted), after.run.ledger.events(Graded)
    if len(accepted) != 1 or len(graded) != 1:
        return f"{len(accepted)} were accepted and {len(graded)} graded, instead of the honest one alone"
    return "" if after.got is None and "server error" not in after.stopped_by else after.got or after.stopped_by
