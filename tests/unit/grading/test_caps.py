"""Tests that what a submission may hold has caps, and that what exceeds them is refused."""

import json
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import InfrastructureError, InvalidSubmissionError
from a2rl.core.processes import Reading
from a2rl.core.settings import Settings
from a2rl.grading import submission_checks
from a2rl.grading.submission_checks import Check, Requirements, check_apart, check_files, copy_submission
from a2rl.grading.submitted_files import Source, SubmittedFiles
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


class Turns:
    """Says whether a turn, in which others wait, is taken now."""

    is_taken = False

    @contextmanager
    def __call__(self) -> Iterator[None]:
        self.is_taken = True
        yield
        self.is_taken = False


def check_while_others_go_on(turns: Turns) -> Check:
    def check(folder: Path, required: Requirements) -> None:
        assert not turns.is_taken, "others had to wait for the check"
        check_files(folder, required)

    return check


@pytest.mark.parametrize("flaw", BAD)
def test_what_headers_and_json_say_is_refused_while_others_go_on(
    submission: Path, workspace: Path, base_model: Path, tmp_path: Path, flaw: str
) -> None:
    spoil, says = BAD[flaw]
    spoil(submission)
    turns = Turns()
    check = check_while_others_go_on(turns)
    with pytest.raises(InvalidSubmissionError, match=says):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(base_model, check=check), turns)


@pytest.mark.parametrize(
    ("flaw", "says"), [("a large tokenizer", "tokenizer.json is not"), ("large weights", "the weights take")]
)
def test_files_that_are_too_large_are_refused_before_the_copy(
    submission: Path, workspace: Path, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flaw: str,
    says: str,
) -> None:  # fmt: skip
    def copy(*_: object) -> None:
        raise AssertionError("it was copied")

    monkeypatch.setattr(SubmittedFiles, "copy", copy)
    spoil = BAD[flaw][0] if flaw in BAD else lambda folder: os.truncate(folder / "model.safetensors", 1 << 40)
    spoil(submission)
    with pytest.raises(InvalidSubmissionError, match=says):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(base_model))


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


READINGS = {
    "out of processor time": (Reading(b"", "it needed more than 60 s of processor time"), InvalidSubmissionError),
    "killed": (Reading(b"", "its process ended with status -9", is_machines=True), InfrastructureError),
}


@pytest.mark.parametrize("how", READINGS)
def test_a_check_that_the_machine_ends_is_tried_again(
    settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    reading, kind = READINGS[how]
    tries = []

    def read(*_: object, **__: object) -> Reading:
        tries.append(reading)
        return reading

    monkeypatch.setattr(submission_checks, "read_apart", read)
    with pytest.raises(kind, match=reading.problem):
        check_apart(settings, base_model, Requirements(base_model))
    assert len(tries) == (submission_checks.ATTEMPTS if reading.is_machines else 1)


def test_a_check_apart_accepts_and_refuses(
    submission: Path, workspace: Path, base_model: Path, settings: Settings, tmp_path: Path
) -> None:
    check = partial(check_apart, settings)
    copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(base_model, check=check))
    spoil, says = BAD["an extra tensor"]
    spoil(submission)
    with pytest.raises(InvalidSubmissionError, match=says):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "bad", Requirements(base_model, check=check))


def test_a_base_model_that_is_away_is_no_fault_of_the_submission(
    submission: Path, workspace: Path, base_model: Path, settings: Settings, tmp_path: Path
) -> None:
    base = shutil.copytree(base_model, tmp_path / "base")

    def check(copy: Path, required: Requirements) -> None:
        base.rename(tmp_path / "away")
        check_apart(settings, copy, required)

    with pytest.raises(InfrastructureError, match="could not check the submission"):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "copy", Requirements(base, check=check))


def test_json_with_too_many_values_is_not_read() -> None:
    with pytest.raises(ValueError, match="too many values"):
        parse_json(b"[" + b"{}," * MAX_JSON_VALUES)  # reading it would end in another error


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32", "utf-8-sig"])
def test_json_in_another_encoding_than_utf_8_is_not_read(encoding: str) -> None:
    """The libraries that read it next refuse it."""
    with pytest.raises(ValueError, match=r"decode|Expecting|BOM"):
        parse_json('{"a": 1}'.encode(encoding))


ADAPTERS: dict[str, tuple[dict[str, Any], dict[str, Weight] | None, str]] = {
    "many tensors": ({}, {f"{LAYER}{number}.lora_A.weight": ONE for number in range(1_200)}, r"more than \d+ tensors"),
    "many patterns": ({"rank_pattern": {f"x{number}": 2 for number in range(1_200)}}, None, "keys of rank_pattern"),
    "zeros": ({}, {LAYER + "q.lora_A.weight": zeros(2, 0), LAYER + "q.lora_B.weight": zeros(2, 2)}, "have no numbers"),
}


@pytest.mark.parametrize("flaw", ADAPTERS)
def test_an_adapter_beyond_the_caps_is_refused_before_the_merge(
    workspace: Path, base_model: Path, tmp_path: Path, flaw: str
) -> None:
    config, weights, says = ADAPTERS[flaw]
    write_adapter(workspace / "output" / "v1", weights, **config)

    def merge(*_: object) -> str:
        raise AssertionError("it was merged")

    with pytest.raises(InvalidSubmissionError, match=says):
        copy_submission(Source(workspace, "output/v1"), tmp_path / "kept", Requirements(base_model, merge=merge))
