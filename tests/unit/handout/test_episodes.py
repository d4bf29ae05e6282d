"""Tests the player that agents get, with very small random models: which models it plays, and where episodes end."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, Lfm2Config

from a2rl.handout import rollout_workers
from a2rl.sampling import decoder
from tests.small_model import write_tokenizer

WORDS = 280


@pytest.fixture
def episodes(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which finds the others beside it where an agent has it."""
    monkeypatch.setitem(sys.modules, "decoder", decoder)
    monkeypatch.setitem(sys.modules, "rollout_workers", rollout_workers)
    return importlib.import_module("a2rl.handout.episodes")


@pytest.fixture
def tokenizer(tmp_path: Path) -> Any:
    write_tokenizer(tmp_path)
    return AutoTokenizer.from_pretrained(tmp_path)


def network(config: Any) -> Any:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_config(config)


def test_layers_that_cannot_be_played_here_are_named(episodes: Any, tokenizer: Any) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = network(Lfm2Config(vocab_size=WORDS, **sizes, num_hidden_layers=2, layer_types=["conv", "full_attention"]))
    with pytest.raises(ValueError, match=r"these layers \(conv\) cannot be played here: give an engine of vLLM"):
        episodes.play(model, tokenizer, [episodes.OneTurn("one", len)])
