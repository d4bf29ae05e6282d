"""The base model of the mini tasks, built very small and very briefly."""

import hashlib
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from a2rl.tiny import TinyParams, TinyReport, build_tiny
from tasks.gsm8k.mini import pretraining_text

SMALL = TinyParams(hidden_size=32, intermediate_size=64, layers=1, heads=2, kv_heads=1, vocab_size=400, steps=4)


def build(out: Path, params: TinyParams = SMALL) -> TinyReport:
    return build_tiny(islice(pretraining_text(seed=0), 200), out, params)


def digest(model: Path) -> str:
    return hashlib.sha256((model / "model.safetensors").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TinyReport]:
    out = tmp_path_factory.mktemp("models") / "tiny"
    return out, build(out)


@pytest.fixture(scope="module")
def tokenizer(built: tuple[Path, TinyReport]) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(built[0])


def test_two_builds_give_the_same_weights_and_another_seed_gives_others(
    built: tuple[Path, TinyReport], tmp_path: Path
) -> None:
    build(tmp_path / "again")
    build(tmp_path / "other", SMALL.model_copy(update={"seed": 1}))
    assert digest(tmp_path / "again") == digest(built[0])
    assert digest(tmp_path / "other") != digest(built[0])


def test_a_build_leaves_torchs_settings_as_they_were(tmp_path: Path) -> None:
    import torch

    before = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled(), torch.random.get_rng_state()
    build(tmp_path / "tiny")
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before[:2]
    assert torch.equal(torch.random.get_rng_state(), before[2])


def test_every_digit_is_its_own_token(tokenizer: Any) -> None:
    pieces = [tokenizer.decode([token]).strip() for token in tokenizer("He has 4096 eggs, 12+88=100")["input_ids"]]
    assert [piece for piece in pieces if any(sign.isdigit() for sign in piece)] == list("40961288100")


def test_any_text_survives_the_tokenizer(tokenizer: Any) -> None:
    text = "Line one\n\n  def f(x):  # naïve 日本\n\treturn x\n"
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_the_tokenizer_has_an_end_and_a_pad_token_and_no_chat_template(tokenizer: Any) -> None:
    assert tokenizer.eos_token_id != tokenizer.pad_token_id
    assert tokenizer.chat_template is None


def test_the_checkpoint_loads_as_an_ordinary_model_in_fp32(built: tuple[Path, TinyReport], tokenizer: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(built[0])
    assert model.config.model_type == "qwen3"
    assert model.config.max_position_embeddings == SMALL.max_positions
    assert model.dtype == torch.float32
    assert sum(weights.numel() for weights in model.parameters()) == built[1].parameters
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_the_losses_are_written_beside_the_model(built: tuple[Path, TinyReport]) -> None:
    rows = (built[0].parent / "tiny.loss.csv").read_text().splitlines()
    assert rows[0] == "step,loss"
    assert [row.split(",")[0] for row in rows[1:]] == ["1", "2", "3", "4"]


def test_an_unknown_parameter_is_refused() -> None:
    with pytest.raises(ValidationError, match="hidden_sise"):
        TinyParams.model_validate({"hidden_sise": 64})
