"""Tests the player that agents get, with very small random models: which models it plays, and where episodes end."""

import copy
import importlib
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, Lfm2Config, LlamaConfig

from a2rl.handout import rollout_workers
from a2rl.sampling import SamplingParams, decoder, open_sampler
from tests.small_model import write_tokenizer

CONTEXT, WORDS = 48, 280


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


def gpt2() -> Any:
    """It cannot read more than its context, because it has a vector for each position."""
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": CONTEXT}
    return network(GPT2Config(vocab_size=WORDS, **sizes, bos_token_id=None, eos_token_id=0))


def llama() -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    return network(LlamaConfig(vocab_size=WORDS, **sizes, num_hidden_layers=2, tie_word_embeddings=True))


class Talk:
    """An environment that always has something to say."""

    prompt, done, reward, invalid = "Talk.", False, 0.0, 0

    def write(self, turn: str) -> str:
        return "And what then?"


@pytest.mark.parametrize("most", [CONTEXT, 100_000])
def test_an_episode_ends_with_the_models_context(most: int, episodes: Any, tokenizer: Any) -> None:
    model = gpt2()
    [talk] = episodes.play(model, tokenizer, [Talk()], max_steps=30, max_new_tokens=8, max_tokens=most)
    began = [place for place, pair in enumerate(zip([0, *talk.written], talk.written, strict=False)) if pair == (0, 1)]
    assert 1 < len(talk.turns) == len(began) < 30
    assert len(talk.prompt) + began[-1] <= CONTEXT - 8 < len(talk.prompt + talk.tokens) <= CONTEXT
    model(torch.tensor([talk.prompt + talk.tokens]))  # it can be trained on


@pytest.mark.parametrize("new", [8, 40, 100])
@pytest.mark.parametrize("prompt", ["", "Question:", "Question: 1 + 1? " * 20])
def test_a_prompt_of_any_length_is_played_as_it_is_graded(
    prompt: str, new: int, episodes: Any, tokenizer: Any, tmp_path: Path
) -> None:
    model = gpt2()
    model.save_pretrained(tmp_path)
    with open_sampler(tmp_path) as sampler:
        [graded] = sampler.generate([prompt], SamplingParams(new))
    environment = episodes.OneTurn(prompt, lambda answer: 1.0)
    [played] = episodes.play(model, tokenizer, [environment], max_new_tokens=new, turns=episodes.Until())
    assert (len(played.prompt), len(played.tokens)) == (graded.prompt_tokens, graded.tokens)
    assert (len(played.turns), played.reward) == (1, 1.0)


def test_an_end_token_that_is_not_special_is_no_text(episodes: Any, tokenizer: Any) -> None:
    model = gpt2()
    [first] = episodes.play(model, tokenizer, [Talk()], max_steps=1, turns=episodes.Until())
    model.generation_config.eos_token_id = first.tokens[2]
    [played] = episodes.play(model, tokenizer, [episodes.OneTurn("Talk.", len)], turns=episodes.Until())
    assert played.turns == [tokenizer.decode(first.tokens[: len(played.tokens) - 1], skip_special_tokens=True)]
    assert played.tokens == first.tokens[: len(played.tokens)]  # what is trained on has the end


def test_no_turn_begins_when_the_time_is_over(episodes: Any, tokenizer: Any) -> None:
    played = episodes.play(gpt2(), tokenizer, [Talk(), Talk()], until=time.monotonic())
    assert [(each.cut, each.tokens) for each in played] == [(True, [])] * 2


def test_a_copy_plays_with_the_adapter_that_is_trained(episodes: Any, tokenizer: Any) -> None:
    model = llama()
    player = copy.deepcopy(model).eval()
    adapted = get_peft_model(model, LoraConfig(target_modules="all-linear", init_lora_weights=False))
    before, alone, copied = (
        episodes.play(each, tokenizer, [Talk()], max_steps=3, player=other)[0].tokens
        for each, other in ((player, None), (adapted, None), (adapted, player))
    )
    assert before != alone == copied


def test_layers_that_cannot_be_played_here_are_named(episodes: Any, tokenizer: Any) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = network(Lfm2Config(vocab_size=WORDS, **sizes, num_hidden_layers=2, layer_types=["conv", "full_attention"]))
    with pytest.raises(ValueError, match=r"these layers \(conv\) cannot be played here: give an engine of vLLM"):
        episodes.play(model, tokenizer, [episodes.OneTurn("one", len)])
