"""Small, randomly initialised base models in the file layouts of the families' hub repositories.

    base = FAMILIES["mistral-v0.3"].build(tmp_path / "base")

The files, their names, the keys of config.json and what is stored are as in the repository that `repository` names;
only the sizes are smaller, and the tokenizer is a small one of our own.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM

from tests.small_model import write_tokenizer

HIDDEN, INNER, HEADS, KV_HEADS, HEAD, LAYERS, VOCABULARY = 32, 64, 4, 2, 8, 2, 288
INDEX = "model.safetensors.index.json"
SMALL: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY, "bos_token_id": 0, "eos_token_id": 0,
    "initializer_range": 0.3, "use_cache": True,
}  # fmt: skip


@dataclass(frozen=True)
class Family:
    """The layout of one repository."""

    repository: str
    config: Mapping[str, Any]
    """The keys of its config.json, apart from the sizes."""
    dtype: torch.dtype = torch.bfloat16
    shards: int = 1
    first_shard: int = 1
    stored_head: bool = False
    """Whether the tied head is stored, too."""
    inv_freq: bool = False
    """Whether buffers of the rotary embedding are stored."""
    consolidated: bool = False
    """Whether the weights are stored a second time, in one file under the names of the authors."""
    mxfp4: bool = False
    """Whether the experts are stored in MXFP4."""
    other_files: Mapping[str, str] = field(default_factory=dict)

    def build(self, folder: Path) -> Path:
        """Writes the base model; the same one each time."""
        folder.mkdir(parents=True)
        config = {**SMALL, **self.config}
        _write_tokenizer(folder)
        for name, text in self.other_files.items():
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_text(text)
        weights = self._weights(folder, config)
        (folder / "config.json").write_text(json.dumps(config, indent=2))
        (folder / "generation_config.json").write_text('{"_from_model_config": true, "eos_token_id": 0}')
        self._store(folder, weights)
        return folder

    def _weights(self, folder: Path, config: dict[str, Any]) -> dict[str, torch.Tensor]:
        making = folder / "making"
        making.mkdir()
        plain = {key: value for key, value in config.items() if key not in ("quantization_config", "auto_map")}
        (making / "config.json").write_text(json.dumps(plain))
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(making), dtype=torch.float32)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 or name.endswith("bias"):
                parameter.data += torch.randn_like(parameter) * 0.05  # so that norms and biases differ from their start
        model.to(self.dtype).save_pretrained(making)
        weights: dict[str, torch.Tensor] = load_file(making / "model.safetensors")
        shutil.rmtree(making)
        if self.stored_head:
            weights["lm_head.weight"] = weights["model.embed_tokens.weight"].clone()
        if self.inv_freq:
            for layer in range(LAYERS):
                inverse = 1.0 / 10000 ** (torch.arange(0, HEAD, 2) / HEAD)
                weights[f"model.layers.{layer}.self_attn.rotary_emb.inv_freq"] = inverse
        return _in_mxfp4(weights) if self.mxfp4 else weights

    def _store(self, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        if self.consolidated:
            authors = {name.removeprefix("model.").replace("self_attn", "attention"): weights[name] for name in weights}
            save_file(authors, folder / "consolidated.safetensors", {"format": "pt"})
        if self.shards == 1:
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
            return
        names = list(weights)
        where: dict[str, str] = {}
        for number in range(self.shards):
            file = f"model-{number + self.first_shard:05}-of-{self.shards:05}.safetensors"
            part = names[number * len(names) // self.shards : (number + 1) * len(names) // self.shards]
            save_file({name: weights[name] for name in part}, folder / file, {"format": "pt"})
            where |= dict.fromkeys(part, file)
        size = sum(weight.nbytes for weight in weights.values())
        (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": size}, "weight_map": where}, indent=2))


def _write_tokenizer(folder: Path) -> None:
    """Writes the small tokenizer with a token that the tokenizer classes of Qwen would add otherwise."""
    write_tokenizer(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<|endoftext|>"])
    tokenizer.save(str(folder / "tokenizer.json"))


def _in_mxfp4(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Replaces the experts' weights by random ones in MXFP4: blocks of 32 numbers of 4 bits, and a scale for each."""
    found = {}
    generator = torch.Generator().manual_seed(1)
    for name, weight in weights.items():
        if not name.endswith(("gate_up_proj", "down_proj")):
            found[name] = weight
            continue
        experts, columns, rows = weight.shape
        shape = (experts, rows, columns // 32)
        found[f"{name}_blocks"] = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        found[f"{name}_scales"] = torch.randint(120, 124, shape, dtype=torch.uint8, generator=generator)
    return found


def _llama(**changes: Any) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05,
        "max_position_embeddings": 4096, "pretraining_tp": 1, "rope_scaling": None, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.31.0", **changes,
    }  # fmt: skip


