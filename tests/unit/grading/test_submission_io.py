"""Measures the bytes that the grader reads and writes for one submission: fewer where files are cloned."""

import fcntl
import mmap
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from a2rl.grading import submitted_files
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import Source
from a2rl.linux.placing import FICLONE, clone_file
from a2rl.models.checkpoint import weights_digest
from tests.small_model import enlarge, trained_copy

OVERHEAD = 1 << 19
"""Bytes for headers, configuration and tokenizer, which are read a few times."""


class Bytes(NamedTuple):
    """What this process has read and written by system calls."""

    read: int
    written: int


def bytes_so_far() -> Bytes:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return Bytes(int(lines["rchar"]), int(lines["wchar"]))


def measure(base_model: Path, tmp_path: Path, size: int) -> Bytes:
    """Copies and hashes a submission as the service does; returns the bytes that this read and wrote."""
    base = shutil.copytree(base_model, tmp_path / "base")
    submission = trained_copy(base_model, tmp_path / "workspace" / "v1", seed=1)
    enlarge(base, size, zeros=True)
    enlarge(submission, size)
    before = bytes_so_far()
    digest = copy_submission(Source(tmp_path / "workspace", "v1"), tmp_path / "kept", Requirements(base)).digest
    after = bytes_so_far()
    assert weights_digest(tmp_path / "kept") == weights_digest(submission) == digest
    return Bytes(after.read - before.read, after.written - before.written)


@pytest.mark.parametrize("size", [8 << 20, pytest.param(1200 << 20, marks=pytest.mark.slow)])
def test_a_submission_is_written_once_and_read_twice(base_model: Path, tmp_path: Path, size: int) -> None:
    """The copy is read for its digest, and for numbers that are not finite."""
    used = measure(base_model, tmp_path, size)
    assert size <= used.read <= 2 * size + OVERHEAD
    assert used.written <= size + OVERHEAD


def test_a_clone_is_not_written_and_read_once(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def clone(source: int, target: int) -> bool:
        """Does what the kernel does where it can share blocks; what is read of a mapping is not counted."""
        with mmap.mmap(source, 0, prot=mmap.PROT_READ) as content:
            assert os.write(target, content) == len(content)
        return True

    def copy(*_: object) -> None:
        raise AssertionError("a file that was cloned was copied as well")

    monkeypatch.setattr(submitted_files, "clone_file", clone)
    monkeypatch.setattr(submitted_files, "copy_open_file", copy)
    assert 8 << 20 <= measure(base_model, tmp_path, 8 << 20).read <= (8 << 20) + OVERHEAD


def test_a_file_is_cloned_or_left_alone(tmp_path: Path) -> None:
    (tmp_path / "original").write_bytes(b"weights")
    with (tmp_path / "original").open("rb") as original, (tmp_path / "clone").open("x+b") as clone:
        assert clone.read() == (b"weights" if clone_file(original.fileno(), clone.fileno()) else b"")


@pytest.mark.parametrize("error", [95, 18, 25, 22])
def test_a_file_system_without_clones_is_no_failure(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    def refuse(target: int, request: int, source: int) -> None:
        assert request == FICLONE
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    assert not clone_file(0, 1)


def test_a_full_disk_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(target: int, request: int, source: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(fcntl, "ioctl", refuse)
    with pytest.raises(OSError, match="No space"):
        clone_file(0, 1)
