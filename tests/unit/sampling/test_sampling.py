"""Tests the transformers back end with a very small random model, and what both back ends refuse."""

import json
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma4TextConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.sampling import Conversation, Message, Sampler, SamplingParams, open_sampler, transformers_backend
from a2rl.sampling.decoder.conversation import prompt_tokens
from a2rl.sampling.decoder.engine import draw
from a2rl.sampling.transformers_backend import TransformersSampler

CONTEXT = 96
PROMPTS = [
    "One apple.",
    "The quick brown fox jumps over the lazy dog, and then over one more lazy dog.",
    "a",
    "Question: what is 12 + 30?\nAnswer:",
    "Two apples and three pears lie on the table",
    "Zürich, 東京",
]
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    "<{{ message.role }}>{{ message.content }}{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    "{% if enable_thinking %}<think>{% endif %}"
)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a random Qwen3 model with 30k parameters, a context of 96 tokens and a BPE tokenizer."""
    folder = tmp_path_factory.mktemp("random-qwen3")
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(PROMPTS * 10, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token="<|end|>")
    tokenizer.chat_template = CHAT_TEMPLATE
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=None,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def sampler(model: Path) -> Iterator[TransformersSampler]:
    # One thread: spinning OpenMP threads are very slow on a busy machine.
    torch.set_num_threads(1)
    with open_sampler(model) as sampler:
        assert isinstance(sampler, TransformersSampler)
        yield sampler


@pytest.fixture
def batch_of(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda size: monkeypatch.setattr(transformers_backend, "MAX_BATCH", {"cpu": size, "cuda": size})


def test_a_batch_of_different_lengths_gives_the_usual_texts(
    model: Path, sampler: TransformersSampler, batch_of: Callable[[int], None]
) -> None:
    """They are the texts of one prompt at a time."""
    params = SamplingParams(max_new_tokens=24)
    with open_sampler(model, exact=True) as exact:
        one_by_one = exact.generate(PROMPTS, params)
    assert sampler.generate(PROMPTS, params) == one_by_one
    assert len({completion.text for completion in one_by_one}) > 1


def test_greedy_texts_are_those_of_transformers_own_generate(model: Path, sampler: TransformersSampler) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    reference = Qwen3ForCausalLM.from_pretrained(model)
    for prompt, completion in zip(PROMPTS, sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16)), strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        output = reference.generate(inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=16)
        generated = output[0, inputs.input_ids.shape[1] :]
        assert completion.text == tokenizer.decode(generated, skip_special_tokens=True)
        assert (completion.prompt_tokens, completion.tokens) == (inputs.input_ids.shape[1], len(generated))


def test_completions_come_in_the_order_of_the_prompts(
    sampler: TransformersSampler, batch_of: Callable[[int], None]
) -> None:
    params = SamplingParams(max_new_tokens=8)
    batch_of(2)
    forward = sampler.generate(PROMPTS, params)
    assert sampler.generate(PROMPTS[::-1], params) == forward[::-1]
    assert [completion.prompt_tokens for completion in forward] == [
        sampler.generate([prompt], params)[0].prompt_tokens for prompt in PROMPTS
    ]


def test_a_stop_string_ends_the_text_before_its_first_occurrence(sampler: TransformersSampler) -> None:
    whole = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=40))
    for index, completion in enumerate(whole):
        stop = completion.text[5:7]
        [stopped] = sampler.generate([PROMPTS[index]], SamplingParams(max_new_tokens=40, stop=("never found", stop)))
        assert stopped.text == completion.text[: completion.text.find(stop)]
        assert stopped.finish == "stop"
        assert stopped.tokens < completion.tokens


def test_of_two_stop_strings_the_one_that_ends_first_counts(sampler: TransformersSampler) -> None:
    [whole] = sampler.generate(PROMPTS[:1], SamplingParams(max_new_tokens=40))
    late, early = whole.text[8:10], whole.text[3:5]
    [stopped] = sampler.generate(PROMPTS[:1], SamplingParams(max_new_tokens=40, stop=(late, early)))
    assert stopped.text == whole.text[: whole.text.find(early)]


def test_a_text_that_reaches_the_token_limit_finishes_by_length(sampler: TransformersSampler) -> None:
    for completion in sampler.generate(PROMPTS, SamplingParams(max_new_tokens=5)):
        assert completion.finish == "length" or completion.tokens < 5
        assert completion.tokens <= 5


def test_an_end_of_text_token_is_counted_but_is_not_in_the_text(sampler: TransformersSampler) -> None:
    completions = sampler.generate(PROMPTS * 20, SamplingParams(max_new_tokens=60, temperature=2.0))
    ended = [completion for completion in completions if completion.finish == "stop"]
    assert ended
    assert all("<|end|>" not in completion.text and completion.tokens >= 1 for completion in ended)
    assert all(completion.tokens == 60 for completion in completions if completion.finish == "length")


def test_sampled_texts_do_not_depend_on_the_batch_size(
    sampler: TransformersSampler, batch_of: Callable[[int], None]
) -> None:
    params = SamplingParams(max_new_tokens=16, temperature=1.0, top_p=0.9, seed=7)
    texts = []
    for size in (1, 2, 64):
        batch_of(size)
        texts.append([completion.text for completion in sampler.generate(PROMPTS, params)])
    assert texts[0] == texts[1] == texts[2]


def test_other_seeds_and_other_places_give_other_texts(sampler: TransformersSampler) -> None:
    def sample(seed: int) -> list[str]:
        params = SamplingParams(max_new_tokens=16, temperature=1.0, seed=seed)
        return [completion.text for completion in sampler.generate([PROMPTS[0]] * 4, params)]

    assert len(set(sample(1) + sample(2))) == 8
    assert sample(1) == sample(1)


def test_a_small_top_p_is_greedy(sampler: TransformersSampler) -> None:
    greedy = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16))
    assert sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16, temperature=1.0, top_p=1e-6)) == greedy


def test_the_most_likely_token_alone_is_greedy(sampler: TransformersSampler) -> None:
    greedy = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16))
    assert sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16, temperature=2.0, top_k=1)) == greedy


def test_drawn_tokens_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.0, 0.2]).expand(4000, 4)
    uniforms = [random.Random(row).random() for row in range(4000)]
    drawn = draw(probabilities, uniforms, top_p=1.0)
    assert torch.bincount(drawn, minlength=4).div(4000).tolist() == pytest.approx([0.5, 0.3, 0.0, 0.2], abs=0.03)
    nucleus = draw(probabilities, uniforms, top_p=0.6)
    assert torch.bincount(nucleus, minlength=4).div(4000).tolist() == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)


@pytest.mark.parametrize("tokens", [1, 512, 513, 5000])
def test_a_token_without_probability_is_never_drawn(tokens: int) -> None:
    weights = torch.rand(2000, tokens, generator=torch.Generator().manual_seed(0))
    weights[:, 1::2] = 0
    uniforms = [random.Random(row).random() for row in range(2000)]
    drawn = draw(weights, uniforms, top_p=1.0)
    assert (weights.gather(1, drawn[:, None]) > 0).all()
    below = torch.arange(tokens) < drawn[:, None]
    reached = (weights.double() * below).sum(-1) / weights.double().sum(-1)
    assert (reached <= torch.tensor(uniforms) + 1e-6).all()


@pytest.mark.parametrize(
    ("top_k", "top_p", "expected"),
    [
        (0, 1.0, [0.4, 0.3, 0.2, 0.1]),
        (9, 1.0, [0.4, 0.3, 0.2, 0.1]),
        (2, 1.0, [4 / 7, 3 / 7, 0, 0]),
        (2, 0.5, [1, 0, 0, 0]),  # of the two that are left the first has 0.57
        (3, 0.5, [4 / 7, 3 / 7, 0, 0]),  # of the three that are left the first has 0.44
    ],
)
def test_top_p_counts_among_the_tokens_that_top_k_leaves(top_k: int, top_p: float, expected: list[float]) -> None:
    probabilities = torch.tensor([0.4, 0.3, 0.2, 0.1]).expand(4000, 4)
    drawn = draw(probabilities, [(row + 0.5) / 4000 for row in range(4000)], top_p, top_k)
    assert torch.bincount(drawn, minlength=4).div(4000).tolist() == pytest.approx(expected, abs=0.01)


def test_a_prompt_longer_than_the_context_keeps_its_end(sampler: TransformersSampler) -> None:
    params = SamplingParams(max_new_tokens=16)
    long = "x" * 500 + "The quick brown fox"
    [completion] = sampler.generate([long], params)
    assert completion.prompt_tokens == CONTEXT - 16
    assert sampler.generate(["y" * 500 + long], params) == [completion]
    assert [each.is_cut for each in sampler.generate([long, long[-CONTEXT + 16 :]], params)] == [True, False]


def test_a_token_limit_beyond_the_context_ends_at_the_context(sampler: TransformersSampler) -> None:
    for completion in sampler.generate(["x" * 500, "a"], SamplingParams(max_new_tokens=10_000)):
        assert completion.prompt_tokens <= CONTEXT // 2
        assert completion.prompt_tokens + completion.tokens <= CONTEXT


def test_empty_prompts_and_empty_calls_are_answered(sampler: TransformersSampler) -> None:
    assert sampler.generate([], SamplingParams(max_new_tokens=4)) == []
    assert len(sampler.generate(["", "a"], SamplingParams(max_new_tokens=4))) == 2


def test_a_chat_is_the_text_that_its_template_makes(sampler: TransformersSampler) -> None:
    params = SamplingParams(max_new_tokens=8)
    chat = (Message("user", "One apple."),)
    assert sampler.has_chat_template
    assert sampler.generate([chat], params) == sampler.generate(["<user>One apple.<assistant>"], params)


def test_a_chat_template_is_given_its_own_arguments(sampler: TransformersSampler) -> None:
    chat = (Message("user", "One apple."),)
    thinking = SamplingParams(max_new_tokens=8, chat_template_kwargs={"enable_thinking": True})
    text = "<user>One apple.<assistant><think>"
    assert sampler.generate([chat], thinking) == sampler.generate([text], SamplingParams(max_new_tokens=8))
    assert sampler.room_after(chat, {"enable_thinking": True}) == sampler.room_after(text) < sampler.room_after(chat)


def test_a_chat_template_gets_the_same_date_every_day(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ strftime_now('%A, %d %b %Y') }} {{ messages[0].content }}")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "Hi"}]
    assert tokenizer.decode(prompt_tokens(tokenizer, chat)) == "Friday, 26 Jul 2024 Hi"


def test_a_chat_that_the_template_refuses_is_a_usage_error(sampler: TransformersSampler) -> None:
    with pytest.raises(UsageError, match="no system turn"):
        sampler.generate([(Message("system", "Be nice."),)], SamplingParams(max_new_tokens=4))


def test_a_chat_without_a_template_is_a_usage_error(model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with open_sampler(folder) as sampler:
        assert not sampler.has_chat_template
        with pytest.raises(UsageError, match="no chat template"):
            sampler.generate([(Message("user", "Hi"),)], SamplingParams(max_new_tokens=4))


def test_a_batch_that_does_not_fit_into_memory_is_halved(
    sampler: TransformersSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations = [wordy(prompt, turns=3) for prompt in PROMPTS]
    expected = sampler.converse(conversations, SamplingParams(max_new_tokens=4))
    forward, passes = sampler._model.forward, []

    def at_most_two_rows_after_a_while(*args: Any, **kwargs: Any) -> Any:
        passes.append(len(kwargs["logits_to_keep"]))
        if len(passes) > 4 and passes[-1] > 2:
            raise torch.OutOfMemoryError
        return forward(*args, **kwargs)

    monkeypatch.setattr(sampler._model, "forward", at_most_two_rows_after_a_while)
    monkeypatch.setattr(transformers_backend, "MAX_BATCH", {"cpu": 6, "cuda": 6})
    conversations = [wordy(prompt, turns=3) for prompt in PROMPTS]
    assert sampler.converse(conversations, SamplingParams(max_new_tokens=4)) == expected
    assert max(passes[:4]) > 2
    assert max(passes[-4:]) <= 2


def test_the_cache_keeps_to_its_share_of_the_memory(
    sampler: TransformersSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=4))
    rows: list[int] = []
    forward = sampler._model.forward

    def counted(**arguments: Any) -> Any:
        rows.append(len(arguments["logits_to_keep"]))
        return forward(**arguments)

    monkeypatch.setattr(sampler._model, "forward", counted)
    cache_bytes_per_token = 2 * 2 * 1 * 16 * 4
    two_texts = 2 * 40 * cache_bytes_per_token / transformers_backend.FREE_MEMORY_SHARE
    monkeypatch.setattr(sampler, "_free_bytes", lambda: two_texts)
    assert sampler.generate(PROMPTS, SamplingParams(max_new_tokens=4)) == expected
    assert 1 < max(rows) <= 4


def test_no_memory_for_a_single_text_is_an_infrastructure_error(
    sampler: TransformersSampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(**_: object) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(sampler._model, "forward", forward)
    with pytest.raises(InfrastructureError, match="not enough memory"):
        sampler.generate(["a"], SamplingParams(max_new_tokens=4))


def wordy(prompt: str, turns: int) -> Conversation[list[str]]:
    """Adds a few words after each completion; how many depends on the prompt."""
    said, text = [], prompt
    for turn in range(turns):
        completion = yield text
        said.append(completion.text)
        text += completion.text + " and" * (1 + (len(prompt) + turn) % 5)
    return said


def one_by_one(sampler: Sampler, conversation: Conversation[list[str]], params: SamplingParams) -> list[str]:
    """Plays the conversation with separate calls of `generate`, each of which reads the whole prompt."""
    try:
        prompt = next(conversation)
        while True:
            assert not isinstance(prompt, Future)
            prompt = conversation.send(sampler.generate([prompt], params)[0])
    except StopIteration as end:
        return cast(list[str], end.value)


@pytest.mark.parametrize("rows", [1, 2, 6])
def test_a_conversation_is_the_same_as_its_prompts_one_by_one(
    sampler: TransformersSampler, batch_of: Callable[[int], None], rows: int
) -> None:
    params = SamplingParams(max_new_tokens=6)
    expected = [one_by_one(sampler, wordy(prompt, turns=1 + number), params) for number, prompt in enumerate(PROMPTS)]
    batch_of(rows)
    conversations = [wordy(prompt, turns=1 + number) for number, prompt in enumerate(PROMPTS)]
    assert sampler.converse(conversations, params) == expected


def test_a_conversation_may_forget_and_may_end_before_it_begins(sampler: TransformersSampler) -> None:
    def forgetful(text: str) -> Conversation[str]:
        for word in text.split():
            completion = yield "One apple. " + word
        return completion.text

    def silent() -> Conversation[str]:
        return "nothing to say"
        yield

    params = SamplingParams(max_new_tokens=6)
    [last] = sampler.generate(["One apple. fox"], params)
    assert sampler.converse([forgetful("The quick brown fox"), silent()], params) == [last.text, "nothing to say"]


def test_a_waiting_conversation_holds_up_nobody(sampler: TransformersSampler, batch_of: Callable[[int], None]) -> None:
    """It comes to the same texts."""
    first, second = threading.Event(), threading.Event()

    def waiting(prompt: str, mine: threading.Event, others: threading.Event) -> Conversation[list[str]]:
        """Waits for the other conversation, so that it would wait forever if one conversation blocked the other."""
        mine.set()
        yield threads.submit(others.wait, 30)
        said = yield from wordy(prompt, 2)
        done = threads.submit(lambda: " and then")
        yield done
        completion = yield prompt + done.result()
        yield threads.submit(lambda: None)
        return [*said, completion.text]

    params = SamplingParams(max_new_tokens=6)
    expected = [
        [*one_by_one(sampler, wordy(prompt, 2), params), sampler.generate([f"{prompt} and then"], params)[0].text]
        for prompt in PROMPTS[:2]
    ]
    for rows in (1, 2, 6):
        batch_of(rows)
        first.clear()
        second.clear()
        with ThreadPoolExecutor(2) as threads:
            conversations = [waiting(PROMPTS[0], first, second), waiting(PROMPTS[1], second, first), wordy("a", 3)]
            assert sampler.converse(conversations, params)[:2] == expected


def test_a_failure_during_a_wait_concerns_only_its_conversation(sampler: TransformersSampler) -> None:
    def careful() -> Conversation[str]:
        failing = threads.submit(lambda: 1 / 0)
        yield failing
        return type(failing.exception()).__name__

    with ThreadPoolExecutor(1) as threads:
        assert sampler.converse([careful()], SamplingParams(max_new_tokens=6)) == ["ZeroDivisionError"]


def test_every_conversation_that_ends_is_reported(model: Path) -> None:
    ended = []
    with open_sampler(model, on_end=lambda: ended.append(1)) as sampler:
        sampler.converse([wordy(prompt, turns=2) for prompt in PROMPTS], SamplingParams(max_new_tokens=3))
        assert len(ended) == len(PROMPTS)


def test_the_room_after_a_prompt_is_what_the_context_leaves(sampler: TransformersSampler) -> None:
    [completion] = sampler.generate(["One apple."], SamplingParams(max_new_tokens=1))
    assert sampler.room_after("One apple.") == CONTEXT - completion.prompt_tokens
    assert sampler.room_after("x" * 500) < 0


TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        (MistralConfig, {"sliding_window": 8}),
        (Qwen2Config, {"use_sliding_window": True, **TWO_KINDS}),
        (GPTNeoXConfig, {}),
        (LlamaConfig, {"attn_implementation": "eager"}),
        (Gemma4TextConfig, {"global_head_dim": 32, "vocab_size_per_layer_input": 320, **TWO_KINDS}),
    ],
    ids=lambda each: getattr(each, "model_type", ""),
)
def test_other_architectures_write_what_transformers_would(
    kind: type[PreTrainedConfig], changes: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    config = kind(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=16, vocab_size=320, max_position_embeddings=CONTEXT, initializer_range=0.2, bos_token_id=None,
        eos_token_id=0, **changes,
    )  # fmt: skip
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    network = AutoModelForCausalLM.from_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)  # may be another class than was saved
    with open_sampler(tmp_path) as sampler:
        texts = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=12))
    for prompt, completion in zip(PROMPTS, texts, strict=True):
        tokens = tokenizer(prompt, return_tensors="pt")
        written = network.generate(**tokens, max_new_tokens=12, do_sample=False, pad_token_id=0)[0]
        assert completion.text == tokenizer.decode(written[tokens["input_ids"].shape[1] :], skip_special_tokens=True)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_model_whose_files_ask_for_flash_attention_is_read(key: str, model: Path, tmp_path: Path) -> None:
    """The machine may lack it."""
    shutil.copytree(model, tmp_path, dirs_exist_ok=True)
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, key: "flash_attention_2"}))
    params = SamplingParams(max_new_tokens=4)
    with open_sampler(model) as usual, open_sampler(tmp_path) as sampler:
        assert sampler.generate(PROMPTS, params) == usual.generate(PROMPTS, params)


def test_a_model_with_recurrent_layers_is_refused_with_advice(model: Path, tmp_path: Path) -> None:
    config = MambaConfig(vocab_size=320, hidden_size=16, num_hidden_layers=1, state_size=4)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="use vllm"), open_sampler(tmp_path) as sampler:
        sampler.generate(["a"], SamplingParams(max_new_tokens=2))


def _without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _with_garbage_for_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"garbage" * 100)


def _with_weights_of_another_model(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))


def _with_one_weight_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _with_weights_of_another_shape(folder: Path) -> None:
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"hidden_size": 32', '"hidden_size": 48'))


def _with_pickled_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "pytorch_model.bin")


def _without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def _without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def _with_broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def _with_remote_code(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}')
    (folder / "mine.py").write_text("raise SystemExit('remote code ran')")


def _with_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "/somewhere/else"}')


@pytest.mark.parametrize(
    "spoil",
    [
        _without_config,
        _with_broken_config,
        _without_tokenizer,
        _without_weights,
        _with_garbage_for_weights,
        _with_weights_of_another_model,
        _with_one_weight_missing,
        _with_weights_of_another_shape,
        _with_pickled_weights,
        _with_remote_code,
        _with_adapter,
    ],
)
def test_a_folder_without_a_checkpoint_is_a_usage_error(
    model: Path, tmp_path: Path, spoil: Callable[[Path], object]
) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    spoil(folder)
    with pytest.raises(UsageError, match="model") as refused, open_sampler(folder):
        pass
    assert "\n" not in str(refused.value)


def test_an_empty_or_absent_folder_is_a_usage_error(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match=r"no config\.json"), open_sampler(folder):
            pass
