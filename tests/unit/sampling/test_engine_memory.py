"""Tests what an engine of vLLM is planned to take of a GPU, before a run and whatever else is on the GPU."""

import json
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import UsageError
from a2rl.models.checkpoint import unpacked_bytes
from a2rl.sampling.engine_params import EngineMemory, VllmParams
from a2rl.sampling.vllm_process import engine_request
from tests.small_model import Weight, write_safetensors

QWEN = {
    "max_position_embeddings": 131_072, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "hidden_size": 3_584, "intermediate_size": 18_944, "vocab_size": 152_064, "torch_dtype": "bfloat16",
}  # fmt: skip
"""Qwen2.5-7B."""
KIB, GIB = 1 << 10, 1 << 30


def plan(folder: Path, answer: int = 512, turns: int = 1, config: Any = QWEN, **params: Any) -> EngineMemory:
    (folder / "config.json").write_text(json.dumps(config))
    return EngineMemory.of(folder, unpacked_bytes(folder), VllmParams(**params), "bfloat16", answer, turns)


def test_the_cache_of_a_known_model_has_its_known_size(tmp_path: Path) -> None:
    """It is decided by the model and the task alone."""
    memory = plan(tmp_path)
    assert memory.context == 32_768
    assert memory.cache_bytes == memory.cache_tokens * 56 * KIB
    assert (memory.cache_tokens, memory.answers) == (64 * 1_536, 64)
    assert plan(tmp_path, answer=100, turns=50).cache_tokens == 4 * 32_768
    assert plan(tmp_path, answer=100, turns=50).answers == 21
    assert plan(tmp_path, answer=38_912).context == 47_104
    assert plan(tmp_path, config=QWEN | {"max_position_embeddings": 2_048}).cache_tokens == 4 * 2_048


def test_what_a_configuration_leaves_out_is_known_from_its_kind(tmp_path: Path) -> None:
    of_text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    gemma = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "text_config": of_text}
    memory = plan(tmp_path, config=gemma)
    assert memory.context == 32_768
    assert memory.cache_bytes == memory.cache_tokens * 34 * 2 * 4 * 256 * 2
    with pytest.raises(UsageError, match="no max_position_embeddings"):
        plan(tmp_path, config={"model_type": "unknown", "text_config": {"hidden_size": 8}})


def test_weights_are_counted_in_the_type_that_is_computed_in(tmp_path: Path) -> None:
    for name in ("model", "consolidated"):
        write_safetensors(tmp_path / f"{name}.safetensors", {"head": Weight("BF16", (2_000,), bytes(4_000))})
    assert plan(tmp_path).weights_bytes == 4_000
    assert plan(tmp_path, config=QWEN | {"torch_dtype": "float32"}).weights_bytes == 2_000
    assert plan(tmp_path, tensor_parallel_size=2).weights_bytes == 2_000
    assert plan(tmp_path, tensor_parallel_size=2).cache_bytes == plan(tmp_path).cache_bytes // 2


def test_quantised_weights_count_as_what_a_submission_takes(tmp_path: Path) -> None:
    """Submissions are not quantised."""
    weights = {"experts": Weight("U8", (1_000,), bytes(1_000)), "head": Weight("BF16", (500,), bytes(1_000))}
    write_safetensors(tmp_path / "model.safetensors", weights)
    assert plan(tmp_path).weights_bytes == 4 * 1_000 + 1_000


def test_given_options_replace_the_plan(tmp_path: Path) -> None:
    memory = plan(tmp_path, max_model_len=8_192, kv_cache_memory_bytes=2 * GIB)
    assert (memory.context, memory.cache_tokens) == (8_192, 2 * GIB // (56 * KIB))


@pytest.mark.parametrize(
    ("config", "numbers"),
    [
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 100}, 2 * 2 * 4 * 100),
        ({"num_hidden_layers": 2, "num_attention_heads": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64}, 2 * 576),
        ({"text_config": {"num_hidden_layers": 3, "num_attention_heads": 2}, "num_hidden_layers": 9}, 3 * 2 * 64),
    ],
)
def test_other_kinds_of_attention_are_known(tmp_path: Path, config: dict[str, Any], numbers: int) -> None:
    common = {"max_position_embeddings": 4_096, "hidden_size": 64, "vocab_size": 100}
    memory = plan(tmp_path, config=common | config)
    assert memory.cache_bytes == memory.cache_tokens * numbers * 2


@pytest.mark.parametrize("missing", ["max_position_embeddings", "num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_configuration_that_does_not_say_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(UsageError, match=f"has no {missing}"):
        plan(tmp_path, config={name: value for name, value in QWEN.items() if name != missing})


def test_the_engine_is_told_its_context_and_its_cache(tmp_path: Path) -> None:
    """It never fits them to what is free at the moment."""
    memory = plan(tmp_path)
    told = engine_request(False, None, VllmParams(), memory)
    assert told["engine"]["max_model_len"] == 32_768
    assert told["engine"]["kv_cache_memory_bytes"] == memory.cache_bytes
    assert told["start_bytes"] > told["waking_bytes"] > memory.cache_bytes
    assert str(memory).startswith(f"{memory.total_gib} GiB of a GPU (weights 0.0, a cache of 98,304 tokens (64 answers")
