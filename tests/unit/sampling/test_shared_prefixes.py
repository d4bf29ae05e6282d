"""Tests the decoder on prompts that begin alike, with very small random models of many families."""

import random
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from transformers import (
    AfmoeConfig,
    AutoModelForCausalLM,
    DogeConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GPTJConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from a2rl.sampling.decoder import Decoder, Decoding, Turn, Written, batch
from a2rl.sampling.decoder.batch import SHORTEST
from a2rl.sampling.decoder.conversation import common_prefix

WORDS, CONTEXT, NEW = 300, 512, 8
RANDOM = random.Random(3)
MEMORY = 1 << 30


def words(count: int) -> list[int]:
    return [RANDOM.randrange(1, WORDS) for _ in range(count)]


RULES, KIND_A, KIND_B = words(SHORTEST + 6), words(SHORTEST + 30), words(SHORTEST)
PROMPTS = [
    *(RULES + KIND_A + words(length) for length in (1, 40, 9)),
    *(RULES + KIND_B + words(length) for length in (5, 120)),
    *2 * [RULES + words(20)],  # the same one twice
    RULES,  # nothing but what the others begin with
    words(17),
    words(1),
]
SIZES: dict[str, Any] = {
    "vocab_size": WORDS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": CONTEXT, "initializer_range": 0.3,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip
MIXED = {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
FAMILIES = {
    "llama": LlamaConfig(**SIZES),
    "llama with yarn": LlamaConfig(
        **SIZES, rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4,
                                  "original_max_position_embeddings": 128},
    ),
    "llama, eager": LlamaConfig(**SIZES, attn_implementation="eager"),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES),
    "qwen3 with a sliding window": Qwen3Config(**SIZES, **MIXED, use_sliding_window=True),
    "qwen3-moe": Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "mistral with a sliding window": MistralConfig(**SIZES, sliding_window=100),
    "gemma2": Gemma2Config(**SIZES, **MIXED, query_pre_attn_scalar=8),
    "gemma3": Gemma3TextConfig(**SIZES, **MIXED, query_pre_attn_scalar=8),
    "phi3": Phi3Config(**SIZES),
    "phi3 with longrope": Phi3Config(
        **SIZES, original_max_position_embeddings=SHORTEST + 30,  # some prompts are longer, some grow longer
        rope_parameters={"rope_type": "longrope", "rope_theta": 1e4, "short_factor": 4 * [1.0],
                         "long_factor": [1.0, 3.0, 9.0, 40.0]},
    ),
    "gpt-oss": GptOssConfig(**SIZES, **EXPERTS, **MIXED),
    "olmo2": Olmo2Config(**SIZES),
    "afmoe": AfmoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24),
    "doge": DogeConfig(**SIZES),
    "gpt-j": GPTJConfig(vocab_size=WORDS, n_embd=32, n_layer=3, n_head=4, rotary_dim=4, n_positions=CONTEXT,
                        initializer_range=0.3, bos_token_id=None, eos_token_id=None),
}  # fmt: skip


def network(family: str) -> Any:
    torch.manual_seed(0)
    config = FAMILIES[family]
    return AutoModelForCausalLM.from_config(config, attn_implementation=config._attn_implementation).eval()


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> None:
    """Spinning OpenMP threads are very slow on a busy machine."""
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def llama() -> Any:
    return network("llama")


def one_turn(prompt: list[int], tokens: int = NEW) -> Generator[Turn, Written, list[int]]:
    return (yield Turn(prompt, tokens)).tokens


def decoded(model: Any, prompts: list[list[int]], shares: bool = True, **settings: Any) -> list[list[int]]:
    decoder = Decoder(model, set(), settings.pop("rows", 64), settings.pop("memory", MEMORY), shares)
    return decoder.run([one_turn(prompt) for prompt in prompts], Decoding(**settings))


