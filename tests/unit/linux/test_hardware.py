"""Tests the description of the machine."""

import os
from pathlib import Path

from a2rl.linux.gpus import hardware


def test_this_machine_is_described() -> None:
    here = hardware()
    assert here.processor
    assert here.cores == len(os.sched_getaffinity(0))
    assert here.memory_bytes is not None
    assert here.memory_bytes > 1 << 28
    assert here.kernel == os.uname().release


def test_the_version_of_the_nvidia_driver_is_read_in_both_forms(tmp_path: Path) -> None:
    texts = {
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024": "550.54.15",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build": "580.65.06",
    }
    for text, version in texts.items():
        (tmp_path / "version").write_text(f"{text}\nGCC version: 12\n")
        assert hardware(driver=tmp_path / "version").gpu_driver == version


def test_a_silent_machine_is_described_without_what_it_hides(tmp_path: Path) -> None:
    bare = hardware(tmp_path / "none", tmp_path / "none", tmp_path / "none")
    assert (bare.memory_bytes, bare.gpu_driver) == (None, "")
    assert bare.processor
