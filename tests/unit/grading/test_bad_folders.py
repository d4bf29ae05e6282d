"""Tests that folders with other files than those of a checkpoint, or another configuration, are refused."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.models.caps import MAX_FILES, MAX_FILES_IN_FOLDER
from tests.small_model import edit_json


# Each function spoils a submission.
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
    for number in range(MAX_FILES_IN_FOLDER):
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


def _config_of_60_mb(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": "' + "x" * (60 << 20) + '"}')


def _another_rope(folder: Path) -> None:
    edit_json(folder / "config.json", rope_parameters={"rope_theta": 1e6, "rope_type": "default"})


def _another_rope_in_old_keys(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps(config | {"rope_theta": 1e6, "rope_scaling": None}))


def _another_norm(folder: Path) -> None:
    edit_json(folder / "config.json", rms_norm_eps=1e-05)


def _deepspeed_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "global_step3").mkdir()
    (folder / "zero_to_fp32.py").touch()


def _fsdp_folder(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model_fsdp_0").mkdir()
    (folder / "pytorch_model_fsdp_0" / "__0_0.distcp").touch()


def _unprintable_name(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / os.fsdecode(b"\xff\x1b[2J.safetensors"))


BAD = {
    "weights under an unprintable name": (_unprintable_name, r"name of the file .*x1b.* cannot be shown; save"),
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
    "another tokenizer": (_other_tokenizer, "tokenizer is not the base model's.*train with the base model"),
    "an added token": (_added_token, "new tokens, such as '<think>'.*delete tokenizer.json"),
    "a config of 60 MB": (_config_of_60_mb, "sensible size"),
    "another rope": (_another_rope, "rope.*1000000.0.*10000.0.*submit the base model's architecture"),
    "another rope in old keys": (_another_rope_in_old_keys, "rope.*1000000.0.*10000.0"),
    "another norm": (_another_norm, "rms_norm_eps = 1e-05, the base model has 1e-06"),
    "a folder of DeepSpeed": (
        _deepspeed_folder,
        "DeepSpeed.*zero_to_fp32.py output/v1 output/v1-whole --safe_serialization",
    ),
    "a folder of FSDP": (_fsdp_folder, "FSDP.*accelerate merge-weights output/v1/pytorch_model_fsdp_0"),
}
"""Faults: a name, the function that makes it, and what the refusal says."""


@pytest.mark.parametrize("flaw", BAD)
def test_a_bad_folder_is_refused_with_a_way_to_mend_it(refused: Callable[..., None], flaw: str) -> None:
    refused(*BAD[flaw])
