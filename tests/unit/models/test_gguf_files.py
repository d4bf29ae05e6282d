"""Tests that a GGUF file, or a folder that holds one, is a base model like any other."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.models import gguf_files
from a2rl.models.base_model import local_folder, reference_name, require_known, resolve_model
from a2rl.models.checkpoint import weights_digest
from a2rl.models.gguf_conversion import unsuitable
from a2rl.models.gguf_files import gguf_file
from tests.run_maker import checkout
from tests.small_gguf import WEIGHTS_DIGEST, write_gguf

ENDLESS = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"x" + struct.pack("<IIQ", 9, 0, 1 << 60)
"""A file that says that it has an array of very many bytes."""


def empty_gguf(path: Path, architecture: str = "llama", parts: int = 0, tokenizer: str = "gpt2") -> Path:
    """Writes a GGUF file without weights."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    if parts:
        writer.add_uint16("split.count", parts)
    if tokenizer:
        writer.add_tokenizer_model(tokenizer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "project").mkdir()
    return checkout(tmp_path / "project")


@pytest.mark.heavy
def test_a_gguf_file_is_converted_once(settings: Settings, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf")
    folder = resolve_model(str(file), settings)
    assert folder == local_folder(str(tmp_path), settings)
    assert weights_digest(folder) == WEIGHTS_DIGEST
    made = (folder / "config.json").stat().st_mtime_ns
    assert resolve_model(str(tmp_path), settings) == folder
    assert (folder / "config.json").stat().st_mtime_ns == made
    assert reference_name(str(file)) == "small"
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}, "an agent's own user reads it"


def test_names_that_differ_behind_a_dot_have_locks_of_their_own(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def convert(_: Path, folder: Path, *rest: object) -> str:
        folder.mkdir()
        return ""

    monkeypatch.setattr(gguf_files, "convert_apart", convert)
    made = [gguf_files.converted(empty_gguf(tmp_path / f"small-1.{n}.gguf"), settings) for n in (5, 7)]
    assert {path.name for path in made[0].parent.glob("*.lock")} == {f"{folder.name}.lock" for folder in made}


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (lambda path: empty_gguf(path, architecture="starfish"), "cannot read the architecture starfish"),
        (lambda path: empty_gguf(path, parts=3), "one of 3 parts: join them with `llama-gguf-split --merge"),
        (lambda path: empty_gguf(path, tokenizer=""), "has no tokenizer"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(100)), "damaged, or no GGUF file"),
        (lambda path: path.write_bytes(b"PK"), "damaged, or no GGUF file"),
        (lambda path: path.write_bytes(ENDLESS), "fewer values than it says"),
    ],
    ids=["architecture", "parts", "no tokenizer", "damaged", "another format", "endless array"],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, write: Callable[[Path], object], reason: str) -> None:
    write(tmp_path / "model.gguf")
    assert reason in unsuitable(tmp_path / "model.gguf")


@pytest.mark.heavy
def test_the_reason_reaches_the_user(settings: Settings, tmp_path: Path) -> None:
    """Nothing unfinished is left either."""
    file = empty_gguf(tmp_path / "model.gguf", architecture="starfish")
    with pytest.raises(UsageError, match=r"model\.gguf cannot be used as a base model: .*starfish"):
        resolve_model(str(file), settings)
    assert not [path for path in (settings.models / "gguf").iterdir() if path.is_dir()]


@pytest.mark.heavy
def test_a_file_that_lacks_weights_is_refused(settings: Settings, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf", without="blk.0.attn_q")
    with pytest.raises(UsageError, match=r"lacks weights, such as model\.layers\.0\.self_attn\.q_proj"):
        resolve_model(str(file), settings)


def test_of_several_files_one_has_to_be_named(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        empty_gguf(tmp_path / name)
    with pytest.raises(UsageError, match="2 GGUF files: name the one to use"):
        gguf_file(str(tmp_path))


def test_a_gguf_file_that_is_missing_is_no_hub_id() -> None:
    with pytest.raises(UsageError, match=r"no model 'models/missing\.gguf'"):
        require_known("models/missing.gguf")


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    target = tmp_path / "model [Q4_K_M]"
    left = tmp_path / f".{target.name}-01234567"
    left.mkdir()
    with gguf_files.unfinished(target) as making:
        assert [*tmp_path.iterdir()] == [making]


def test_a_checkpoint_beside_a_gguf_file_comes_first(tmp_path: Path) -> None:
    empty_gguf(tmp_path / "a.gguf")
    (tmp_path / "config.json").write_text("{}")
    assert gguf_file(str(tmp_path)) is None
