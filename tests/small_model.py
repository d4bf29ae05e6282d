"""A real Qwen3 checkpoint of 20 kB, and submissions made from it, all without torch.

Weights are written in the safetensors format (an 8-byte length, a JSON header, the bytes) without a library, so that a
test can also write invalid files.
"""

import json
import os
import random
import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

HIDDEN, INNER, HEAD, HEADS, LAYERS, CONTEXT = 16, 32, 8, 2, 1, 512
END = "<|end|>"
FINITE = bytes(byte & 0x3B for byte in range(256))
"""Turns any bytes into those of finite numbers."""
CHAT_TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"


class Weight(NamedTuple):
    """One tensor of a safetensors file."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


def write_safetensors(path: Path, weights: Mapping[str, Weight], metadata: Mapping[str, str] | None = None) -> None:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name, weight in weights.items():
        header[name] = {
            "dtype": weight.dtype,
            "shape": list(weight.shape),
            "data_offsets": [end, end + len(weight.data)],
        }
        end += len(weight.data)
    write_raw_safetensors(path, header, b"".join(weight.data for weight in weights.values()))


def write_raw_safetensors(path: Path, header: Any, data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def read_weights(folder: Path) -> dict[str, Weight]:
    weights = {}
    for path in sorted(folder.glob("*.safetensors")):
        raw = path.read_bytes()
        length = struct.unpack("<Q", raw[:8])[0]
        header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                weights[name] = Weight(entry["dtype"], tuple(entry["shape"]), data[start:end])
    return weights


def random_weights(vocabulary: int, seed: int) -> dict[str, Weight]:
    rng = random.Random(seed)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes |= {
            prefix + "input_layernorm.weight": (HIDDEN,),
            prefix + "post_attention_layernorm.weight": (HIDDEN,),
            prefix + "mlp.gate_proj.weight": (INNER, HIDDEN),
            prefix + "mlp.up_proj.weight": (INNER, HIDDEN),
            prefix + "mlp.down_proj.weight": (HIDDEN, INNER),
            prefix + "self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
            prefix + "self_attn.k_proj.weight": (HEAD, HIDDEN),
            prefix + "self_attn.v_proj.weight": (HEAD, HIDDEN),
            prefix + "self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
            prefix + "self_attn.q_norm.weight": (HEAD,),
            prefix + "self_attn.k_norm.weight": (HEAD,),
        }
    shapes["model.norm.weight"] = (HIDDEN,)
    return {name: _random_weight(rng, shape) for name, shape in shapes.items()}


def _random_weight(rng: random.Random, shape: tuple[int, ...]) -> Weight:
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    values = [rng.gauss(0, 0.2) for _ in range(count)] if len(shape) > 1 else [1.0] * count
    return Weight("F32", shape, struct.pack(f"<{count}f", *values))


def write_tokenizer(folder: Path) -> int:
    """Writes a byte-level BPE tokenizer with a few merges; returns the size of its vocabulary."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=280,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(["Question: 1 + 1? Let's think step by step. Answer: 2"] * 3, trainer)
    bpe.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "model_max_length": CONTEXT,
        "chat_template": CHAT_TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return int(bpe.get_vocab_size())


def config(vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "attention_bias": False,
        "dtype": "float32",
        "eos_token_id": 0,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "max_position_embeddings": CONTEXT,
        "num_attention_heads": HEADS,
        "num_hidden_layers": LAYERS,
        "num_key_value_heads": 1,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "use_cache": True,
        "vocab_size": vocabulary,
    }


def build_base_model(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = write_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(config(vocabulary), indent=2))
    (folder / "generation_config.json").write_text('{"eos_token_id": 0}')
    write_safetensors(folder / "model.safetensors", random_weights(vocabulary, seed=0), {"format": "pt"})
    return folder


def trained_copy(base_model: Path, folder: Path, seed: int) -> Path:
    """Makes a submission as `save_pretrained` writes it: the base model's files with other weights."""
    shutil.copytree(base_model, folder, dirs_exist_ok=True)
    weights = read_weights(base_model)
    norm = weights["model.norm.weight"]
    values = struct.pack(f"<{norm.shape[0]}f", *([1.0 + seed / 64] * norm.shape[0]))
    write_safetensors(folder / "model.safetensors", weights | {"model.norm.weight": norm._replace(data=values)})
    return folder


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def enlarge(folder: Path, size: int, zeros: bool = False) -> None:
    """Adds tensors of together `size` bytes, in four shards: repeated random finite numbers, or zeros."""
    weights = read_weights(folder)
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model-0.safetensors", weights)
    for shard in range(1, 5):
        data = bytes(size >> 2) if zeros else os.urandom(1 << 16).translate(FINITE) * (size >> 18)
        write_safetensors(
            folder / f"model-{shard}.safetensors", {f"more.{shard}": Weight("F16", (len(data) // 2,), data)}
        )
