"""Tests what of an answer's end is part of its text."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer

from a2rl.sampling import Completion, SamplingParams
from a2rl.sampling.decoder import StopStrings, Turn, Written, told
from a2rl.sampling.decoder.conversation import end_of_answer
from a2rl.sampling.transformers_backend import TransformersSampler
from a2rl.sampling.vllm_worker import Engine
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


THOUGHT = "<|channel|>analysis<|message|>Question: 7+11?\nQuestion"
SPOKEN = f"{THOUGHT}<|end|><|start|>assistant<|channel|>final<|message|>18\nQuestion: more"


def test_a_stop_string_in_a_thought_ends_no_answer(tmp_path: Path) -> None:
    tokenizer = tokenizer_with("{{ messages }}", tmp_path)
    rows = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (THOUGHT, SPOKEN, "18\nQuestion")]
    assert StopStrings(tokenizer, ["Question"])(rows) == [False, True, True]


class FakeEngine(SimpleNamespace):
    """Like vLLM: it writes some tokens, and gives back their text up to a stop string that it was told."""

    model_config = SimpleNamespace(max_model_len=512)

    def add_request(self, name: str, prompt: dict[str, list[int]], sampling: Any) -> None:
        self.name, self.sampling = name, sampling

    def step(self) -> list[Any]:
        text = self.tokenizer.decode(self.written, skip_special_tokens=True)
        places = [text.find(string) for string in self.sampling.stop or () if string in text]
        text = text[: min(places, default=len(text))]
        made = SimpleNamespace(text=text, token_ids=self.written, finish_reason="stop" if places else "length")
        return [SimpleNamespace(request_id=self.name, finished=True, outputs=[made], prompt_token_ids=[1],
                                num_cached_tokens=0)]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "has_channels", "answer"),
    [(SPOKEN, True, ("18\n", "stop")), (THOUGHT, True, ("", "length")), ("18\nQuestion: 1", True, ("18\n", "stop")),
     ("18\nQuestion: 1", False, ("18\n", "stop")), ("18", False, ("18", "length"))],
)  # fmt: skip
def test_vllm_does_not_stop_in_a_thought_either(
    written: str, has_channels: bool, answer: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("vllm", "vllm.inputs", "vllm.sampling_params"):
        module = SimpleNamespace(
            SamplingParams=SimpleNamespace, TokensPrompt=dict, RequestOutputKind=SimpleNamespace(FINAL_ONLY=2)
        )
        monkeypatch.setitem(sys.modules, name, module)
    tokenizer = tokenizer_with("{{ messages }}", tmp_path)
    if not has_channels:
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "small")
    fake = FakeEngine(tokenizer=tokenizer, written=tokenizer(written, add_special_tokens=False)["input_ids"])
    engine = Engine(SimpleNamespace(llm_engine=fake), tokenizer, sleeps=False, waking_bytes=0)
    engine.add({"id": 7, "prompt": "7+11?", "max_new_tokens": 64, "stop": ["Question"], "temperature": 0.0,
                "top_p": 1.0, "top_k": 0, "seed": 0, "chat_template_kwargs": {}})  # fmt: skip
    [found] = engine.step()
    completion = Completion(**found["completion"]).until(["Question"])  # as `VllmSampler` does
    assert (completion.text, completion.finish) == answer


def test_an_end_token_that_is_not_special_is_no_text(tmp_path: Path) -> None:
    model = build_base_model(tmp_path / "small")
    last = max(json.loads((model / "tokenizer.json").read_text())["model"]["vocab"].values())
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, last]}))
    sampler = TransformersSampler(model, False, lambda: None)
    answer = sampler._tokens("42", {})
    turn, written = Turn(sampler._tokens("Answer: ", {}), 8), Written([*answer, last], True, [])
    assert sampler._completion(turn, written, SamplingParams(8)).text == "42"
