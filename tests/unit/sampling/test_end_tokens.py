"""Tests what of an answer's end is part of its text."""

import json
from pathlib import Path

from a2rl.sampling import SamplingParams
from a2rl.sampling.decoder import Turn, Written
from a2rl.sampling.transformers_backend import TransformersSampler
from tests.small_model import build_base_model


def test_an_end_token_that_is_not_special_is_no_text(tmp_path: Path) -> None:
    model = build_base_model(tmp_path / "small")
    last = max(json.loads((model / "tokenizer.json").read_text())["model"]["vocab"].values())
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, last]}))
    sampler = TransformersSampler(model, False, lambda: None)
    answer = sampler._tokens("42", {})
    turn, written = Turn(sampler._tokens("Answer: ", {}), 8), Written([*answer, last], True, [])
    assert sampler._completion(turn, written, SamplingParams(8)).text == "42"
