"""Tests the decoder on prompts that begin alike, with very small random models of many families."""

import random
from collections.abc import Generator
from concurrent.futures import Future
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Phi3Config,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from a2rl.sampling.decoder import Decoder, Decoding, Turn, Written, attention
from a2rl.sampling.decoder.prefixes import SHORTEST, Prefixes

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
    "gpt-oss": GptOssConfig(**SIZES, **EXPERTS, **MIXED),
    "olmo2": Olmo2Config(**SIZES),
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


def decoded(model: Any, prompts: list[list[int]], shared_from: int | None = 1, **settings: Any) -> list[list[int]]:
    decoder = Decoder(model, set(), settings.pop("rows", 64), settings.pop("memory", MEMORY), shared_from)
    return decoder.run([one_turn(prompt) for prompt in prompts], Decoding(**settings))


def tokens_read(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list to which each pass of the model adds how many tokens it has read, padding included."""
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


@pytest.fixture
def no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention as on GPUs."""
    monkeypatch.setattr(attention, "_has_kernel", lambda *_: False)
    monkeypatch.setattr(attention, "MAX_SCORES", 5000)


@pytest.mark.usefixtures("no_kernel")
@pytest.mark.parametrize("family", ["llama", "mistral with a sliding window", "gemma3"])
def test_attention_without_a_fused_kernel_writes_the_same(family: str) -> None:
    test_every_family_writes_what_transformers_itself_would(family)


def test_keys_outside_the_window_of_every_row_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model, prompts = network("gemma3"), [RULES + words(length) for length in (100, 60, 90)]
    expected, read, attend = decoded(model, prompts, shared_from=None), set(), attention._attend

    def seen(query: torch.Tensor, key: torch.Tensor, *rest: Any) -> Any:
        if query.shape[2] == 1:
            read.add(key.shape[2])
        return attend(query, key, *rest)

    monkeypatch.setattr(attention, "_attend", seen)
    assert decoded(model, prompts) == expected
    # The longest row has 40 columns more than the shortest one.
    assert min(read) == model.config.sliding_window + 40
    assert max(read) >= 100


def attended(dtype: torch.dtype, hidden: bool, value_size: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns attention to pieces of two rows, of which one has a prefix of 6 columns, and what it should be."""
    make = torch.Generator().manual_seed(1)
    query, own_key, own_value, key, value = (
        torch.randn(*shape, generator=make, dtype=dtype)
        for shape in ((2, 4, 3, 8), (2, 2, 5, 8), (2, 2, 5, value_size), (2, 6, 8), (2, 6, value_size))
    )
    seen = torch.ones(2, 1, 3, 11, dtype=torch.bool)
    seen[:, :, 0, -1] = seen[0, :, :, :6] = False
    seen[1, :, :, :6] = not hidden
    mask = torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)
    rows, columns = torch.tensor([1]), slice(0, 6)
    keys = attention.Pieces(own_key, [attention.Piece(rows, columns, key)])
    values = attention.Pieces(own_value, [attention.Piece(rows, columns, value)])
    output, _ = attention.attend_in_pieces(torch.nn.Identity(), query, keys, values, mask)
    expected = torch.nn.functional.scaled_dot_product_attention(
        query.float(), keys.joined(6).float(), values.joined(6).float(), attn_mask=seen, enable_gqa=True
    )
    return output.float(), expected.transpose(1, 2)


@pytest.mark.parametrize("kernel", ["kernel", "no_kernel"])
@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_attention_to_pieces_is_attention_to_all_of_them(
    dtype: torch.dtype, hidden: bool, kernel: str, request: pytest.FixtureRequest
) -> None:
    """Also where no token sees a piece: its numbers must not count then."""
    if kernel == "no_kernel":
        request.getfixturevalue(kernel)
    output, expected = attended(dtype, hidden)
    assert torch.allclose(output, expected, atol=4 * torch.finfo(dtype).eps)


def test_values_may_have_another_size_than_keys() -> None:
    output, expected = attended(torch.float32, hidden=False, value_size=4)
    assert torch.allclose(output, expected, atol=1e-6)


def test_what_prompts_begin_with_is_read_once(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    read = tokens_read(llama, monkeypatch)
    apart = decoded(llama, PROMPTS, shared_from=None)
    alone = sum(read)
    read.clear()
    assert decoded(llama, PROMPTS) == apart
    assert sum(read) < 0.6 * alone


def test_a_prefix_is_shared_only_where_that_saves_enough(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = (len(PROMPTS) - 3) * (len(RULES) - 1)  # two prompts begin otherwise, and one has to read it
    read = tokens_read(llama, monkeypatch)
    decoded(llama, PROMPTS, shared_from=saved)
    assert read.count(len(RULES) - 1) == 1
    read.clear()
    decoded(llama, PROMPTS, shared_from=saved + 1)
    assert len(RULES) - 1 not in read


def test_the_cache_holds_a_shared_prefix_once(llama: Any) -> None:
    """A token of this model takes 384 bytes: 3 layers x 2 heads x 8 numbers x 4 bytes, for keys and for values."""
    prompts, rows = [RULES + KIND_A + words(2) for _ in range(6)], []

    def stops(written: Any) -> list[bool]:
        rows.append(len(written))
        return [False] * len(written)

    shared, own = len(RULES) + len(KIND_A), 2 + NEW
    for shared_from, fitting in ((1, 6), (None, 1)):
        rows.clear()
        decoder = Decoder(llama, set(), 64, (shared + 6 * own) * 384, shared_from)
        decoder.run([one_turn(prompt) for prompt in prompts], Decoding(), stops)
        assert max(rows) == fitting


@pytest.mark.parametrize("rows", [1, 2, 3, 64])
@pytest.mark.parametrize("tokens", [150, 250, 400, 10_000])
def test_little_memory_and_few_rows_change_no_text(llama: Any, rows: int, tokens: int) -> None:
    expected = decoded(llama, PROMPTS, shared_from=None)
    assert decoded(llama, PROMPTS, rows=rows, memory=tokens * 384) == expected


def test_a_batch_too_large_for_memory_is_read_again(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its prefixes are read again with it."""
    expected, forward, passes = decoded(llama, PROMPTS), llama.forward, []

    def scarce(**arguments: Any) -> Any:
        passes.append(len(arguments["input_ids"]))
        if (len(passes) > 6 and passes[-1] > 2) or len(passes) in (2, 9):  # also while a prefix is read
            raise torch.OutOfMemoryError
        return forward(**arguments)

    monkeypatch.setattr(llama, "forward", scarce)
    assert decoded(llama, PROMPTS) == expected
    assert max(passes[:6]) > 2 >= max(passes[12:])


def test_sampled_texts_and_probabilities_are_as_without_sharing(llama: Any) -> None:
    def played(shared_from: int | None) -> list[Written]:
        def conversation(prompt: list[int]) -> Generator[Turn, Written, Written]:
            return (yield Turn(prompt, NEW))

        decoder = Decoder(llama, set(), 64, MEMORY, shared_from)
        return decoder.run([conversation(prompt) for prompt in PROMPTS], Decoding(1.0, 0.95, seed=5))

    for together, alone in zip(played(1), played(None), strict=True):
        assert together.tokens == alone.tokens
        assert together.logprobs == pytest.approx(alone.logprobs, abs=1e-4)
    first, second = (written.tokens for written in played(1)[5:7])
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


@pytest.mark.parametrize("family", ["llama", "mistral with a sliding window", "gemma2"])
@pytest.mark.parametrize("rows", [2, 64])
def test_conversations_go_on_behind_their_shared_prefix(family: str, rows: int) -> None:
    def played(rows: int, shared_from: int | None) -> list[list[list[int]]]:
        decoder = Decoder(model, set(), rows, MEMORY, shared_from)
        conversations = [chatty(prompt, 1 + number % 4) for number, prompt in enumerate(PROMPTS)]
        return decoder.run(conversations, Decoding())

    model = network(family)
    assert played(rows, 1) == played(1, None)


def test_a_conversation_that_has_waited_finds_its_prefix_again(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(prompt: list[int]) -> Generator[Any, Any, list[int]]:
        first = yield Turn(prompt, NEW)
        done: Future[None] = Future()
        done.set_result(None)
        yield done
        second: Written = yield Turn([*prompt, *first.tokens, 5], NEW)
        return second.tokens

    expected = decoded(llama, [[*p, *t, 5] for p, t in zip(PROMPTS, decoded(llama, PROMPTS), strict=True)])
    read = tokens_read(llama, monkeypatch)
    assert Decoder(llama, set(), 64, MEMORY, 1).run([waiting(prompt) for prompt in PROMPTS], Decoding()) == expected
    assert read.count(len(RULES) - 1) == 1


def test_prefixes_are_those_of_sorted_prompts_in_a_tree() -> None:
    prefixes = Prefixes(PROMPTS, worth=1)
    rules, *kinds = list(prefixes)
    assert rules.tokens == RULES[:-1]
    assert sorted(len(kind.tokens) for kind in kinds) == sorted([len(KIND_A) + 1, len(KIND_B) + 1])
    assert all(kind.parent is rules and kind.start == rules.end for kind in kinds)
    assert prefixes.of(RULES + KIND_A + [1, 2, 3]) in kinds
    assert prefixes.of(RULES) is rules
    assert prefixes.of(RULES[:-1]) is None  # its last token must be read with the prompt
    assert prefixes.of(words(400)) is None


def test_thousands_of_nested_prompts_are_no_problem() -> None:
    long = words(2000)
    assert list(Prefixes([long[:length] for length in range(1, 2000)], worth=1))
    assert not list(Prefixes([], worth=1))
    assert not list(Prefixes([[1]], worth=1))