def _qwen(**changes: Any) -> dict[str, Any]:
    return {
        "attention_dropout": 0.0, "hidden_act": "silu", "max_position_embeddings": 32768, "max_window_layers": 1,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "use_sliding_window": False,
        "torch_dtype": "bfloat16", "transformers_version": "4.43.1", **changes,
    }  # fmt: skip


SENTENCEPIECE = {"tokenizer.model": "not read: tokenizer.json is", "special_tokens_map.json": "{}"}
BPE = {"merges.txt": "#version: 0.2", "vocab.json": "{}"}
FAMILIES = {
    "qwen2.5-0.5b": Family(
        "Qwen/Qwen2.5-0.5B",
        _qwen(architectures=["Qwen2ForCausalLM"], model_type="qwen2", tie_word_embeddings=True),
        other_files=BPE,
    ),
    "qwen2.5-7b": Family(
        "Qwen/Qwen2.5-7B",
        _qwen(architectures=["Qwen2ForCausalLM"], model_type="qwen2", tie_word_embeddings=False),
        shards=4,
        other_files=BPE,
    ),
    "qwen3-0.6b": Family(
        "Qwen/Qwen3-0.6B",
        _qwen(
            architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True, head_dim=16,
            attention_bias=False, rope_scaling=None, sliding_window=None, max_position_embeddings=40960,
        ),
        stored_head=True,
        other_files=BPE,
    ),
    "qwen3-1.7b": Family(
        "Qwen/Qwen3-1.7B",
        _qwen(
            architectures=["Qwen3ForCausalLM"], model_type="qwen3", tie_word_embeddings=True, head_dim=16,
            attention_bias=False, rope_scaling=None, sliding_window=None, max_position_embeddings=40960,
        ),
        shards=2,
        stored_head=True,
        other_files=BPE,
    ),
    "qwen3-30b-a3b": Family(
        "Qwen/Qwen3-30B-A3B",
        _qwen(
            architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", tie_word_embeddings=False, head_dim=16,
            attention_bias=False, decoder_sparse_step=1, mlp_only_layers=[], moe_intermediate_size=32,
            norm_topk_prob=True, num_experts=4, num_experts_per_tok=2, output_router_logits=False,
            router_aux_loss_coef=0.001,
        ),
        shards=16,
        other_files=BPE,
    ),
    "llama-2": Family(
        "meta-llama/Llama-2-7b-hf",
        _llama(torch_dtype="float16", num_key_value_heads=HEADS),
        dtype=torch.float16,
        shards=2,
        inv_freq=True,
        other_files=SENTENCEPIECE,
    ),
    "llama-3.1": Family(
        "meta-llama/Llama-3.1-8B",
        _llama(
            attention_bias=False, attention_dropout=0.0, mlp_bias=False, max_position_embeddings=131072,
            rope_theta=500000.0, rope_scaling={
                "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        ),
        shards=4,
        other_files={"special_tokens_map.json": "{}", "original/params.json": "{}"},
    ),
    "llama-3.2-1b": Family(
        "meta-llama/Llama-3.2-1B",
        _llama(
            attention_bias=False, attention_dropout=0.0, mlp_bias=False, max_position_embeddings=131072, head_dim=HEAD,
            tie_word_embeddings=True, rope_theta=500000.0, rope_scaling={
                "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192, "rope_type": "llama3",
            },
        ),
        other_files={"special_tokens_map.json": "{}", "original/params.json": "{}"},
    ),
    "mistral-v0.3": Family(
        "mistralai/Mistral-7B-Instruct-v0.3",
        {
            "architectures": ["MistralForCausalLM"], "model_type": "mistral", "attention_dropout": 0.0,
            "hidden_act": "silu", "max_position_embeddings": 32768, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
            "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.42.0.dev0",
        },
        shards=3,
        consolidated=True,
        other_files={**SENTENCEPIECE, "tokenizer.model.v3": "not read", "params.json": "{}"},
    ),
    "phi-3": Family(
        "microsoft/Phi-3-mini-4k-instruct",
        {
            "_name_or_path": "Phi-3-mini-4k-instruct", "architectures": ["Phi3ForCausalLM"], "model_type": "phi3",
            "attention_bias": False, "attention_dropout": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0,
            "auto_map": {
                "AutoConfig": "configuration_phi3.Phi3Config", "AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"
            },
            "hidden_act": "silu", "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
            "num_key_value_heads": HEADS, "pad_token_id": 0, "rms_norm_eps": 1e-05, "rope_scaling": None,
            "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
            "transformers_version": "4.40.2",
        },
        shards=2,
        other_files={
            **SENTENCEPIECE, "added_tokens.json": "{}",
            "configuration_phi3.py": "raise SystemExit", "modeling_phi3.py": "raise SystemExit",
        },
    ),
    "gemma-2": Family(
        "google/gemma-2-2b",
        {
            "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attention_bias": False,
            "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "cache_implementation": "hybrid",
            "final_logit_softcapping": 30.0, "head_dim": HEAD, "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh", "initializer_range": 0.02, "max_position_embeddings": 8192,
            "pad_token_id": 0, "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06, "rope_theta": 10000.0,
            "sliding_window": 4096, "torch_dtype": "float32", "transformers_version": "4.42.4",
        },
        dtype=torch.float32,
        shards=3,
        other_files=SENTENCEPIECE,
    ),
    "gemma-3-270m": Family(
        "google/gemma-3-270m-it",
        {
            "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "_sliding_window_pattern": 6,
            "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": None,
            "final_logit_softcapping": None, "head_dim": HEAD, "hidden_activation": "gelu_pytorch_tanh",
            "initializer_range": 0.02, "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 32768, "pad_token_id": 0, "query_pre_attn_scalar": 8, "rms_norm_eps": 1e-06,
            "rope_local_base_freq": 10000.0,
            "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": 512, "torch_dtype": "bfloat16",
            "transformers_version": "4.55.0.dev0", "use_bidirectional_attention": False,
        },
        other_files={**SENTENCEPIECE, "added_tokens.json": "{}", "chat_template.jinja": "{{ messages }}"},
    ),
    "olmo-2": Family(
        "allenai/OLMo-2-0425-1B",
        {
            "architectures": ["Olmo2ForCausalLM"], "model_type": "olmo2", "attention_bias": False,
            "attention_dropout": 0.0, "hidden_act": "silu", "max_position_embeddings": 4096, "pad_token_id": 1,
            "num_key_value_heads": HEADS, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 500000,
            "tie_word_embeddings": False, "torch_dtype": "float32", "transformers_version": "4.47.0",
        },
        dtype=torch.float32,
        shards=2,
        other_files=BPE,
    ),
    "smollm2": Family(
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        _llama(
            attention_bias=False, attention_dropout=0.0, is_llama_config=True, max_position_embeddings=8192,
            mlp_bias=False, pad_token_id=0, rope_interleaved=False, rope_theta=100000, tie_word_embeddings=True,
            **{"transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}}},
        ),
        other_files=BPE,
    ),
    "smollm3": Family(
        "HuggingFaceTB/SmolLM3-3B",
        {
            "architectures": ["SmolLM3ForCausalLM"], "model_type": "smollm3", "attention_bias": False,
            "attention_dropout": 0.0, "hidden_act": "silu", "layer_types": ["full_attention"] * LAYERS,
            "max_position_embeddings": 65536, "max_window_layers": 28, "mlp_bias": False,
            "no_rope_layer_interval": 4, "no_rope_layers": [1, 0], "pad_token_id": 0, "pretraining_tp": 2,
            "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 5000000.0, "sliding_window": None,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.54.0.dev0",
            "use_sliding_window": False,
        },
        shards=2,
        other_files={"special_tokens_map.json": "{}", "chat_template.jinja": "{{ messages }}"},
    ),
    "gpt-oss": Family(
        "openai/gpt-oss-20b",
        {
            "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "attention_bias": True,
            "attention_dropout": 0.0, "experts_per_token": 2, "head_dim": HEAD, "hidden_act": "silu",
            "initial_context_length": 4096, "layer_types": ["sliding_attention", "full_attention"],
            "max_position_embeddings": 131072, "num_experts_per_tok": 2, "num_local_experts": 4,
            "output_router_logits": False, "pad_token_id": 0, "rms_norm_eps": 1e-05,
            "quantization_config": {
                "modules_to_not_convert": [
                    "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"
                ],
                "quant_method": "mxfp4",
            },
            "rope_scaling": {
                "beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096,
                "rope_type": "yarn", "truncate": False,
            },
            "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128, "swiglu_limit": 7.0,
            "tie_word_embeddings": False, "transformers_version": "4.55.0.dev0",
        },
        shards=2,
        first_shard=0,
        mxfp4=True,
        other_files={
            "special_tokens_map.json": "{}", "chat_template.jinja": "{{ messages }}", "original/config.json": "{}"
        },
    ),
}  # fmt: skip
FORMERLY_REFUSED = {
    "qwen3-0.6b": "a stored lm_head", "qwen3-1.7b": "a stored lm_head", "llama-2": "inv_freq buffers",
    "mistral-v0.3": "consolidated.safetensors", "phi-3": "auto_map", "gpt-oss": "experts in MXFP4",
}  # fmt: skip
"""What trained checkpoints of these families were refused for before."""
