"""Tests what of an answer's end is part of its text."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from a2rl.sampling import SamplingParams
from a2rl.sampling.decoder import Turn, Written, told
from a2rl.sampling.decoder.conversation import end_of_answer
from a2rl.sampling.transformers_backend import TransformersSampler
from tests.small_model import build_base_model

TEMPLATES = {
    "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}<|im_end|>\n{% endfor %}": {"<|im_end|>"},
    "{% for turn in messages %}{{ turn.role }}: {{ turn.content }}\n{% endfor %}": set(),
    "{{ raise_exception('only a user may speak') }}": set(),
    "{{ messages[0].content }}": set(),
}


def tokenizer_with(template: str, tmp_path: Path) -> Any:
    tokenizer = AutoTokenizer.from_pretrained(build_base_model(tmp_path / "small"))
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_end|>", *HARMONY]})
    tokenizer.chat_template = template
    return tokenizer


HARMONY = ("<|channel|>", "<|message|>", "<|start|>", "<|end|>")


@pytest.mark.parametrize("template", TEMPLATES)
def test_what_ends_an_answer_in_a_chat_ends_answers(template: str, tmp_path: Path) -> None:
    """The base models of Qwen declare another one."""
    tokenizer = tokenizer_with(template, tmp_path)
    assert set(tokenizer.convert_ids_to_tokens(list(end_of_answer(tokenizer)))) == TEMPLATES[template]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("<|channel|>analysis<|message|>7+11?<|end|><|start|>assistant<|channel|>final<|message|>18", "18"),
        ("<|channel|>analysis<|message|>7+11? It is 18", ""),
        ("<|channel|>final<|message|>18<|channel|>commentary<|message|>no", ""),
        ("<|channel|>final", ""),
        ("18<|message|>", "18"),
    ],
)
def test_only_the_final_channel_of_gpt_oss_is_an_answer(written: str, text: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_with("{{ messages }}", tmp_path)
    tokens = tokenizer(written, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(told(tokenizer, tokens), skip_special_tokens=True).strip() == text


def test_an_end_token_that_is_not_special_is_no_text(tmp_path: Path) -> None:
    model = build_base_model(tmp_path / "small")
    last = max(json.loads((model / "tokenizer.json").read_text())["model"]["vocab"].values())
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, last]}))
    sampler = TransformersSampler(model, False, lambda: None)
    answer = sampler._tokens("42", {})
    turn, written = Turn(sampler._tokens("Answer: ", {}), 8), Written([*answer, last], True, [])
    assert sampler._completion(turn, written, SamplingParams(8)).text == "42"
