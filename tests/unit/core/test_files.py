"""Tests that files are complete or absent, even with several writers and on a machine that lacks a feature."""

import errno
import json
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a2rl.core import files
from a2rl.core.errors import InfrastructureError, IntegrityError, UsageError
from a2rl.core.files import TEMPORARY, folder_digest, read_jsonl, read_yaml, replace_folder, write_atomically


def test_threads_that_write_the_same_file_do_not_meet(tmp_path: Path) -> None:
    def write(number: int) -> None:
        write_atomically(tmp_path / "file", f"{number}" * 1000)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(240)))
    assert len(set((tmp_path / "file").read_text())) <= 3
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "says", "says_not"),
    [
        (errno.ENOSPC, "free some disk space", "owns"),
        (errno.EACCES, "check who owns it", "disk space"),
        (errno.EROFS, "read-only", "disk space"),
        (errno.EIO, "disk may be failing", "free some"),
        (errno.ELOOP, "symbolic links", "free some"),
    ],
)
def test_an_error_says_how_to_mend_its_own_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, says: str, says_not: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(InfrastructureError, match=says) as caught:
        write_atomically(tmp_path / "file", "text")
    assert says_not not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_a_machine_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InfrastructureError, match="cannot write"):
        write_atomically(tmp_path / "file/below", "text")


def test_what_a_killed_writer_left_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a living one has stays, and so do the files of others."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    pids = (child, os.getpid(), f"{child}0000000")
    dead, living, young = (tmp_path / f".file.{pid}-abcd1234{TEMPORARY}" for pid in pids)
    names = (".notes.2024-05-01", ".draft.99999999", ".file.2024-05-01", ".file.99999999", f".other.{child}-20240501")
    others = [tmp_path / f"{name}{TEMPORARY}" for name in names]
    for path in (dead, living, young, *others):
        path.touch()
    for path in (dead, living, *others):
        os.utime(path, (time.time() - 3600,) * 2)
    files._sweep.cache_clear()
    write_atomically(tmp_path / "file", "text")
    assert not dead.exists()
    assert living.exists()
    assert young.exists()
    assert all(path.exists() for path in others)


@pytest.mark.parametrize("kernel", ["exchanges", "cannot exchange"])
def test_a_folder_is_replaced_or_stays_and_can_always_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    if kernel == "cannot exchange":

        def refuse(one: Path, other: Path) -> None:
            raise OSError(errno.EINVAL, "no exchange")

        monkeypatch.setattr(files, "_exchange", refuse)
    for state in ("first", "second"):
        new = tmp_path / ".new"
        (new / "below").mkdir(parents=True)
        (new / "below/file").write_text(state)
        replace_folder(new, tmp_path / "data")
        assert (tmp_path / "data/below/file").read_text() == state
        assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_reader_never_finds_no_folder_while_it_is_replaced(tmp_path: Path) -> None:
    over, missed = threading.Event(), []
    (tmp_path / "data").mkdir()

    def read() -> None:
        while not over.is_set():
            if not (tmp_path / "data").is_dir():
                missed.append(1)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(300):
        (tmp_path / ".new").mkdir()
        (tmp_path / f".new/{number}").touch()
        replace_folder(tmp_path / ".new", tmp_path / "data")
    over.set()
    reader.join()
    assert missed == []
    assert folder_digest(tmp_path / "data") == folder_digest(tmp_path / "data")


ROW = '{"id": "a", "text": "caf\xe9\u2028b"}'


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_in_utf8_are_read_with_any_end_of_line(tmp_path: Path, encoding: str, end: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(f"{ROW}{end}{ROW}{end}".encode(encoding))
    assert read_jsonl(path) == [json.loads(ROW)] * 2


@pytest.mark.parametrize(
    ("encoding", "named"),
    [("utf-16", "UTF-16"), ("utf-16-le", "UTF-16"), ("utf-16-be", "UTF-16"), ("latin-1", "not in UTF-8")],
)
def test_a_file_in_another_encoding_is_named_with_it(tmp_path: Path, encoding: str, named: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(ROW.replace("\u2028", "").encode(encoding))
    with pytest.raises(IntegrityError, match=rf"rows\.jsonl is .*{named}.*save it as UTF-8"):
        read_jsonl(path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "'c' is there twice.*line 3"),
        ("a: [1", "expected ',' or ']'"),
        ("a: 2026-13-45", "month must be in 1..12"),
        ("[" * 5000, "recursion"),
    ],
)
def test_a_yaml_file_with_a_mistake_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(UsageError, match=f"(?s)params.yaml: .*{says}") as refused:
        read_yaml(file)
    assert "\n" not in str(refused.value)


def test_a_yaml_file_may_merge_mappings(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\nz: {<<: *x}\n")
    assert read_yaml(tmp_path / "a.yaml") == {"x": {"a": 1, "b": 2}, "y": {"a": 1, "b": 3}, "z": {"a": 1, "b": 2}}
