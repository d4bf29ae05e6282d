"""Tests which configurations compute the same: across versions of transformers, and after changes by an agent."""

import copy
from typing import Any

import pytest

from a2rl.models.arithmetic import first_difference, rope_of

LLAMA = {
    "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05, "max_position_embeddings": 131072,
    "rope_theta": 500000.0, "attention_dropout": 0.0, "torch_dtype": "bfloat16", "eos_token_id": 128001,
    "rope_scaling": {
        "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}  # fmt: skip
COMPLETE = {
    **{key: value for key, value in LLAMA.items() if not key.startswith("rope")}, "attention_bias": False,
    "mlp_bias": False, "head_dim": 64, "rope_parameters": {**LLAMA["rope_scaling"], "rope_theta": 500000.0},  # type: ignore[dict-item]
}  # fmt: skip
GEMMA3 = {
    "model_type": "gemma3_text", "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": None,
    "sliding_window": 512, "attn_logit_softcapping": None, "final_logit_softcapping": None,
    "query_pre_attn_scalar": 256,
}  # fmt: skip
GEMMA3_NEW = {
    "model_type": "gemma3_text", "sliding_window": 512, "attn_logit_softcapping": None, "final_logit_softcapping": None,
    "query_pre_attn_scalar": 256, "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1000000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    },
}  # fmt: skip


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return copy.deepcopy(config) | changes


SAME: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "itself": (LLAMA, LLAMA, COMPLETE),
    "as a newer version saves it": (COMPLETE, LLAMA, {}),
    "as an older version saves it": (LLAMA, COMPLETE, {}),
    "with the defaults that a version adds": (changed(LLAMA, attention_bias=False, head_dim=None), LLAMA, COMPLETE),
    "whole numbers for fractions": (changed(LLAMA, rope_theta=500000), LLAMA, {}),
    "the old key of the kind of scaling": (
        changed(LLAMA, rope_scaling={**LLAMA["rope_scaling"], "type": "llama3"}), LLAMA, {},  # type: ignore[dict-item]
    ),
    "another dropout and type": (changed(LLAMA, attention_dropout=0.1, torch_dtype="float32"), LLAMA, COMPLETE),
    "another end of text": (changed(LLAMA, eos_token_id=[1, 2], pad_token_id=3), LLAMA, COMPLETE),
    "another context": (changed(LLAMA, max_position_embeddings=2048), LLAMA, COMPLETE),
    "a key of a tool": (changed(LLAMA, unsloth_version="1"), LLAMA, COMPLETE),
    "Gemma 3, newer": (GEMMA3_NEW, GEMMA3, {}),
    "Gemma 3, older": (GEMMA3, GEMMA3_NEW, {}),
    "no rope at all": ({"model_type": "llama"}, LLAMA, COMPLETE),
    "a window that is off": (
        {"sliding_window": None, "use_sliding_window": False},
        {"sliding_window": 32768, "use_sliding_window": False}, {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", SAME)
def test_what_computes_the_same_is_no_difference(case: str) -> None:
    assert first_difference(*SAME[case]) is None


OTHER: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any], str]] = {
    "another base of the rope": (changed(LLAMA, rope_theta=10000.0), LLAMA, COMPLETE, "rope"),
    "no scaling of the rope": (changed(LLAMA, rope_scaling=None), LLAMA, COMPLETE, "rope"),
    "another factor": (
        changed(COMPLETE, rope_parameters={**COMPLETE["rope_parameters"], "factor": 32.0}),  # type: ignore[dict-item]
        LLAMA, COMPLETE, "rope",
    ),
    "a part of each head": (changed(LLAMA, partial_rotary_factor=0.5), LLAMA, COMPLETE, "rope"),
    "another local rope": (changed(GEMMA3, rope_local_base_freq=1e6), GEMMA3, {}, "rope"),
    "one rope for all layers": (
        changed(GEMMA3_NEW, rope_parameters={"rope_type": "default", "rope_theta": 1e6}), GEMMA3, {}, "rope",
    ),
    "another norm": (changed(LLAMA, rms_norm_eps=1e-06), LLAMA, COMPLETE, "rms_norm_eps"),
    "another activation": (changed(LLAMA, hidden_act="gelu"), LLAMA, COMPLETE, "hidden_act"),
    "no window": (changed(GEMMA3, sliding_window=None), GEMMA3, {}, "sliding_window"),
    "softcapping": (changed(GEMMA3, final_logit_softcapping=30.0), GEMMA3, {}, "final_logit_softcapping"),
    "another scale": (changed(GEMMA3, query_pre_attn_scalar=128), GEMMA3, {}, "query_pre_attn_scalar"),
    "a bias that only the defaults know": (changed(LLAMA, mlp_bias=True), LLAMA, COMPLETE, "mlp_bias"),
    "a text for a number": (changed(LLAMA, rms_norm_eps="1e-05"), LLAMA, COMPLETE, "rms_norm_eps"),
    "true for one": (changed(LLAMA, rms_norm_eps=True), changed(LLAMA, rms_norm_eps=1), {}, "rms_norm_eps"),
    "inside a nested configuration": (
        {"text_config": changed(GEMMA3, sliding_window=1)}, {"text_config": GEMMA3}, {}, "text_config.sliding_window",
    ),
    "a context that scales the rope": (
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 1},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2}, {},
        "max_position_embeddings",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER)
def test_what_computes_something_else_is_named(case: str) -> None:
    submitted, base, complete, key = OTHER[case]
    found = first_difference(submitted, base, complete)
    assert found is not None
    assert key in found.key


@pytest.mark.parametrize("rope", [1, "text", [], [1], {"a": {}}, {"rope_type": ["x"]}, {"factor": {}}])
def test_a_rope_of_any_form_can_be_read(rope: Any) -> None:
    assert isinstance(rope_of({"rope_scaling": rope, "rope_theta": rope}), dict)
