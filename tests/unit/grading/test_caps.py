"""Tests that what a submission may hold has caps, and what exceeds them is refused before its bytes are read."""

import json
import struct
from collections.abc import Callable
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.settings import Settings
from a2rl.grading import submission_checks
from a2rl.grading.submission_checks import check_apart, copy_submission
from a2rl.grading.submitted_files import SubmittedFiles
from a2rl.models import checkpoint
from a2rl.models.caps import MAX_JSON_VALUES, Caps, parse_json
from a2rl.models.checkpoint import tensors_of
from tests.small_model import Weight, write_safetensors
from tests.submission_tools import INDEX, as_shards, index_of, rewrite
from tests.unit.grading.test_adapters import LAYER, write_adapter, zeros

EMPTY = Weight("F32", (0,), b"")
ONE = Weight("F32", (1,), bytes(4))


def _many(weight: Weight) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, **{f"extra.{number}": weight for number in range(1_200)})


def _large_metadata(folder: Path) -> None:
    write_safetensors(folder / "model.safetensors", {"a": ONE}, {"note": "x" * (3 << 20)})


def _large_headers_together(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for number in range(3):
        write_safetensors(folder / f"model-{number}.safetensors", {f"a{number}": ONE}, {"note": "x" * (1 << 20)})


def _many_in_the_index(folder: Path) -> None:
    as_shards(folder)
    file = next(iter(index_of(folder).values()))
    weight_map = index_of(folder) | {f"extra.{number}": file for number in range(1_200)}
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def _large_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"model": {}, "note": "x" * (2 << 20)}))


def _many_values(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"[" + b"[],[]," * (MAX_JSON_VALUES // 8) + b"0]")


BAD = {
    "many tensors": (_many(ONE), r"more than \d+ tensors, .*save the model alone"),
    "many empty tensors": (_many(EMPTY), r"more than \d+ tensors, .*save the model alone"),
    "an empty tensor": (lambda folder: rewrite(folder, extra=EMPTY), "weights have no numbers.*zero_to_fp32"),
    "a large header": (_large_metadata, r"headers of the weights take \d+ KiB.*save the model alone"),
    "headers that are large together": (_large_headers_together, r"headers of the weights take 307\d KiB.*save"),
    "an index of many tensors": (_many_in_the_index, r"more than \d+ tensors, .*save the model alone"),
    "a large tokenizer": (_large_tokenizer, "tokenizer.json is not a JSON object of a sensible size"),
    "JSON with many values": (_many_values, "config.json is not"),
    "an extra tensor": (lambda folder: rewrite(folder, extra=ONE), "not in the base model"),
}  # fmt: skip


@contextmanager
def no_turn() -> Any:
    raise AssertionError("others had to wait for the check of a submission that is refused")
    yield


@pytest.mark.parametrize("flaw", BAD)
def test_what_headers_and_json_say_is_refused_before_the_copy(
    submission: Path, workspace: Path, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str
) -> None:
    """It does not take a turn either."""

    def copy(*_: object) -> None:
        raise AssertionError("it was copied")

    monkeypatch.setattr(SubmittedFiles, "copy", copy)
    spoil, says = BAD[flaw]
    spoil(submission)
    with pytest.raises(InvalidSubmissionError, match=says):
        copy_submission(workspace, "output/v1", tmp_path / "kept", base_model, turn=no_turn())
    assert not list((tmp_path / "kept").iterdir())


def test_headers_that_are_too_long_together_are_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """256 headers of 64 MiB would take 180 GiB of memory."""

    def parse(text: bytes) -> None:
        raise AssertionError("a header was read")

    monkeypatch.setattr(checkpoint, "parse_json", parse)
    for number in range(256):
        with (tmp_path / f"model-{number}.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", 64 << 20))
            file.truncate(8 + (64 << 20))  # without a block on the disk
    for caps in (Caps(), Caps.of(100_000), Caps.of(10)):
        with pytest.raises(InvalidSubmissionError, match="headers of the weights take"):
            tensors_of(tmp_path, caps)


def test_a_check_that_takes_too_long_is_ended(
    submission: Path,
    workspace: Path,
    base_model: Path,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check = partial(check_apart, settings)
    copy_submission(workspace, "output/v1", tmp_path / "kept", base_model, check=check)
    monkeypatch.setattr(submission_checks, "PATIENCE", 0)
    with pytest.raises(InvalidSubmissionError, match=r"cannot be read \(it took longer than 0 s\); save it again"):
        copy_submission(workspace, "output/v1", tmp_path / "late", base_model, check=check, turn=no_turn())


def test_json_with_too_many_values_is_not_read() -> None:
    with pytest.raises(ValueError, match="too many values"):
        parse_json(b"[" + b"{}," * MAX_JSON_VALUES)  # reading it would end in another error


ADAPTERS: dict[str, tuple[dict[str, Any], dict[str, Weight] | None, str]] = {
    "many tensors": ({}, {f"{LAYER}{number}.lora_A.weight": ONE for number in range(1_200)}, r"more than \d+ tensors"),
    "many patterns": ({"rank_pattern": {f"x{number}": 2 for number in range(1_200)}}, None, "keys of rank_pattern"),
    "zeros": ({}, {LAYER + "q.lora_A.weight": zeros(2, 0), LAYER + "q.lora_B.weight": zeros(2, 2)}, "have no numbers"),
}


@pytest.mark.parametrize("flaw", ADAPTERS)
def test_an_adapter_beyond_the_caps_is_refused_before_the_copy(
    workspace: Path, base_model: Path, tmp_path: Path, flaw: str
) -> None:
    config, weights, says = ADAPTERS[flaw]
    write_adapter(workspace / "output" / "v1", weights, **config)
    with pytest.raises(InvalidSubmissionError, match=says):
        copy_submission(
            workspace, "output/v1", tmp_path / "kept", base_model, merge=lambda *_: "merged", turn=no_turn()
        )
