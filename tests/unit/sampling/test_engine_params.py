"""Tests the choice of the dtype, and which options reach an engine and a baseline's key."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from a2rl.core.settings import Settings
from a2rl.grading.dependencies import baseline_key
from a2rl.grading.job import EngineChoice
from a2rl.sampling import engine_params, vllm_worker
from a2rl.sampling.engine_params import VllmParams, computing_type, cpu_is_fast_in_bfloat16, stored_type
from tests.run_maker import grade_job_in


def base(folder: Path, **config: object) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def fast_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_params, "cpu_is_fast_in_bfloat16", lambda: True)


@pytest.mark.usefixtures("fast_cpu")
@pytest.mark.parametrize(
    ("config", "chosen"),
    [
        ({"dtype": "float32"}, None),
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "bfloat16"),
        ({"text_config": {"dtype": "bfloat16"}}, "bfloat16"),
        ({"dtype": "float8_e4m3fn"}, None),
        ({"dtype": ["bfloat16"]}, None),
        ({"text_config": None}, None),
        ({"text_config": ["bfloat16"], "dtype": "bfloat16"}, "bfloat16"),
        ({"text_config": "bfloat16"}, None),
        ({}, None),
    ],
)
def test_auto_follows_what_the_base_model_is_stored_in(
    tmp_path: Path, config: dict[str, object], chosen: str | None
) -> None:
    assert computing_type("auto", base(tmp_path, **config)) == chosen


def test_auto_keeps_float32_where_the_cpu_lacks_bfloat16(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_params, "cpu_is_fast_in_bfloat16", lambda: False)
    assert computing_type("auto", base(tmp_path, dtype="bfloat16")) is None
    assert computing_type("bfloat16", tmp_path) == "bfloat16"


def test_a_base_model_of_unknown_type_is_not_stored_in_16_bits(tmp_path: Path) -> None:
    """Its configuration cannot be read."""
    assert stored_type(tmp_path) == ""
    (tmp_path / "config.json").write_text("[1]")
    assert stored_type(tmp_path) == ""


@pytest.mark.parametrize(
    ("text", "fast"),
    [
        ("processor : 0\nflags\t\t: fpu avx512f avx512_bf16 sse\n", True),
        ("processor : 0\nflags\t\t: fpu amx_bf16 amx_tile\n", True),
        ("processor : 0\nflags\t\t: fpu avx512f avx2\n", False),
        ("processor : 0\nFeatures\t: fp asimd\n", False),
    ],
)
def test_the_flags_of_the_cpu_say_whether_it_is_fast_in_bfloat16(tmp_path: Path, text: str, fast: bool) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert cpu_is_fast_in_bfloat16(tmp_path / "cpuinfo") is fast
    assert cpu_is_fast_in_bfloat16(tmp_path / "absent") is False


def keyed(choice: EngineChoice, tmp_path: Path) -> dict[str, str]:
    job = grade_job_in(tmp_path, backend=choice.backend, dtype=choice.dtype, vllm=choice.vllm)
    return baseline_key(job, "model", "data", Settings.load())


def test_options_of_vllm_change_no_baseline_of_transformers(tmp_path: Path) -> None:
    base(tmp_path)
    small = VllmParams(max_model_len=512, dtype="float16")
    plain, other = (EngineChoice.of("transformers", "auto", each, tmp_path) for each in (VllmParams(), small))
    assert keyed(plain, tmp_path) == keyed(other, tmp_path)
    plain, other = (EngineChoice.of("vllm", "auto", each, tmp_path) for each in (VllmParams(), small))
    assert keyed(plain, tmp_path) != keyed(other, tmp_path)
    assert other.dtype == "float16"


def test_the_type_of_numbers_is_part_of_a_baselines_key(tmp_path: Path) -> None:
    base(tmp_path)
    keys = [
        keyed(EngineChoice.of("transformers", setting, VllmParams(), tmp_path), tmp_path)
        for setting in ("auto", "float32", "bfloat16")
    ]
    assert [key["dtype"] for key in keys] == ["float32", "float32", "bfloat16"]  # on a processor


def test_only_given_options_reach_vllm() -> None:
    assert VllmParams().engine_options() == {"tensor_parallel_size": 1}
    given = VllmParams(max_model_len=4096, kv_cache_memory_bytes=1 << 30, enforce_eager=False)
    assert given.engine_options() == {
        "tensor_parallel_size": 1, "max_model_len": 4096, "kv_cache_memory_bytes": 1 << 30, "enforce_eager": False
    }  # fmt: skip
    assert vllm_worker.cpu_options(exact=False)["dtype"] == "float32"


@pytest.mark.parametrize(
    "wrong",
    [
        {"tensor_parallel_size": 0},
        {"kv_cache_memory_bytes": 0},
        {"gpu_memory_utilization": 0.9},
        {"dtype": "int8"},
        {"max_len": 5},
    ],
)
def test_wrong_options_of_vllm_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        VllmParams.model_validate(wrong)


def test_the_parameters_are_read_without_loading_torch() -> None:
    script = "import sys, a2rl.sampling.engine_params; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
