"""Tests that weights that are broken, or are not those of the base model's architecture, are refused."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.small_model import Weight, read_weights, write_raw_safetensors, write_safetensors
from tests.submission_tools import NORM, edit_header, header_of, rewrite


# Each function spoils a submission.
def _extra_tensor(folder: Path) -> None:
    rewrite(folder, extra=Weight("F32", (1,), b"\0" * 4))


def _renamed(name: str) -> Callable[[Path], None]:
    return lambda folder: rewrite(folder, **{name: Weight("F32", (1,), b"\0" * 4)})


def _missing_tensor(folder: Path) -> None:
    rewrite(folder, **{NORM: None})


def _other_shape(folder: Path) -> None:
    rewrite(folder, **{NORM: Weight("F32", (8,), b"\0" * 32)})


def _integers(folder: Path) -> None:
    rewrite(folder, **{NORM: Weight("I32", (16,), b"\0" * 64)})


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _garbage(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0" + b"garbage!" * 10)


def _no_bytes(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"")


def _endless_header(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 1 << 62) + b"{}")


def _header_is_a_list(folder: Path) -> None:
    write_raw_safetensors(folder / "model.safetensors", [1, 2], b"")


def _header_names_no_text(folder: Path) -> None:
    entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    write_raw_safetensors(folder / "model.safetensors", {"\ud800": entry}, bytes(4))


def _bytes_before_the_data(folder: Path) -> None:
    edit_header(folder, data_offsets=[-100_000, -99_936])


def _offsets_are_fractions(folder: Path) -> None:
    edit_header(folder, data_offsets=[0.5, 64.5])


def _offsets_are_missing(folder: Path) -> None:
    edit_header(folder, data_offsets=[0])


def _fewer_bytes_than_the_shape(folder: Path) -> None:
    edit_header(folder, data_offsets=[0, 4])


def _type_is_a_list(folder: Path) -> None:
    edit_header(folder, dtype=["F32"])


def _shape_is_a_number(folder: Path) -> None:
    edit_header(folder, shape=16)


def _overlapping_tensors(folder: Path) -> None:
    edit_header(folder, data_offsets=[0, 64])


def _header_names_a_tensor_twice(folder: Path) -> None:
    path = folder / "model.safetensors"
    header = header_of(path)
    data = path.read_bytes()[8 + struct.unpack("<Q", path.read_bytes()[:8])[0] :]
    text = json.dumps(header)[:-1] + f', "{NORM}": {json.dumps(header[NORM])}}}'
    path.write_bytes(struct.pack("<Q", len(text)) + text.encode() + data)


def _bytes_that_no_tensor_has(folder: Path) -> None:
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"hidden message")


def _not_a_number(folder: Path) -> None:
    norm = read_weights(folder)[NORM]
    rewrite(folder, **{NORM: norm._replace(data=norm.data[:-4] + struct.pack("<f", float("nan")))})


def _infinite_in_bfloat16(folder: Path) -> None:
    norm = read_weights(folder)[NORM]
    rewrite(folder, **{NORM: norm._replace(data=norm.data[:-4] + struct.pack("<f", 3.4e38))})


def _another_head(folder: Path) -> None:
    embedding = read_weights(folder)["model.embed_tokens.weight"]
    rewrite(folder, **{"lm_head.weight": embedding._replace(data=bytes(len(embedding.data)))})


def _head_in_another_type(folder: Path) -> None:
    embedding = read_weights(folder)["model.embed_tokens.weight"]
    half = Weight("BF16", embedding.shape, bytes(len(embedding.data) // 2))
    rewrite(folder, **{"lm_head.weight": half})


def _twice_under_wrappers(folder: Path) -> None:
    rewrite(folder, **{f"module.{NORM}": read_weights(folder)[NORM]})


def _with_a_value_head(folder: Path) -> None:
    weights = {f"pretrained_model.{name}": weight for name, weight in read_weights(folder).items()}
    weights["v_head.summary.weight"] = Weight("F32", (1, 16), bytes(64))
    write_safetensors(folder / "model.safetensors", weights)


def _adapter_inside(folder: Path) -> None:
    rewrite(folder, **{"model.layers.0.self_attn.q_proj.lora_A.default.weight": Weight("F32", (1, 16), bytes(64))})


def _too_large(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 30)  # sparse


BAD = {
    "an extra tensor": (_extra_tensor, "not in the base model, such as extra.*submit"),
    "a missing tensor": (_missing_tensor, "missing, such as model.norm.weight.*submit the full model"),
    "a name of many characters": (_renamed("x" * 513), "more than 512 characters or 32 parts"),
    "a name of many parts": (_renamed("a." * 32 + "b"), "more than 512 characters or 32 parts"),
    "a name without end": (_renamed("a." * 400_000 + "b"), "more than 512 characters or 32 parts"),
    "another shape": (_other_shape, "model.norm.weight has shape.*do not resize"),
    "integers": (_integers, "stored as I32.*save the weights as"),
    "truncated": (_truncated, "truncated.*[Ss]ave it again"),
    "garbage": (_garbage, "not a valid safetensors.*save_pretrained"),
    "no bytes": (_no_bytes, "not a valid safetensors.*save_pretrained"),
    "an endless header": (_endless_header, "not a valid safetensors.*save_pretrained"),
    "header is a list": (_header_is_a_list, "not a valid safetensors.*save_pretrained"),
    "a header with a name that is no text": (_header_names_no_text, "not a valid safetensors"),
    "bytes before the data": (_bytes_before_the_data, "not a valid|truncated"),
    "offsets are fractions": (_offsets_are_fractions, "not a valid"),
    "offsets are missing": (_offsets_are_missing, "not a valid"),
    "fewer bytes than the shape": (_fewer_bytes_than_the_shape, "not a valid|truncated"),
    "type is a list": (_type_is_a_list, "not a valid"),
    "shape is a number": (_shape_is_a_number, "not a valid"),
    "overlapping tensors": (_overlapping_tensors, "not a valid safetensors"),
    "a header that names a tensor twice": (_header_names_a_tensor_twice, "not a valid safetensors"),
    "bytes that no tensor has": (_bytes_that_no_tensor_has, "not a valid safetensors"),
    "not a number": (_not_a_number, "model.norm.weight has numbers that are not finite.*earlier checkpoint"),
    "infinite in bfloat16": (_infinite_in_bfloat16, "not finite"),
    "another head": (_another_head, "lm_head.weight differs from model.embed_tokens.weight.*tie_word_embeddings"),
    "a head in another type": (_head_in_another_type, "lm_head.weight differs from model.embed_tokens.weight"),
    "twice under wrappers": (_twice_under_wrappers, "stored twice, under names of different wrappers"),
    "with a value head": (_with_a_value_head, "without its value head.*pretrained_model"),
    "an adapter inside": (_adapter_inside, "lora_A.*merge_and_unload"),
    "too large": (_too_large, "more than the .* MiB allowed"),
}
"""Faults: a name, the function that makes it, and what the refusal says."""


@pytest.mark.parametrize("flaw", BAD)
def test_a_file_of_bad_weights_is_refused_with_a_way_to_mend_it(refused: Callable[..., None], flaw: str) -> None:
    refused(*BAD[flaw])
