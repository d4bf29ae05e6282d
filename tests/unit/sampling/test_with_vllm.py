"""Tests the decoder for an engine of vLLM, with a fake of the engine that computes with a real small model."""

import sys
from collections.abc import Generator, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from a2rl.sampling.decoder import Decoder, Decoding, Turn, VllmDecoder, Written, awake, checkpoint_weights

CONTEXT, END, COMMA = 48, 5, 7
PROMPTS = [[1, 2, 3], [1, 2, 4, 4, 8], [9] * 12, [1]]


class FakeLlm:
    """Like `vllm.LLM` in the process of its caller: requests join a batch, and each step writes a token for each."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.requests: dict[str, Any] = {}
        self.calls: list[str] = []
        config = SimpleNamespace(max_model_len=CONTEXT, enable_sleep_mode=True)
        self.llm_engine = self
        self.model_config, self.vllm_config = config, SimpleNamespace(model_config=config)

    def add_request(self, name: str, prompt: Any, sampling: Any) -> None:
        tokens = prompt["prompt_token_ids"]
        assert name not in self.requests
        assert 0 < len(tokens) < CONTEXT
        assert 0 < sampling.max_tokens <= CONTEXT - len(tokens)
        self.requests[name] = SimpleNamespace(tokens=list(tokens), sampling=sampling, left=sampling.max_tokens)

    @torch.no_grad()
    def step(self) -> list[Any]:
        return [self._write(name, request) for name, request in list(self.requests.items())]

    def _write(self, name: str, request: Any) -> Any:
        logits = self.model(torch.tensor([request.tokens])).logits[0, -1]
        token = int(logits.argmax())
        request.tokens.append(token)
        request.left -= 1
        finished = token in request.sampling.stop_token_ids or not request.left
        if finished:
            del self.requests[name]
        logprob = SimpleNamespace(logprob=float(logits.log_softmax(-1)[token]))
        new = SimpleNamespace(token_ids=[token], logprobs=[{token: logprob, 0: None}])
        return SimpleNamespace(request_id=name, finished=finished, outputs=[new])

    def abort_request(self, names: Sequence[str]) -> None:
        for name in names:
            del self.requests[name]

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake_up(self, tags: list[str]) -> None:
        self.calls += tags

    def collective_rpc(self, method: str, kwargs: dict[str, Any]) -> None:
        self.calls.append(method)
        self.model.load_state_dict(dict(kwargs["weights_iterator"]), strict=False)

    def apply_model(self, change: Any) -> None: ...

    def reset_prefix_cache(self) -> None:
        self.calls.append("forget prefixes")


def network(seed: int) -> Any:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 16, "tie_word_embeddings": True}
    return AutoModelForCausalLM.from_config(Qwen3Config(**sizes, **heads, max_position_embeddings=CONTEXT)).eval()


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> FakeLlm:
    kinds = SimpleNamespace(RequestOutputKind=SimpleNamespace(DELTA="delta"))
    for name, module in {
        "vllm": SimpleNamespace(SamplingParams=SimpleNamespace),
        "vllm.inputs": SimpleNamespace(TokensPrompt=dict),
        "vllm.sampling_params": kinds,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    return FakeLlm(network(0))


def episode(prompt: list[int], turns: int = 3) -> Generator[Turn | Future[Any], Written, list[Written]]:
    """Asks for several turns, each after what was written before; between two of them, it waits for something else."""
    written: list[Written] = []
    tokens = list(prompt)
    for turn in range(turns):
        written.append((yield Turn(tokens, 4 + turn)))
        tokens = [*tokens, *written[-1].tokens, 2]
        done: Future[Any] = Future()
        done.set_result(None)
        yield done
    return written


def with_comma(rows: Sequence[list[int]]) -> list[bool]:
    return [COMMA in row for row in rows]


@pytest.mark.parametrize("stops", [None, with_comma])
def test_turns_are_those_of_our_own_decoder(llm: FakeLlm, stops: Any) -> None:
    """They end at the same tokens, whether an end token, the caller or the limit ends them."""
    # A vocabulary of 16 tokens, four of which end a turn.
    eos = {END, 9, 11, 13}
    ours = Decoder(llm.model, eos, 64, 1 << 20).run([episode(prompt) for prompt in PROMPTS], Decoding(), stops)
    theirs = VllmDecoder(llm, eos).run([episode(prompt) for prompt in PROMPTS], Decoding(), stops)
    assert [[(turn.tokens, turn.stopped) for turn in turns] for turns in theirs] == [
        [(turn.tokens, turn.stopped) for turn in turns] for turns in ours
    ]
    assert {turn.stopped for turns in ours for turn in turns} == {True, False}
    assert not llm.requests


def test_each_sampled_token_has_its_log_probability(llm: FakeLlm) -> None:
    [turns] = VllmDecoder(llm, set()).run([episode(PROMPTS[0])], Decoding(temperature=1.0))
    assert [len(turn.logprobs) for turn in turns] == [len(turn.tokens) for turn in turns] == [4, 5, 6]
    assert all(logprob < 0 for turn in turns for logprob in turn.logprobs)


def test_a_prompt_that_fills_the_context_loses_its_beginning(llm: FakeLlm) -> None:
    [written] = VllmDecoder(llm, set()).run([episode([3] * 200, turns=1)], Decoding())
    assert len(written[0].tokens) == 1


def test_a_run_that_fails_leaves_nothing_in_the_engine(llm: FakeLlm) -> None:
    def failing() -> Generator[Turn, Written, None]:
        yield Turn([1], 1)
        raise OSError("the environment is gone")

    decoder = VllmDecoder(llm, set())
    with pytest.raises(OSError, match="the environment is gone"):
        decoder.run([episode(PROMPTS[2]), failing()], Decoding())
    assert not llm.requests
    decoder.run([episode(PROMPTS[2])], Decoding())


def test_an_engine_takes_over_weights_before_it_plays(llm: FakeLlm) -> None:
    trained = network(1)
    with awake(llm, checkpoint_weights(trained)):
        assert llm.calls == ["weights", "reload_weights", "kv_cache", "forget prefixes"]
        [theirs] = VllmDecoder(llm, set()).run([episode(PROMPTS[1])], Decoding())
    assert llm.calls[4:] == ["sleep 2"]
    [ours] = Decoder(trained, set(), 64, 1 << 20).run([episode(PROMPTS[1])], Decoding())
    assert [turn.tokens for turn in theirs] == [turn.tokens for turn in ours]


def test_an_adapter_is_added_to_the_weights_of_a_checkpoint() -> None:
    from peft import LoraConfig, get_peft_model

    plain = network(0)
    names = [name for name, _ in plain.named_parameters()]
    adapted = get_peft_model(network(0), LoraConfig(r=2, target_modules="all-linear"))
    torch.nn.init.normal_(adapted.base_model.model.model.layers[0].mlp.up_proj.lora_B["default"].weight)
    before = {name: weights.clone() for name, weights in adapted.named_parameters()}
    added = [dict(checkpoint_weights(model)) for model in (adapted, adapted.get_base_model())]
    assert all(torch.equal(weights, before[name]) for name, weights in adapted.named_parameters())
    adapted.merge_adapter()  # by the agent itself
    added.append(dict(checkpoint_weights(adapted)))
    merged = adapted.merge_and_unload().state_dict()
    for each in added:
        assert list(each) == names
        assert all(torch.equal(weights, merged[name]) for name, weights in each.items())
    differing = [name for name, weights in plain.named_parameters() if not torch.equal(weights, merged[name])]
    assert differing == ["model.layers.0.mlp.up_proj.weight"]
