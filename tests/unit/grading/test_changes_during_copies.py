"""Tests that nothing that happens to a submission while it is copied reaches the copy."""

import os
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import IO, BinaryIO

import pytest

from a2rl.core.errors import InfrastructureError, InvalidSubmissionError
from a2rl.grading import submitted_files
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import FREE_DISK_MARGIN, Source
from a2rl.linux import untrusted_folder
from a2rl.linux.untrusted_folder import copy_open_file
from a2rl.models.checkpoint import weights_digest


def while_it_is_copied(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Calls a function just before the bytes of the first file are copied."""
    acted: list[object] = []

    def copy_slowly(source: BinaryIO, target: IO[bytes], size: int) -> None:
        if not acted:
            acted.append(act())
        copy_open_file(source, target, size)

    monkeypatch.setattr(submitted_files, "copy_open_file", copy_slowly)


def test_a_file_swapped_after_the_check_is_not_copied(
    submission: Path, submit: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    digest = weights_digest(submission)

    def swap() -> None:
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            (submission / name).unlink()
            (submission / name).symlink_to(tmp_path / "secret.json")

    while_it_is_copied(monkeypatch, swap)
    copy = submit("output/v1")
    assert weights_digest(copy) == digest
    assert "secret" not in (copy / "config.json").read_text()


def grow(weights: Path) -> None:
    with weights.open("ab") as file:
        file.truncate(1 << 40)


def shrink(weights: Path) -> None:
    os.truncate(weights, 100)


def rewrite_in_place(weights: Path) -> None:
    with weights.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"otherone")


@pytest.mark.parametrize("change", [grow, shrink, rewrite_in_place])
def test_a_file_that_changes_during_the_copy_is_refused(
    submission: Path,
    submit: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    """It does not fill the disk."""
    while_it_is_copied(monkeypatch, lambda: change(submission / "model.safetensors"))
    with pytest.raises(InvalidSubmissionError, match="changed while it was copied; submit"):
        submit("output/v1")
    assert sum(path.stat().st_size for path in (tmp_path / "kept-0").iterdir()) < 1 << 20


def test_a_copy_that_drags_on_ends_as_this_machines_failure(
    submission: Path, submit: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted_folder, "COPY_TIMEOUT_S", -1.0)
    monkeypatch.setattr(untrusted_folder, "MIN_BYTES_PER_S", 1 << 60)
    with pytest.raises(InfrastructureError, match=r"slower than.*submit again"):
        submit("output/v1")


def test_copies_side_by_side_do_not_count_on_the_same_room(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum((submission / name).stat().st_size for name in ("model.safetensors", "config.json", "tokenizer.json"))
    kept = tmp_path / "kept"

    def room_for_two_and_a_half(_: object) -> SimpleNamespace:
        taken = sum(path.stat().st_blocks * 512 for path in kept.rglob("*") if path.is_file())
        return SimpleNamespace(free=FREE_DISK_MARGIN + int(2.5 * size) - taken)

    monkeypatch.setattr(shutil, "disk_usage", room_for_two_and_a_half)
    together = threading.Barrier(4)

    def copy_late(source: BinaryIO, target: IO[bytes], size: int) -> None:
        time.sleep(0.2)  # all have asked for space before the first byte is written
        copy_open_file(source, target, size)

    monkeypatch.setattr(submitted_files, "copy_open_file", copy_late)

    def one(number: int) -> str:
        together.wait()
        try:
            copy_submission(Source(workspace, "output/v1"), kept / f"{number}", Requirements(base_model))
        except InfrastructureError as error:
            return str(error)
        return "copied"

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(one, range(4)))
    assert ends.count("copied") == 2
    assert all("disk is full" in end for end in ends if end != "copied")


def test_no_descriptor_is_left_open(submission: Path, submit: Callable[[str], Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    submit("output/v1")
    (submission / "config.json").unlink()
    os.mkfifo(submission / "config.json")
    for path in ("output/v1", "output/absent", "output"):
        with pytest.raises(InvalidSubmissionError):
            submit(path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
