"""Checking hostile submissions: how the time grows with each of their sizes, and how much memory it takes."""

import json
import shutil
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.settings import Settings
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import Source
from tests.bench.measured import Row

BASE_TENSORS = 100_000
"""No known model has more. With so many, most caps are as high as they can be."""
CONFIG = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]}
LORA = {"peft_type": "LORA", "r": 1, "lora_alpha": 1}
MIB = 1 << 20


class Check(NamedTuple):
    """How a check ended."""

    seconds: float
    peak_mib: int
    outcome: str


def submission_checks(settings: Settings, folder: Path) -> Iterator[Row]:
    """Checks submissions of three sizes, each twice as large as the one before, in a process of its own."""
    bases = {"a base of 100,000 tensors": BASE_TENSORS, "a base of 100 tensors": 100}
    for number, (base, tensors) in enumerate(bases.items()):
        sizes = {"large": 16 * MIB} | {f"model.t{each}.weight": 1 for each in range(tensors)}
        _write_model(folder / f"base-{number}", sizes)
        for what, steps in HOSTILE.items():
            checks = []
            for place, size in enumerate(steps):
                workspace = folder / f"{number}-{what.replace(' ', '-')}-{place}"
                WRITE[what](workspace / "v1", size)
                # A fresh process, so that its peak of memory is that of this check.
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
                    checks.append(process.submit(_check, workspace, folder / f"base-{number}").result())
            figures = ", ".join(f"{check.seconds:.1f} s" for check in checks)
            peak = max(check.peak_mib for check in checks)
            given = " / ".join(f"{size:,}" for size in steps)
            yield Row(f"checking {given} {what}, {base}", f"{figures}; {peak} MiB; {checks[-1].outcome[:90]}")


def _merge(_: Path, base_model: Path, target: Path) -> str:
    """Takes the place of merging an adapter, which is not measured here."""
    shutil.copytree(base_model, target, dirs_exist_ok=True)
    return ""


def _check(workspace: Path, base_model: Path) -> Check:
    """Copies and checks a submission."""
    started, outcome = time.process_time(), "accepted"
    try:
        copy_submission(Source(workspace, "v1"), workspace / "kept", Requirements(base_model, merge=_merge))
    except InvalidSubmissionError as refusal:
        outcome = str(refusal)
    seconds = time.process_time() - started
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return Check(seconds, int(status["VmHWM"].split()[0]) >> 10, outcome)


def _entry(size: int, end: int) -> dict[str, Any]:
    return {"dtype": "F32", "shape": [size] if size else [0], "data_offsets": [end - 4 * size, end]}


def _write_weights(path: Path, sizes: Mapping[str, int], header_bytes: int = 0) -> None:
    """Writes a file of tensors with these numbers of values, and fills its header up with metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header, end = dict[str, Any](), 0
    for name, size in sizes.items():
        end += 4 * size
        header[name] = _entry(size, end)
    text = json.dumps(header).encode()
    _write_raw(path, text.ljust(header_bytes), end)


def _write_raw(path: Path, header: bytes, data: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + data)


def _write_model(folder: Path, sizes: Mapping[str, int]) -> None:
    _write_weights(folder / "model.safetensors", sizes)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def _names(folder: Path, size: int) -> None:
    _write_model(folder, {"a." * (size * MIB // 4) + end: 1 for end in "ab"})


def _tensors(folder: Path, count: int) -> None:
    _write_model(folder, {f"module.model.t{number}.weight": 1 for number in range(count)})


def _empty_tensors(folder: Path, count: int) -> None:
    _write_model(folder, {f"model.t{number}.weight": 0 for number in range(count)})


def _modules(folder: Path, count: int) -> None:
    layers = {f"base_model.model.t{n}.lora_{part}.weight": 1 for n in range(count) for part in "AB"}
    header, end = dict[str, Any](), 0
    for name in layers:
        header[name], end = {"dtype": "F32", "shape": [1, 1], "data_offsets": [end, end + 4]}, end + 4
    _write_raw(folder / "adapter_model.safetensors", json.dumps(header).encode(), end)
    patterns = {f"x{number:x}": 1 for number in range(3 * count)}
    (folder / "adapter_config.json").write_text(json.dumps(LORA | {"rank_pattern": patterns}, separators=(",", ":")))


def _files(folder: Path, count: int) -> None:
    for number in range(count):
        text = b'{"__metadata__":{"a":"' + b"x" * (64 * MIB // 256 - 200) + b'"},"t%d":' % number
        _write_raw(folder / f"m{number:03}.safetensors", text + json.dumps(_entry(1, 4)).encode() + b"}", 4)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def _header(folder: Path, size: int, parts: Iterable[str]) -> None:
    found, length = list[str](), 0
    for part in parts:
        found.append(part)
        length += len(part) + 1
        if length > size * MIB - 100:
            break
    _write_raw(folder / "model.safetensors", ("{" + ",".join(found) + "}").encode(), 0)
    (folder / "config.json").write_text(json.dumps(CONFIG))


def _header_of_tensors(folder: Path, size: int) -> None:
    entry = '{"dtype":"F32","shape":[0],"data_offsets":[0,0]}'
    _header(folder, size, (f'"model.layers.{number}.{"x" * 100}":{entry}' for number in range(1 << 30)))


def _header_of_objects(folder: Path, size: int) -> None:
    # As many values as are read; the rest is one long text.
    inner = ",".join(["{}"] * (size * 30_000))
    _header(folder, size, iter([f'"a":[{inner}]', f'"b":"{"x" * (size * MIB - len(inner) - 30)}"', '"c":0']))


WRITE = {
    "MiB of names": _names,
    "tensors": _tensors,
    "empty tensors": _empty_tensors,
    "modules of an adapter with three patterns each": _modules,
    "files with headers of 256 KiB": _files,
    "MiB of header with tensors": _header_of_tensors,
    "MiB of header with small objects": _header_of_objects,
}
HOSTILE = {
    "MiB of names": (16, 32, 63),
    "tensors": (25_000, 50_000, 100_000),
    "empty tensors": (62_500, 125_000, 250_000),
    "modules of an adapter with three patterns each": (5_000, 10_000, 20_000),
    "files with headers of 256 KiB": (64, 128, 255),
    "MiB of header with tensors": (16, 32, 63),
    "MiB of header with small objects": (16, 32, 63),
}
