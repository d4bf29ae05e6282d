"""Tests the validation of submissions: what is refused, how to fix it, and that only the agent's weights are copied."""

import json
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import IO, BinaryIO

import pytest

from a2rl.core.errors import InfrastructureError, InvalidSubmissionError, UsageError
from a2rl.grading import submitted_files
from a2rl.grading.submitted_files import FREE_DISK_MARGIN, MAX_FILES, MAX_NAMES
from a2rl.grading.validation import copy_submission
from a2rl.linux import untrusted_folder
from a2rl.linux.untrusted_folder import copy_open_file
from a2rl.models.checkpoint import check_base_model, tensors_in, tensors_of, weights_digest
from tests.as_nobody import as_nobody, folder_of_nobody
from tests.small_model import (
    Weight,
    edit_json,
    random_weights,
    read_weights,
    trained_copy,
    write_raw_safetensors,
    write_safetensors,
)

NORM = "model.norm.weight"
INDEX = "model.safetensors.index.json"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "workspace" / "output").mkdir(parents=True)
    return tmp_path / "workspace"


@pytest.fixture
def submission(workspace: Path, base_model: Path) -> Path:
    """A valid submission, which each test breaks in its own way."""
    return trained_copy(base_model, workspace / "output" / "v1", seed=1)


@pytest.fixture
def submit(workspace: Path, base_model: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies a submission as the service does and returns the copy."""
    number = iter(range(100))

    def copy(model_path: str) -> Path:
        target = tmp_path / f"kept-{next(number)}"
        copy_submission(workspace, model_path, target, base_model)
        return target

    return copy


def header_of(path: Path) -> dict[str, object]:
    raw = path.read_bytes()
    return dict(json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]]))


def rewrite(folder: Path, **changed: Weight | None) -> None:
    weights = read_weights(folder)
    for name, weight in changed.items():
        if weight is None:
            del weights[name]
        else:
            weights[name] = weight
    write_safetensors(folder / "model.safetensors", weights)


def edit_header(folder: Path, **entry: object) -> None:
    """Changes one tensor's entry in the header, without changing the bytes."""
    path = folder / "model.safetensors"
    header = header_of(path)
    data = path.read_bytes()[8 + struct.unpack("<Q", path.read_bytes()[:8])[0] :]
    header[NORM] = {**dict(header[NORM]), **entry}  # type: ignore[call-overload]
    write_raw_safetensors(path, header, data)


# Faults of a submission: a name, the function that breaks the folder, and the expected refusal.
def _empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def _symlinked_folder(folder: Path) -> None:
    folder.rename(folder.with_name("real"))
    folder.symlink_to("real")


def _symlinked_weights(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "real.bin")
    (folder / "model.safetensors").symlink_to("real.bin")


def _dangling_link(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/nowhere")


def _symlinked_config(folder: Path) -> None:
    (folder / "config.json").rename(folder / "real.json")
    (folder / "config.json").symlink_to("real.json")


def _fifo(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    os.mkfifo(folder / "model.safetensors")


def _folder_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").mkdir()


def _a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def _adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")


def _pickles_only(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def _no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _config_is_a_list(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


def _deeply_nested_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")


def _config_is_not_text(folder: Path) -> None:
    (folder / "config.json").write_bytes(b"\xff\xfe{}")


def _other_architecture(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="llama")


def _more_layers(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=2)


def _remote_code(folder: Path) -> None:
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "mine.Model"})
    (folder / "mine.py").write_text("raise SystemExit")


def _extra_tensor(folder: Path) -> None:
    rewrite(folder, extra=Weight("F32", (1,), b"\0" * 4))


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


def _same_tensor_twice(folder: Path) -> None:
    shutil.copy(folder / "model.safetensors", folder / "old.safetensors")
    (folder / "model.safetensors").rename(folder / "new.safetensors")


def _hard_linked_weights(folder: Path) -> None:
    (folder.parent / "second-name").hardlink_to(folder / "model.safetensors")


def _hard_linked_config(folder: Path) -> None:
    (folder.parent / "second-name").hardlink_to(folder / "config.json")


def _endless_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("/dev/zero")


def _weights_too_large_together(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for number in range(20):
        with (folder / f"more-{number}.safetensors").open("wb") as file:
            file.truncate(1 << 20)  # each is within the limit


def _flood_of_shards(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    for number in range(MAX_FILES + 1):
        (folder / f"more-{number}.safetensors").touch()


def _flood_of_files(folder: Path) -> None:
    for number in range(MAX_NAMES):
        (folder / f"{number}").touch()


def _huge_config(folder: Path) -> None:
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 40)  # sparse


def _other_tokenizer(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:-1]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def _added_token(folder: Path) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append({**tokenizer["added_tokens"][0], "id": 9999, "content": "<think>"})
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def _as_shards(folder: Path) -> None:
    """Splits the weights into two files with an index."""
    shard(folder, 2)


def edit_index(folder: Path, **changed: object) -> None:
    _as_shards(folder)
    path = folder / INDEX
    index = json.loads(path.read_text())
    index["weight_map"] |= changed
    path.write_text(json.dumps(index))


def _index_names_a_missing_file(folder: Path) -> None:
    edit_index(folder, **{NORM: "model-00003-of-00002.safetensors"})


def _index_points_outside(folder: Path) -> None:
    trained_copy(folder, folder.parent / "other", seed=2)
    edit_index(folder, **{NORM: "../other/model.safetensors"})


def _index_points_to_the_root(folder: Path) -> None:
    edit_index(folder, **{NORM: "/etc/x.safetensors"})


def _index_names_no_text(folder: Path) -> None:
    edit_index(folder, **{NORM: ["model-00001-of-00002.safetensors"]})


def _index_puts_a_tensor_elsewhere(folder: Path) -> None:
    _as_shards(folder)
    index = json.loads((folder / INDEX).read_text())["weight_map"]
    other = next(file for file in index.values() if file != index[NORM])
    (folder / INDEX).write_text(json.dumps({"weight_map": index | {NORM: other}}))


def _index_names_a_tensor_twice(folder: Path) -> None:
    _as_shards(folder)
    text = (folder / INDEX).read_text()
    (folder / INDEX).write_text(text.replace('"weight_map": {', f'"weight_map": {{"{NORM}": "x.safetensors", ', 1))


def _index_without_end(folder: Path) -> None:
    _as_shards(folder)
    with (folder / INDEX).open("r+b") as file:
        file.truncate(1 << 36)  # sparse


def _index_with_a_million_names(folder: Path) -> None:
    edit_index(folder, **{f"model.layers.{number}": "a" * 20 for number in range(1_000_000)})


def _index_is_a_list(folder: Path) -> None:
    _as_shards(folder)
    (folder / INDEX).write_text('{"weight_map": []}')


def _truncated_shard(folder: Path) -> None:
    _as_shards(folder)
    path = folder / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def _config_of_60_mb(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": "' + "x" * (60 << 20) + '"}')


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


def _another_rope(folder: Path) -> None:
    edit_json(folder / "config.json", rope_parameters={"rope_theta": 1e6, "rope_type": "default"})


def _another_rope_in_old_keys(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 1e6, "rope_scaling": None}))


def _another_norm(folder: Path) -> None:
    edit_json(folder / "config.json", rms_norm_eps=1e-05)


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


def _deepspeed_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "global_step3").mkdir()
    (folder / "zero_to_fp32.py").touch()


def _fsdp_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model_fsdp_0").mkdir()


def _too_large(folder: Path) -> None:
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1 << 30)  # sparse


BAD = {
    "an empty folder": (_empty, "no weights.*save_pretrained"),
    "a symlinked folder": (_symlinked_folder, "is a link.*submit the real folder"),
    "symlinked weights": (_symlinked_weights, "is a link.*submit real files"),
    "a dangling link": (_dangling_link, "is a link.*submit real files"),
    "a symlinked config": (_symlinked_config, "is a link.*submit real files"),
    "a fifo": (_fifo, "not a regular file.*submit real files"),
    "hard-linked weights": (_hard_linked_weights, "second name.*copy it"),
    "a hard-linked config": (_hard_linked_config, "config.json has a second name"),
    "endless weights": (_endless_weights, "is a link.*submit real files"),
    "weights too large together": (_weights_too_large_together, "more than the .* MiB allowed"),
    "a flood of shards": (_flood_of_shards, "more than .* of weights; save"),
    "a flood of files": (_flood_of_files, "more than 2000 files"),
    "a huge config": (_huge_config, "sensible size.*save the model again"),
    "a folder for weights": (_folder_for_weights, "not a regular file.*submit real files"),
    "a file": (_a_file, "not a folder.*submit the real folder"),
    "an adapter": (_adapter, "an adapter and a whole model.*submit"),
    "pickles only": (_pickles_only, "only pytorch_model.bin.*never loaded.*safetensors"),
    "no config": (_no_config, "no config.json.*save_pretrained"),
    "broken config": (_broken_config, "not valid JSON.*save"),
    "config is a list": (_config_is_a_list, "not a JSON object.*save"),
    "deeply nested config": (_deeply_nested_config, "not valid JSON.*save"),
    "config is not text": (_config_is_not_text, "not valid JSON.*save"),
    "other architecture": (_other_architecture, "model_type.*llama.*submit the base model's architecture"),
    "more layers": (_more_layers, "num_hidden_layers.*submit the base model's architecture"),
    "remote code": (_remote_code, "auto_map.*submit the base architecture"),
    "an extra tensor": (_extra_tensor, "not in the base model, such as extra.*submit"),
    "a missing tensor": (_missing_tensor, "missing, such as model.norm.weight.*submit the full model"),
    "another shape": (_other_shape, "model.norm.weight has shape.*do not resize"),
    "integers": (_integers, "stored as I32.*save the weights as"),
    "truncated": (_truncated, "truncated.*[Ss]ave it again"),
    "garbage": (_garbage, "not a valid safetensors.*save_pretrained"),
    "no bytes": (_no_bytes, "not a valid safetensors.*save_pretrained"),
    "an endless header": (_endless_header, "not a valid safetensors.*save_pretrained"),
    "header is a list": (_header_is_a_list, "not a valid safetensors.*save_pretrained"),
    "bytes before the data": (_bytes_before_the_data, "not a valid|truncated"),
    "offsets are fractions": (_offsets_are_fractions, "not a valid"),
    "offsets are missing": (_offsets_are_missing, "not a valid"),
    "fewer bytes than the shape": (_fewer_bytes_than_the_shape, "not a valid|truncated"),
    "type is a list": (_type_is_a_list, "not a valid"),
    "shape is a number": (_shape_is_a_number, "not a valid"),
    "the same tensor twice": (_same_tensor_twice, "is in both.*delete stale shards"),
    "another tokenizer": (_other_tokenizer, "tokenizer is not the base model's.*train with the base model"),
    "an added token": (_added_token, "tokenizer is not the base model's.*train with the base model"),
    "an index that names a missing file": (
        _index_names_a_missing_file,
        "00003.*not in the folder; save",
    ),
    "an index that points outside": (_index_points_outside, r"no \*.safetensors file of the folder; save"),
    "an index that points to the root": (_index_points_to_the_root, r"no \*.safetensors file of the folder; save"),
    "an index that names no text": (_index_names_no_text, "index.*save the model again"),
    "an index that puts a tensor elsewhere": (_index_puts_a_tensor_elsewhere, "which lacks it; save it again"),
    "an index that names a tensor twice": (_index_names_a_tensor_twice, "not a valid index"),
    "an index without end": (_index_without_end, "index.json.*save the model again"),
    "an index with a million names": (_index_with_a_million_names, "index.json.*save the model again"),
    "an index that is a list": (_index_is_a_list, "not a valid index"),
    "a truncated shard": (_truncated_shard, "00001-of-00002.safetensors is truncated"),
    "a config of 60 MB": (_config_of_60_mb, "sensible size"),
    "overlapping tensors": (_overlapping_tensors, "not a valid safetensors"),
    "a header that names a tensor twice": (_header_names_a_tensor_twice, "not a valid safetensors"),
    "bytes that no tensor has": (_bytes_that_no_tensor_has, "not a valid safetensors"),
    "not a number": (_not_a_number, "model.norm.weight has numbers that are not finite.*earlier checkpoint"),
    "infinite in bfloat16": (_infinite_in_bfloat16, "not finite"),
    "another rope": (_another_rope, "rope.*1000000.0.*10000.0.*submit the base model's architecture"),
    "another rope in old keys": (_another_rope_in_old_keys, "rope.*1000000.0.*10000.0"),
    "another norm": (_another_norm, "rms_norm_eps = 1e-05, the base model has 1e-06"),
    "another head": (_another_head, "lm_head.weight differs from model.embed_tokens.weight.*tie_word_embeddings"),
    "a head in another type": (_head_in_another_type, "lm_head.weight differs from model.embed_tokens.weight"),
    "twice under wrappers": (_twice_under_wrappers, "stored twice, under names of different wrappers"),
    "with a value head": (_with_a_value_head, "without its value head.*pretrained_model"),
    "an adapter inside": (_adapter_inside, "lora_A.*merge_and_unload"),
    "a folder of DeepSpeed": (_deepspeed_folder, "DeepSpeed.*zero_to_fp32.py . out --safe_serialization"),
    "a folder of FSDP": (_fsdp_folder, "FSDP.*accelerate merge-weights"),
    "too large": (_too_large, "more than the .* MiB allowed"),
}


@pytest.mark.parametrize("flaw", BAD)
def test_a_bad_submission_is_refused_with_a_way_to_mend_it(
    submission: Path, submit: Callable[[str], Path], flaw: str
) -> None:
    spoil, says = BAD[flaw]
    spoil(submission)
    with pytest.raises(InvalidSubmissionError, match=says) as refused:
        weights_digest(submit("output/v1"))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("model_path", "says"),
    [
        ("", "is empty"),
        ("output/absent", "no folder output/absent.*save the checkpoint first"),
        ("../outside", "outside the workspace.*OUTPUT_DIR"),
        ("output/../../outside", "outside the workspace"),
        ("/etc", "outside the workspace"),
        (".", "outside the workspace"),
        ("out\0put", "is empty"),
        ("x" * 300, "not a folder|no folder"),
        ("a/" * 3000, "no folder|not a folder"),
        ("\ud800", "not a folder"),
        ("output/\udcff\n\x1b[2J", "no folder"),
        ("output/../../workspace/../outside", "outside the workspace"),
    ],
)
def test_a_path_that_is_no_folder_of_the_workspace_is_refused(
    workspace: Path, base_model: Path, submit: Callable[[str], Path], model_path: str, says: str
) -> None:
    trained_copy(base_model, workspace.parent / "outside", seed=1)
    with pytest.raises(InvalidSubmissionError, match=says):
        submit(model_path)


