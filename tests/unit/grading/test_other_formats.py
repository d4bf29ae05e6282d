"""Tests that what other tools leave is named, and that the command in the refusal makes a checkpoint that is accepted.

DeepSpeed and verl are not installed here: of theirs, only the command is checked.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.grading.adapters import check_adapter
from a2rl.grading.submission_checks import Requirements, copy_submission
from a2rl.grading.submitted_files import Source
from tests.small_model import read_weights, write_safetensors


def refusal_of(workspace: Path, base_model: Path, path: str) -> str:
    """Submits a folder and returns why it is refused."""

    def check_only(folder: Path, base: Path, target: Path) -> str:
        return str(check_adapter(folder, base))

    target = workspace.parent / "kept"
    shutil.rmtree(target, ignore_errors=True)
    with pytest.raises(InvalidSubmissionError) as refused:
        copy_submission(Source(workspace, path), target, Requirements(base_model, merge=check_only))
    assert "\n" not in str(refused.value)
    return str(refused.value)


def accepted(workspace: Path, base_model: Path, path: str) -> str:
    target = workspace.parent / "kept"
    shutil.rmtree(target, ignore_errors=True)
    return copy_submission(Source(workspace, path), target, Requirements(base_model)).digest


def mend(workspace: Path, base_model: Path, told: str) -> str:
    """Runs the command of a refusal as the agent would; returns the folder that it says to submit."""
    [command] = re.findall("`(.+?)`, then submit", told)
    environ = {
        **os.environ,
        "MODEL_PATH": str(base_model),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["bash", "-c", command], cwd=workspace, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return told.partition("then submit ")[2].partition(".")[0].strip()


def state_of(base_model: Path) -> dict[str, Any]:
    """Returns a state dict as torch saves it, with one weight trained."""
    from safetensors.torch import load_file

    state: dict[str, Any] = load_file(base_model / "model.safetensors")
    state["model.norm.weight"] = state["model.norm.weight"] + 0.5
    return state


def _fsdp_in_one_file(folder: Path, base_model: Path) -> None:
    import torch

    torch.save(state_of(base_model), folder / "pytorch_model_fsdp.bin")
    torch.save({}, folder / "optimizer.bin")


def _fsdp_in_shards(folder: Path, base_model: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    save({"model": state_of(base_model)}, checkpoint_id=folder / "checkpoint-500" / "pytorch_model_fsdp_0")
    save({"x": state_of(base_model)}, checkpoint_id=folder / "checkpoint-500" / "optimizer_0")


def _pickles_of_transformers(folder: Path, base_model: Path) -> None:
    import torch

    shutil.copy(base_model / "config.json", folder)
    torch.save(state_of(base_model), folder / "pytorch_model.bin")


def _a_state_dict_of_ones_own(folder: Path, base_model: Path) -> None:
    import torch

    torch.save({"state_dict": state_of(base_model), "step": 7}, folder / "policy.pt")


MENDED: dict[str, tuple[Callable[[Path, Path], None], str]] = {
    "one file of FSDP": (_fsdp_in_one_file, "only pytorch_model_fsdp.bin"),
    "shards of FSDP in a folder of the Trainer": (_fsdp_in_shards, "sharded FSDP checkpoint"),
    "pickles of transformers": (_pickles_of_transformers, "only pytorch_model.bin"),
    "a state dict": (_a_state_dict_of_ones_own, "only policy.pt"),
}


@pytest.mark.heavy
@pytest.mark.parametrize(("make", "what"), MENDED.values(), ids=MENDED)
def test_the_command_of_a_refusal_makes_a_checkpoint(
    workspace: Path, base_model: Path, make: Callable[[Path, Path], None], what: str
) -> None:
    folder = workspace / "output" / "v1"
    folder.mkdir()
    make(folder, base_model)
    told = refusal_of(workspace, base_model, "output/v1")
    assert what in told
    assert accepted(workspace, base_model, mend(workspace, base_model, told))


def _verl(folder: Path) -> None:
    (folder / "actor" / "huggingface").mkdir(parents=True)
    (folder / "actor" / "huggingface" / "config.json").touch()
    for rank in range(2):
        for kind in ("model", "optim", "extra_state"):
            (folder / "actor" / f"{kind}_world_size_2_rank_{rank}.pt").touch()
    (folder / "data.pt").touch()


def _deepspeed(folder: Path) -> None:
    (folder / "zero_to_fp32.py").touch()
    (folder / "global_step5").mkdir()
    (folder / "global_step5" / "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()


NAMED: dict[str, tuple[Callable[[Path], None], str]] = {
    "shards of verl": (
        _verl,
        "verl in 2 shards.*`python -m verl.model_merger merge --backend fsdp --local_dir output/v1/actor --target_dir",
    ),
    "DeepSpeed": (_deepspeed, "DeepSpeed.*`python output/v1/zero_to_fp32.py output/v1 output/v1-whole --safe_serializ"),
    "nothing": (lambda folder: None, "holds no weights; save the weights with model.save_pretrained"),
    "a link to itself": (lambda folder: (folder / "again").symlink_to(folder), "holds no weights"),
}


@pytest.mark.parametrize(("make", "says"), NAMED.values(), ids=NAMED)
def test_what_cannot_be_tried_here_is_named(
    workspace: Path, base_model: Path, make: Callable[[Path], None], says: str
) -> None:
    (workspace / "output" / "v1").mkdir()
    make(workspace / "output" / "v1")
    assert re.search(says, refusal_of(workspace, base_model, "output/v1"))


def test_a_folder_that_holds_only_checkpoints_names_the_newest(workspace: Path, base_model: Path) -> None:
    for step in (500, 1000):
        shutil.copytree(base_model, workspace / "output" / "v1" / f"checkpoint-{step}")
    told = refusal_of(workspace, base_model, "output/v1")
    assert "there is a checkpoint in checkpoint-1000 (and 1 more below it)" in told
    assert accepted(workspace, base_model, told.partition("submit ")[2])


def test_an_adapter_in_a_folder_below_is_named(workspace: Path, base_model: Path) -> None:
    folder = workspace / "output" / "v1" / "actor" / "lora_adapter"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").touch()
    (folder / "adapter_model.safetensors").touch()
    told = refusal_of(workspace, base_model, "output/v1")
    assert told.endswith("there is an adapter in actor/lora_adapter; submit output/v1/actor/lora_adapter")


def test_placeholders_of_zero_3_are_named(workspace: Path, base_model: Path) -> None:
    shutil.copytree(base_model, workspace / "output" / "v1")
    weights = {name: weight._replace(shape=(0,), data=b"") for name, weight in read_weights(base_model).items()}
    write_safetensors(workspace / "output" / "v1" / "model.safetensors", weights)
    told = refusal_of(workspace, base_model, "output/v1")
    assert re.search(
        "weights have no numbers.*ZeRO-3.*zero_to_fp32.py.*stage3_gather_16bit_weights_on_model_save", told
    )


def test_a_new_padding_token_is_mended_without_the_tokenizer(workspace: Path, base_model: Path) -> None:
    """The weights are untouched, so the tokenizer is left out."""
    from transformers import AutoTokenizer

    folder = workspace / "output" / "v1"
    shutil.copytree(base_model, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"pad_token": "<a-new-pad>"})
    tokenizer.save_pretrained(folder)
    told = refusal_of(workspace, base_model, "output/v1")
    assert "new tokens, such as '<a-new-pad>'" in told
    assert "delete tokenizer.json from the folder" in told
    (folder / "tokenizer.json").unlink()
    assert accepted(workspace, base_model, "output/v1")


def test_the_recipe_mends_a_resized_model_and_its_adapter(workspace: Path, base_model: Path) -> None:
    import peft
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base_model)
    rows = model.get_input_embeddings().weight.shape[0]
    model.resize_token_embeddings(rows + 3)
    model.save_pretrained(workspace / "output" / "whole")
    adapted = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM"))
    adapted.save_pretrained(workspace / "output" / "lora", save_embedding_layers=True)
    told = refusal_of(workspace, base_model, "output/lora")
    assert f"with {rows + 3} rows" in told
    [recipe] = re.findall(r"cut off new rows: (.+), where model = model.merge_and_unload\(\)", told)
    path = workspace / "output" / "mended"
    exec(recipe, {"model": adapted.merge_and_unload(), "path": path})  # the recipe is the claim
    assert accepted(workspace, base_model, "output/mended")
    whole = workspace / "output" / "whole"
    assert f"vocab_size = {rows + 3}" in refusal_of(workspace, base_model, "output/whole")
    shutil.copy(base_model / "config.json", whole)
    assert f"model.resize_token_embeddings({rows})" in refusal_of(workspace, base_model, "output/whole")