def tokens_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each pass of the model adds how many tokens it has read."""
    forward, read = model.forward, []

    def counted(**arguments: Any) -> Any:
        read.append(arguments["input_ids"].numel())
        return forward(**arguments)

    monkeypatch.setattr(model, "forward", counted)
    return read


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_writes_what_transformers_itself_would(family: str) -> None:
    model = network(family)
    expected = [
        model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False)[0, len(prompt) :].tolist()
        for prompt in PROMPTS
    ]
    assert decoded(model, PROMPTS) == expected
    assert len({tuple(tokens) for tokens in expected}) >= len(PROMPTS) - 2
    assert model.config._attn_implementation == network(family).config._attn_implementation


def test_a_model_with_its_own_attention_reads_row_by_row(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("llama")
    expected = decoded(model, PROMPTS)
    monkeypatch.setattr(model, "_can_set_attn_implementation", lambda: False)
    assert decoded(model, PROMPTS) == expected


@pytest.mark.parametrize("family", ["llama", "gpt-oss", "doge"])
def test_flash_attention_is_replaced_while_rows_are_read(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not every machine has flash attention, so this model has it only by name."""
    model = network(family)
    expected = decoded(model, PROMPTS)
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "flash_attention_2")
    monkeypatch.setattr(model, "_check_and_adjust_attn_implementation", lambda name, **_: name)
    assert decoded(model, PROMPTS) == expected
    assert model.config._attn_implementation == "flash_attention_2"


def test_flash_attention_that_cannot_be_replaced_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    model = network("gpt-j")
    monkeypatch.setattr(model.config, "_attn_implementation_internal", "flash_attention_2")
    with pytest.raises(ValueError, match="load the model with 'eager' or 'sdpa'"):
        decoded(model, PROMPTS)


@pytest.mark.parametrize("family", ["llama", "llama, eager", "gemma3"])
def test_rows_are_read_in_mixed_precision_too(family: str) -> None:
    model = network(family)
    with torch.autocast("cpu", torch.bfloat16):
        assert len(decoded(model, PROMPTS[:4])) == 4


def test_rows_that_have_ended_take_no_memory_from_the_last(llama: Any) -> None:
    def growing(turns: int) -> Generator[Turn, Written, int]:
        tokens = words(60)
        for _ in range(turns):
            tokens = [*tokens, *(yield Turn(tokens, NEW)).tokens, *words(30)]
        return len(tokens)

    decoder = Decoder(llama, set(), 64, 500 * 384)
    assert decoder.run([growing(turns) for turns in (10, *[2] * 7)], Decoding()) == [440, *[136] * 7]