def test_the_base_model_cannot_be_reached_through_a_link_in_the_middle(
    workspace: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    (workspace / "output" / "elsewhere").symlink_to(base_model.parent)
    with pytest.raises(InvalidSubmissionError, match="'elsewhere' is a link"):
        submit(f"output/elsewhere/{base_model.name}")


def test_a_submission_may_be_named_by_its_absolute_path(submission: Path, submit: Callable[[str], Path]) -> None:
    assert weights_digest(submit(str(submission))) == weights_digest(submission)


def test_the_copy_is_the_submitted_weights_with_the_base_models_other_files(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    edit_json(submission / "config.json", use_cache=False, transformers_version="9", mine="x")
    edit_json(submission / "tokenizer_config.json", chat_template="The answer is 42.", mine="x")
    edit_json(submission / "generation_config.json", eos_token_id=77)
    (submission / "chat_template.jinja").write_text("The answer is 42.")
    (submission / "modeling_mine.py").write_text("raise SystemExit")
    (submission / "special_tokens_map.json").write_text("{}")
    (submission / "optimizer.pt").write_bytes(b"pickle")
    copy = submit("output/v1")
    assert weights_digest(copy) == weights_digest(submission) != weights_digest(base_model)
    assert sorted(path.name for path in copy.iterdir()) == sorted(path.name for path in base_model.iterdir())
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        assert (copy / name).read_bytes() == (base_model / name).read_bytes()


def test_a_submission_without_a_tokenizer_gets_the_base_models(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    (submission / "tokenizer.json").unlink()
    assert (submit("output/v1") / "tokenizer.json").read_bytes() == (base_model / "tokenizer.json").read_bytes()


def shard(folder: Path, files: int) -> None:
    """Splits the weights into several files, as save_pretrained does with large models."""
    weights = read_weights(folder)
    where: dict[str, str] = {}
    (folder / "model.safetensors").unlink()
    for number in range(files):
        part = {name: weight for place, (name, weight) in enumerate(weights.items()) if place % files == number}
        file = f"model-{number + 1:05}-of-{files:05}.safetensors"
        write_safetensors(folder / file, part, {"format": "pt"})
        where |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def test_files_beside_the_index_and_tensors_beside_it_are_ignored(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    digest = weights_digest(submission)
    shard(submission, 2)
    for name in ("model.safetensors", "consolidated.safetensors", "model-00003-of-00003.safetensors"):
        write_safetensors(submission / name, {"stale": Weight("F32", (1,), bytes(4))})
    path = submission / "model-00001-of-00002.safetensors"
    here = {name: read_weights(submission)[name] for name in tensors_in(path)}
    write_safetensors(path, here | {"not.in.the.index": Weight("F32", (1,), bytes(4))})
    copy = submit("output/v1")
    assert weights_digest(copy) == digest
    assert sorted(path.name for path in copy.glob("*.safetensors")) == sorted(set(index_of(copy).values()))
    assert "not.in.the.index" not in tensors_in(copy / path.name)


def index_of(folder: Path) -> dict[str, str]:
    return dict(json.loads((folder / INDEX).read_text())["weight_map"])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_fsdp_wrapped_module.", "policy."])
def test_a_prefix_of_all_names_is_removed_without_copying_the_weights(
    submission: Path, submit: Callable[[str], Path], prefix: str
) -> None:
    digest = weights_digest(submission)
    weights = read_weights(submission)
    write_safetensors(submission / "model.safetensors", {prefix + name: each for name, each in weights.items()})
    size = (submission / "model.safetensors").stat().st_size
    copy = submit("output/v1")
    assert weights_digest(copy) == digest
    assert (copy / "model.safetensors").stat().st_size == size


def test_a_model_that_was_saved_without_its_head_gets_its_names_back(
    submission: Path, submit: Callable[[str], Path]
) -> None:
    digest = weights_digest(submission)
    weights = {name.removeprefix("model."): each for name, each in read_weights(submission).items()}
    write_safetensors(submission / "model.safetensors", weights)
    assert weights_digest(submit("output/v1")) == digest


def test_buffers_that_older_versions_saved_are_dropped(submission: Path, submit: Callable[[str], Path]) -> None:
    digest = weights_digest(submission)
    rewrite(submission, **{"model.layers.0.self_attn.rotary_emb.inv_freq": Weight("F32", (4,), bytes(16))})
    assert weights_digest(submit("output/v1")) == digest


def test_weights_that_are_all_zero_or_all_the_same_are_the_agents_choice(
    submission: Path, submit: Callable[[str], Path]
) -> None:
    zero = {name: each._replace(data=bytes(len(each.data))) for name, each in read_weights(submission).items()}
    write_safetensors(submission / "model.safetensors", zero)
    submit("output/v1")


def test_only_custom_code_that_the_base_model_has_may_be_named(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(base_model, tmp_path / "with-code")
    code = {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}
    edit_json(base / "config.json", auto_map=code)
    edit_json(submission / "config.json", auto_map=code)
    copy_submission(workspace, "output/v1", tmp_path / "kept", base)
    edit_json(submission / "config.json", auto_map={"AutoModelForCausalLM": "mine.Model"})
    with pytest.raises(InvalidSubmissionError, match="auto_map"):
        copy_submission(workspace, "output/v1", tmp_path / "kept-2", base)


def test_a_tied_base_model_with_a_stored_head_takes_submissions_with_and_without_one(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(base_model, tmp_path / "with-head")
    rewrite(base, **{"lm_head.weight": read_weights(base)["model.embed_tokens.weight"]})
    without = copy_submission(workspace, "output/v1", tmp_path / "kept-1", base).digest
    rewrite(submission, **{"lm_head.weight": read_weights(submission)["model.embed_tokens.weight"]})
    assert copy_submission(workspace, "output/v1", tmp_path / "kept-2", base).digest == without


def test_a_base_model_with_an_index_and_another_whole_file_is_refused(base_model: Path, tmp_path: Path) -> None:
    base = shutil.copytree(base_model, tmp_path / "both")
    shutil.copy(base / "model.safetensors", tmp_path / "old")
    shard(base, 2)
    check_base_model(base)
    shutil.copy(tmp_path / "old", base / "model.safetensors")
    with pytest.raises(UsageError, match=r"back ends differ.*remove one"):
        check_base_model(base)


def test_sharded_weights_are_found_through_an_index_of_our_own(submission: Path, submit: Callable[[str], Path]) -> None:
    shard(submission, 3)
    copy = submit("output/v1")
    index = json.loads((copy / "model.safetensors.index.json").read_text())["weight_map"]
    assert index == {name: tensor.file.name for name, tensor in tensors_of(copy).items()}
    assert len(set(index.values())) == 3


def test_the_digest_does_not_depend_on_sharding_order_or_file_metadata(submission: Path) -> None:
    digest = weights_digest(submission)
    weights = read_weights(submission)
    write_safetensors(submission / "model.safetensors", weights, {"format": "pt", "saved": "today"})
    assert weights_digest(submission) == digest
    write_safetensors(submission / "model.safetensors", dict(reversed(weights.items())))
    assert weights_digest(submission) == digest
    shard(submission, 2)
    assert weights_digest(submission) == digest


@pytest.mark.parametrize("change", ["bytes", "name", "shape", "dtype"])
def test_the_digest_depends_on_every_tensors_bytes_name_shape_and_type(submission: Path, change: str) -> None:
    digest, weights = weights_digest(submission), read_weights(submission)
    norm = weights.pop(NORM)
    name = "other" if change == "name" else NORM
    weights[name] = {
        "bytes": norm._replace(data=norm.data[:-1] + b"\x01"),
        "name": norm,
        "shape": norm._replace(shape=(4, 4)),
        "dtype": norm._replace(dtype="I32"),
    }[change]
    write_safetensors(submission / "model.safetensors", weights)
    assert weights_digest(submission) != digest


def test_weights_may_be_saved_as_bfloat16(submission: Path, submit: Callable[[str], Path]) -> None:
    def upper_half(data: bytes) -> bytes:
        return b"".join(data[at + 2 : at + 4] for at in range(0, len(data), 4))  # of a float32: a bfloat16

    weights = read_weights(submission).items()
    half = {name: Weight("BF16", weight.shape, upper_half(weight.data)) for name, weight in weights}
    write_safetensors(submission / "model.safetensors", half)
    assert {tensor.dtype for tensor in tensors_of(submit("output/v1")).values()} == {"BF16"}


def test_a_tied_head_that_was_saved_as_well_is_dropped(submission: Path, submit: Callable[[str], Path]) -> None:
    digest = weights_digest(submission)
    rewrite(submission, **{"lm_head.weight": read_weights(submission)["model.embed_tokens.weight"]})
    copy = submit("output/v1")
    assert "lm_head.weight" not in tensors_in(copy / "model.safetensors")
    assert weights_digest(copy) == digest


def test_what_the_agent_does_to_its_folder_after_the_copy_changes_nothing(
    submission: Path, base_model: Path, submit: Callable[[str], Path]
) -> None:
    copy = submit("output/v1")
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    write_safetensors(submission / "model.safetensors", random_weights(280, seed=99))
    with (submission / "model.safetensors").open("r+b") as file:
        file.write(b"\xff" * 1000)
    shutil.rmtree(submission)
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before
    assert not any(path.is_symlink() for path in copy.iterdir())
    assert all(path.stat().st_nlink == 1 for path in copy.glob("*.safetensors"))


def test_a_tokenizer_of_the_hub_that_was_saved_again_is_still_the_same_tokenizer(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    # Older files write a merge as "a b", newer ones as ["a", "b"]. Qwen's files on the hub are of the older kind.
    hub = shutil.copytree(base_model, tmp_path / "hub")
    tokenizer = json.loads((hub / "tokenizer.json").read_text())
    tokenizer["model"]["merges"] = [" ".join(pair) for pair in tokenizer["model"]["merges"]]
    del tokenizer["model"]["ignore_merges"]
    (hub / "tokenizer.json").write_text(json.dumps(tokenizer))
    copy_submission(workspace, "output/v1", tmp_path / "kept", hub)
    assert (tmp_path / "kept" / "tokenizer.json").read_bytes() == (hub / "tokenizer.json").read_bytes()


def test_a_config_of_the_hub_that_was_saved_again_is_still_the_same_architecture(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path
) -> None:
    # Qwen2.5's config.json has an unused sliding_window of 32768; transformers saves it as null.
    hub = shutil.copytree(base_model, tmp_path / "hub")
    edit_json(hub / "config.json", sliding_window=32768, use_sliding_window=False)
    edit_json(submission / "config.json", sliding_window=None, use_sliding_window=False)
    copy_submission(workspace, "output/v1", tmp_path / "kept", hub)


def test_the_base_model_itself_passes_its_own_check(base_model: Path) -> None:
    check_base_model(base_model)


@pytest.mark.parametrize(
    ("missing", "says"),
    [("config.json", "config.json"), ("tokenizer_config.json", "tokenizer"), ("model.safetensors", "safetensors")],
)
def test_a_folder_that_is_no_base_model_is_a_usage_error(
    base_model: Path, tmp_path: Path, missing: str, says: str
) -> None:
    folder = shutil.copytree(base_model, tmp_path / "model")
    (folder / missing).unlink()
    with pytest.raises(UsageError, match=f"{says}.*save"):
        check_base_model(folder)
    with pytest.raises(UsageError, match="no model folder"):
        check_base_model(tmp_path / "absent")


# Changes while a submission is copied.


def while_it_is_copied(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Calls a function just before the bytes of the first file are copied."""
    acted: list[object] = []

    def copy_slowly(source: BinaryIO, target: IO[bytes], size: int, on_block: Callable[[bytes], None]) -> None:
        if not acted:
            acted.append(act())
        copy_open_file(source, target, size, on_block)

    monkeypatch.setattr(submitted_files, "copy_open_file", copy_slowly)


def test_a_file_that_is_swapped_after_the_check_is_not_what_is_copied(
    submission: Path, submit: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    digest = weights_digest(submission)

    def swap() -> None:
        for name in ("model.safetensors", "config.json", "tokenizer.json"):
            (submission / name).unlink()
            (submission / name).symlink_to(tmp_path / "secret.json")

    while_it_is_copied(monkeypatch, swap)
    copy = submit("output/v1")
    assert weights_digest(copy) == digest
    assert "secret" not in (copy / "config.json").read_text()


def grow(weights: Path) -> None:
    with weights.open("ab") as file:
        file.truncate(1 << 40)


def shrink(weights: Path) -> None:
    os.truncate(weights, 100)


def rewrite_in_place(weights: Path) -> None:
    with weights.open("r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write(b"otherone")


@pytest.mark.parametrize("change", [grow, shrink, rewrite_in_place])
def test_a_file_that_changes_while_it_is_copied_is_refused_and_fills_no_disk(
    submission: Path,
    submit: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    change: Callable[[Path], None],
    tmp_path: Path,
) -> None:
    while_it_is_copied(monkeypatch, lambda: change(submission / "model.safetensors"))
    with pytest.raises(InvalidSubmissionError, match="changed while it was copied; submit"):
        submit("output/v1")
    assert sum(path.stat().st_size for path in (tmp_path / "kept-0").iterdir()) < 1 << 20


def test_a_copy_that_drags_on_ends_as_this_machines_failure(
    submission: Path, submit: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untrusted_folder, "COPY_TIMEOUT_S", -1.0)
    monkeypatch.setattr(untrusted_folder, "MIN_BYTES_PER_S", 1 << 60)
    with pytest.raises(InfrastructureError, match=r"slower than.*submit again"):
        submit("output/v1")


def test_copies_side_by_side_do_not_count_on_the_same_room(
    submission: Path, base_model: Path, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = sum((submission / name).stat().st_size for name in ("model.safetensors", "config.json", "tokenizer.json"))
    kept = tmp_path / "kept"

    def room_for_two_and_a_half(_: object) -> SimpleNamespace:
        taken = sum(path.stat().st_blocks * 512 for path in kept.rglob("*") if path.is_file())
        return SimpleNamespace(free=FREE_DISK_MARGIN + int(2.5 * size) - taken)

    monkeypatch.setattr(shutil, "disk_usage", room_for_two_and_a_half)
    together = threading.Barrier(4)

    def copy_late(source: BinaryIO, target: IO[bytes], size: int, on_block: Callable[[bytes], None]) -> None:
        time.sleep(0.2)  # all have asked for space before the first byte is written
        copy_open_file(source, target, size, on_block)

    monkeypatch.setattr(submitted_files, "copy_open_file", copy_late)

    def one(number: int) -> str:
        together.wait()
        try:
            copy_submission(workspace, "output/v1", kept / f"{number}", base_model)
        except InfrastructureError as error:
            return str(error)
        return "copied"

    with ThreadPoolExecutor(4) as pool:
        ends = list(pool.map(one, range(4)))
    assert ends.count("copied") == 2
    assert all("disk is full" in end for end in ends if end != "copied")


def test_no_descriptor_is_left_open(submission: Path, submit: Callable[[str], Path]) -> None:
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    submit("output/v1")
    (submission / "config.json").unlink()
    os.mkfifo(submission / "config.json")
    for path in ("output/v1", "output/absent", "output"):
        with pytest.raises(InvalidSubmissionError):
            submit(path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("name", ["output", "output/v1", "output/v1/model.safetensors", "output/v1/config.json"])
def test_permissions_that_were_taken_back_are_a_refusal_as_an_ordinary_user(name: str, base_model: Path) -> None:
    def work() -> None:
        (root / name).chmod(0)
        with pytest.raises(InvalidSubmissionError, match="permissions"):
            copy_submission(root, "output/v1", root.parent / "kept", root.parent / "base")
        (root / name).chmod(0o700)

    with folder_of_nobody() as parent:
        root = parent / "workspace"
        trained_copy(base_model, root / "output/v1", seed=1)
        shutil.copytree(base_model, parent / "base")
        for path in parent.rglob("*"):
            shutil.chown(path, *owner_of(parent))
        as_nobody(work)


def owner_of(folder: Path) -> tuple[int, int]:
    return folder.stat().st_uid, folder.stat().st_gid
