"""Tests that a GGUF file, or a folder that holds one, is a base model like any other."""

import json
import math
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.models import gguf_files
from a2rl.models.base_model import local_folder, reference_name, require_known, resolve_model
from a2rl.models.checkpoint import weights_digest
from a2rl.models.gguf_conversion import rope_of, unsuitable
from a2rl.models.gguf_files import gguf_file
from tests.run_maker import checkout
from tests.small_gguf import WEIGHTS_DIGEST, write_gguf

ENDLESS = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"x" + struct.pack("<IIQ", 9, 0, 1 << 60)
"""A file that says that it has an array of very many bytes."""


PLAIN: dict[str, object] = {"rope_theta": 10000.0, "rope_type": "default"}


def empty_gguf(
    path: Path,
    architecture: str = "llama",
    parts: int = 0,
    tokenizer: str = "gpt2",
    rope: Mapping[str, float | str] = {},
    tensors: Mapping[str, list[float]] = {},
) -> Path:
    """Writes a GGUF file without weights."""
    from gguf import GGUFWriter

    writer = GGUFWriter(path, architecture)
    if parts:
        writer.add_uint16("split.count", parts)
    if tokenizer:
        writer.add_tokenizer_model(tokenizer)
    for key, value in rope.items():
        if isinstance(value, str):
            writer.add_string(f"{architecture}.rope.{key}", value)
        else:
            writer.add_float32(f"{architecture}.rope.{key}", value)
    for name, values in tensors.items():
        writer.add_tensor(name, np.array(values, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama3_factors(theta: float, most: float, size: int) -> list[float]:
    """Returns what llama.cpp's converter writes for Llama 3.1 and later."""
    factors = []
    for place in range(0, size, 2):
        wavelength = 2 * math.pi * theta ** (place / size)
        smooth = (8192 / wavelength - 1) / (4 - 1)
        if wavelength < 8192 / 4:
            factors.append(1.0)
        elif wavelength > 8192:
            factors.append(most)
        else:
            factors.append(1 / ((1 - smooth) / most + smooth))
    return factors


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
        (lambda path: empty_gguf(path, rope={"scaling.type": "yarn", "scaling.factor": 4.0}), "scales positions"),
        (lambda path: empty_gguf(path, rope={"scale_linear": 4.0}), "scales positions"),
        (lambda path: empty_gguf(path, "phi3", tensors={"rope_factors_long.weight": [1.0]}), "scales positions"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(100)), "damaged, or no GGUF file"),
        (lambda path: path.write_bytes(b"PK"), "damaged, or no GGUF file"),
        (lambda path: path.write_bytes(ENDLESS), "fewer values than it says"),
    ],
    ids=["architecture", "parts", "no tokenizer", "yarn", "old key", "factors", "damaged", "format", "endless array"],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path: Path, write: Callable[[Path], object], reason: str) -> None:
    write(tmp_path / "model.gguf")
    assert reason in unsuitable(tmp_path / "model.gguf")


@pytest.mark.parametrize("rope", [{}, {"scaling.type": "none", "scaling.factor": 4.0}, {"scaling.factor": 1.0}])
def test_a_file_whose_positions_are_not_scaled_can_be_used(tmp_path: Path, rope: dict[str, float | str]) -> None:
    assert not unsuitable(empty_gguf(tmp_path / "model.gguf", rope=rope))


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize(("most", "size"), [(8.0, 128), (32.0, 64), (1.0, 64)])
def test_the_scaling_of_llama_3_is_recognised(tmp_path: Path, theta: float, most: float, size: int) -> None:
    tensors = {"rope_freqs.weight": llama3_factors(theta, most, size)}
    file = empty_gguf(tmp_path / "model.gguf", rope={"freq_base": theta}, tensors=tensors)
    assert rope_of(file, PLAIN) == {
        "rope_type": "llama3", "rope_theta": theta, "factor": most, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip


@pytest.mark.parametrize("factors", [[1.0, 2.0, 4.0, 8.0], [0.0] * 4, [math.nan] * 4, [1.0, math.inf, math.inf, 1.0]])
def test_other_factors_of_positions_are_refused(tmp_path: Path, factors: list[float]) -> None:
    with pytest.raises(SystemExit, match="scales positions"):
        rope_of(empty_gguf(tmp_path / "model.gguf", tensors={"rope_freqs.weight": factors}), PLAIN)


def test_the_base_of_positions_is_that_of_the_file(tmp_path: Path) -> None:
    """Of some architectures, such as starcoder2, transformers drops it."""
    file = empty_gguf(tmp_path / "model.gguf", "starcoder2", rope={"freq_base": 100000.0})
    assert rope_of(file, PLAIN) == PLAIN | {"rope_theta": 100000.0}
    assert rope_of(empty_gguf(tmp_path / "none.gguf"), PLAIN) == PLAIN


@pytest.mark.heavy
def test_a_converted_model_scales_positions_as_the_file_says(settings: Settings, tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "small.gguf", factors=llama3_factors(10000.0, 8.0, 32))
    config = json.loads((resolve_model(str(file), settings) / "config.json").read_text())
    assert (config["rope_parameters"]["rope_type"], config["rope_parameters"]["factor"]) == ("llama3", 8.0)


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
