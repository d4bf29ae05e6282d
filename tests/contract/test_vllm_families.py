"""Compares vLLM with our own decoder on small random models of many families, in float32 and on a processor.

Each engine starts on a base model, takes the weights of a submission, and takes those of the base model back.
"""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.sampling import Completion, Sampler, SamplingParams, open_sampler
from a2rl.sampling.vllm_process import EngineLease, EngineProcess, WeightsRejectedError
from tests.model_families import FAMILIES, HEADS, Family

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Settings.load().vllm_python.is_file(), reason="vLLM is not installed: run `make setup-vllm`"
    ),
]
NEVER_WARM = ("gpt-oss",)
"""vLLM 0.32 does not replace their experts and attention sinks."""
HEAD = 32
"""Numbers of an attention head: vLLM computes no smaller ones on a processor."""
PARAMS = SamplingParams(max_new_tokens=24)
RULES = "Let's think step by step. " * 40
PROMPTS = [
    *(f"Question: {number} + {number * 7}? Answer:" for number in range(6)),
    *(f"{RULES}Question: {number} + 1? Answer:" for number in range(3)),
    "1",
]
"""Short and long ones, also longer than the windows of attention; some begin alike."""


def with_larger_heads(family: Family) -> Family:
    own = {"head_dim": HEAD} if "head_dim" in family.config else {}
    return replace(family, config={**family.config, "hidden_size": HEADS * HEAD, **own})


def in_plain_numbers(family: Family) -> Family:
    """Returns the layout that training with transformers saves."""
    return replace(family, mxfp4=False, config={k: v for k, v in family.config.items() if k != "quantization_config"})


def submission_of(base: Path, folder: Path) -> Path:
    """Makes a copy as one that is accepted: in one file, with other numbers, and without a head that is tied."""
    shutil.copytree(base, folder, ignore=shutil.ignore_patterns("*.safetensors", "*.index.json"))
    torch.manual_seed(1)
    tensors = {}
    for file in sorted(base.glob("model*.safetensors")):
        for name, tensor in load_file(file).items():
            if tensor.is_floating_point():
                tensors[name] = tensor + (0.1 * tensor.float().std() * torch.randn(tensor.shape)).to(tensor.dtype)
            else:  # blocks of numbers of 4 bits, or their scales
                tensors[name] = tensor.flip(0).contiguous()
    if json.loads((base / "config.json").read_text()).get("tie_word_embeddings", True):
        tensors.pop("lm_head.weight", None)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


def answers(sampler: Sampler) -> list[Completion]:
    """Of a character that the end of an answer cuts, our decoder shows a sign for the rest, and vLLM nothing."""
    completions = sampler.generate(PROMPTS, PARAMS)
    return [replace(completion, text=completion.text.rstrip("\ufffd")) for completion in completions]


def both_of(name: str, folder: Path) -> tuple[Path, Path]:
    base = in_plain_numbers(with_larger_heads(FAMILIES[name])).build(folder / "base")
    return base, submission_of(base, folder / "submission")


@contextmanager
def started(model: Path, folder: Path) -> Iterator[EngineProcess]:
    engine = EngineProcess.start(model, exact=False, dtype="float32", params=None, log=folder / "log")
    try:
        yield engine
    finally:
        engine.close()


def by_transformers(model: Path) -> list[Completion]:
    with open_sampler(model, dtype="float32") as sampler:
        return answers(sampler)


def by_engine(engine: EngineProcess, model: Path, is_warm: bool) -> list[Completion]:
    with open_sampler(model, "vllm", lease=EngineLease(engine.connection, is_warm, why="")) as sampler:
        return answers(sampler)


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in NEVER_WARM])
def test_both_back_ends_agree_after_each_change_of_weights(name: str, tmp_path: Path) -> None:
    base, submission = both_of(name, tmp_path)
    expected = {model: by_transformers(model) for model in (base, submission)}
    assert expected[base] != expected[submission]
    with started(base, tmp_path) as engine:
        assert by_engine(engine, base, is_warm=False) == expected[base]
        for model in (submission, base):
            engine.connection.rest()
            assert by_engine(engine, model, is_warm=True) == expected[model]


@pytest.mark.parametrize("name", NEVER_WARM)
def test_weights_that_are_not_replaced_are_found(name: str, tmp_path: Path) -> None:
    """A new engine writes the same texts."""
    models = both_of(name, tmp_path)
    for model in models:
        with started(model, tmp_path) as engine:
            assert by_engine(engine, model, is_warm=False) == by_transformers(model)
            with pytest.raises(WeightsRejectedError, match="differ from those in the files: layer 0, layer 1"):
                by_engine(engine, models[model == models[0]], is_warm=True)


def test_numbers_of_four_bits_are_refused_in_float32(tmp_path: Path) -> None:
    base = with_larger_heads(FAMILIES["gpt-oss"]).build(tmp_path / "base")
    with started(base, tmp_path) as engine, pytest.raises(UsageError, match="float32 is not supported"):
        by_engine(engine, base, is_warm=False)