def test_a_late_row_finds_its_beginning_in_an_earlier_one(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read, lengths = tokens_read(llama, monkeypatch), (5, 8, 6, 10, 7, 4)
    decoder = Decoder(llama, set(), 2, MEMORY)
    decoder.run([one_turn(RULES + words(3), length) for length in lengths], Decoding())
    assert sum(read) == len(RULES) + sum(3 + length - 1 for length in lengths)


def test_texts_of_any_length_are_read_without_padding(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [words(length) for length in (3, 90, 14, 200, 1)]
    read = tokens_read(llama, monkeypatch)
    decoded(llama, prompts)
    assert read == [sum(map(len, prompts)), *[len(prompts)] * (NEW - 1)]


def test_prompts_wait_while_others_fill_a_pass(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [words(length) for length in (30, 50, 20, 70)]
    expected = decoded(llama, prompts)
    monkeypatch.setitem(batch.MOST_NEW, "cpu", 60)
    read = tokens_read(llama, monkeypatch)
    assert decoded(llama, prompts) == expected
    assert read[:4] == [70, 51, 52, 4]


def test_what_prompts_begin_with_is_read_once(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = tokens_read(llama, monkeypatch)
    apart = decoded(llama, PROMPTS, shares=False)
    alone = sum(read)
    read.clear()
    assert decoded(llama, PROMPTS) == apart
    assert sum(read) < 0.6 * alone


def test_it_is_read_once_also_where_answers_have_one_token(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    prompts = [RULES + words(3) for _ in range(5)]
    read = tokens_read(llama, monkeypatch)
    decoder = Decoder(llama, set(), 64, MEMORY)
    decoder.run([one_turn(prompt, tokens=1) for prompt in prompts], Decoding())
    assert read == [len(RULES), 5 * 3]


def test_a_beginning_that_is_short_is_read_by_each(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = tokens_read(llama, monkeypatch)
    for length, first_pass in ((SHORTEST, SHORTEST), (SHORTEST - 1, 2 * (SHORTEST + 1))):
        read.clear()
        decoded(llama, [RULES[:length] + words(2) for _ in range(2)])
        assert read[0] == first_pass


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
@pytest.mark.parametrize("tokens", [150, 250, 400, 10_000])
def test_little_memory_and_few_rows_change_no_text(llama: Any, rows: int, tokens: int) -> None:
    expected = decoded(llama, PROMPTS, shares=False)
    assert decoded(llama, PROMPTS, rows=rows, memory=tokens * 384) == expected


def test_a_batch_too_large_for_memory_is_read_again(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, forward, passes = decoded(llama, PROMPTS), llama.forward, []

    def scarce(**arguments: Any) -> Any:
        passes.append(len(arguments["logits_to_keep"]))
        if (len(passes) > 6 and passes[-1] > 2) or len(passes) in (2, 9):
            raise torch.OutOfMemoryError
        return forward(**arguments)

    monkeypatch.setattr(llama, "forward", scarce)
    assert decoded(llama, PROMPTS) == expected
    assert max(passes[:6]) > 2 >= max(passes[12:])


def test_sampled_texts_and_probabilities_are_as_without_sharing(llama: Any) -> None:
    def played(shares: bool) -> list[Written]:
        def conversation(prompt: list[int]) -> Generator[Turn, Written, Written]:
            return (yield Turn(prompt, NEW))

        decoder = Decoder(llama, set(), 64, MEMORY, shares)
        return decoder.run([conversation(prompt) for prompt in PROMPTS], Decoding(1.0, 0.95, seed=5))

    for together, alone in zip(played(True), played(False), strict=True):
        assert together.tokens == alone.tokens
        assert together.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    first, second = (written.tokens for written in played(True)[5:7])
    assert first != second  # the same prompt, but another place in the call


def chatty(prompt: list[int], turns: int) -> Generator[Turn, Written, list[list[int]]]:
    """Goes on after each turn; the third one has forgotten the beginning."""
    said, tokens = [], list(prompt)
    for turn in range(turns):
        if turn == 2:
            tokens = tokens[30:]
        written = yield Turn(tokens, 3 + turn)
        said.append(written.tokens)
        tokens = tokens + written.tokens + [7] * (1 + (len(tokens) + turn) % 5)
    return said


@pytest.mark.parametrize("family", ["llama", "mistral with a sliding window", "gemma2", "phi3 with longrope"])
@pytest.mark.parametrize("rows", [2, 64])
def test_conversations_go_on_behind_what_they_took_over(family: str, rows: int) -> None:
    def played(rows: int, shares: bool) -> list[list[list[int]]]:
        decoder = Decoder(model, set(), rows, MEMORY, shares)
        conversations = [chatty(prompt, 1 + number % 4) for number, prompt in enumerate(PROMPTS)]
        return decoder.run(conversations, Decoding())

    model = network(family)
    assert played(rows, True) == played(1, False)


def test_a_conversation_that_has_waited_is_read_again(llama: Any) -> None:
    def waiting(prompt: list[int]) -> Generator[Any, Any, list[int]]:
        first = yield Turn(prompt, NEW)
        done: Future[None] = Future()
        done.set_result(None)
        yield done
        second: Written = yield Turn([*prompt, *first.tokens, 5], NEW)
        return second.tokens

    expected = decoded(llama, [[*p, *t, 5] for p, t in zip(PROMPTS, decoded(llama, PROMPTS), strict=True)])
    assert Decoder(llama, set(), 64, MEMORY).run([waiting(prompt) for prompt in PROMPTS], Decoding()) == expected


def test_what_two_prompts_have_in_common_is_found() -> None:
    assert common_prefix([1, 2, 3], [1, 2, 4]) == 2
    assert common_prefix([1, 2], [1, 2, 4]) == 2
    assert common_prefix([], [1]) == common_prefix([2], [1]) == 0


def test_nested_prompts_are_no_problem(llama: Any) -> None:
    long = words(300)
    prompts = [long[:length] for length in range(60, 300, 20)]
    assert decoded(llama, prompts) == decoded(llama, prompts, shares=False)
