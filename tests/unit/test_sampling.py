"""The transformers back end on a very small random model, and what both back ends refuse."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from a2rl.errors import InfrastructureError, UsageError
from a2rl.sampling import Message, SamplingParams, open_sampler, transformers_backend
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
def batch_of(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    return lambda size: monkeypatch.setattr(transformers_backend, "MAX_BATCH", {"cpu": size, "cuda": size})


def test_a_batch_of_prompts_of_different_lengths_gives_the_texts_of_one_by_one(model, sampler, batch_of) -> None:
    params = SamplingParams(max_new_tokens=24)
    with open_sampler(model, exact=True) as exact:
        one_by_one = exact.generate(PROMPTS, params)
    assert sampler.generate(PROMPTS, params) == one_by_one
    assert len({completion.text for completion in one_by_one}) > 1


def test_greedy_texts_are_those_of_transformers_own_generate(model, sampler) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    reference = Qwen3ForCausalLM.from_pretrained(model)
    for prompt, completion in zip(PROMPTS, sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16)), strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        output = reference.generate(inputs.input_ids, attention_mask=inputs.attention_mask, max_new_tokens=16)
        generated = output[0, inputs.input_ids.shape[1] :]
        assert completion.text == tokenizer.decode(generated, skip_special_tokens=True)
        assert (completion.prompt_tokens, completion.tokens) == (inputs.input_ids.shape[1], len(generated))


def test_completions_come_in_the_order_of_the_prompts(sampler, batch_of) -> None:
    params = SamplingParams(max_new_tokens=8)
    batch_of(2)
    forward = sampler.generate(PROMPTS, params)
    assert sampler.generate(PROMPTS[::-1], params) == forward[::-1]
    assert [completion.prompt_tokens for completion in forward] == [
        sampler.generate([prompt], params)[0].prompt_tokens for prompt in PROMPTS
    ]


def test_a_stop_string_ends_the_text_before_its_first_occurrence(sampler) -> None:
    whole = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=40))
    for index, completion in enumerate(whole):
        stop = completion.text[5:7]
        [stopped] = sampler.generate([PROMPTS[index]], SamplingParams(max_new_tokens=40, stop=("never found", stop)))
        assert stopped.text == completion.text[: completion.text.find(stop)]
        assert stopped.finish == "stop"
        assert stopped.tokens < completion.tokens


def test_of_two_stop_strings_the_one_that_ends_first_counts(sampler) -> None:
    [whole] = sampler.generate(PROMPTS[:1], SamplingParams(max_new_tokens=40))
    late, early = whole.text[8:10], whole.text[3:5]
    [stopped] = sampler.generate(PROMPTS[:1], SamplingParams(max_new_tokens=40, stop=(late, early)))
    assert stopped.text == whole.text[: whole.text.find(early)]


def test_a_text_that_reaches_the_token_limit_finishes_by_length(sampler) -> None:
    for completion in sampler.generate(PROMPTS, SamplingParams(max_new_tokens=5)):
        assert completion.finish == "length" or completion.tokens < 5
        assert completion.tokens <= 5


def test_an_end_of_text_token_is_counted_but_is_not_in_the_text(sampler) -> None:
    completions = sampler.generate(PROMPTS * 20, SamplingParams(max_new_tokens=60, temperature=2.0))
    ended = [completion for completion in completions if completion.finish == "stop"]
    assert ended
    assert all("<|end|>" not in completion.text and completion.tokens >= 1 for completion in ended)
    assert all(completion.tokens == 60 for completion in completions if completion.finish == "length")


def test_sampled_texts_do_not_depend_on_the_batch_size(sampler, batch_of) -> None:
    params = SamplingParams(max_new_tokens=16, temperature=1.0, top_p=0.9, seed=7)
    texts = []
    for size in (1, 2, 64):
        batch_of(size)
        texts.append([completion.text for completion in sampler.generate(PROMPTS, params)])
    assert texts[0] == texts[1] == texts[2]


def test_different_seeds_and_different_places_in_the_call_give_different_texts(sampler) -> None:
    def sample(seed: int) -> list[str]:
        params = SamplingParams(max_new_tokens=16, temperature=1.0, seed=seed)
        return [completion.text for completion in sampler.generate([PROMPTS[0]] * 4, params)]

    assert len(set(sample(1) + sample(2))) == 8
    assert sample(1) == sample(1)


def test_a_small_top_p_is_greedy(sampler) -> None:
    greedy = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16))
    assert sampler.generate(PROMPTS, SamplingParams(max_new_tokens=16, temperature=1.0, top_p=1e-6)) == greedy


def test_drawn_tokens_follow_the_distribution(sampler) -> None:
    logits = torch.tensor([0.5, 0.3, 0.0, 0.2]).log().expand(4000, 4)
    request = transformers_backend._Request(0, [1], 1)
    rows = [transformers_backend._Row(request, transformers_backend.random.Random(row)) for row in range(4000)]
    drawn = transformers_backend._choose(logits, rows, SamplingParams(1, temperature=1.0))
    assert torch.bincount(drawn, minlength=4).div(4000).tolist() == pytest.approx([0.5, 0.3, 0.0, 0.2], abs=0.03)
    nucleus = transformers_backend._choose(logits, rows, SamplingParams(1, temperature=1.0, top_p=0.6))
    assert torch.bincount(nucleus, minlength=4).div(4000).tolist() == pytest.approx([0.625, 0.375, 0, 0], abs=0.03)


def test_a_prompt_longer_than_the_context_keeps_its_end(sampler) -> None:
    params = SamplingParams(max_new_tokens=16)
    long = "x" * 500 + "The quick brown fox"
    [completion] = sampler.generate([long], params)
    assert completion.prompt_tokens == CONTEXT - 16
    assert sampler.generate(["y" * 500 + long], params) == [completion]


def test_a_token_limit_beyond_the_context_ends_at_the_context(sampler) -> None:
    for completion in sampler.generate(["x" * 500, "a"], SamplingParams(max_new_tokens=10_000)):
        assert completion.prompt_tokens <= CONTEXT // 2
        assert completion.prompt_tokens + completion.tokens <= CONTEXT


def test_empty_prompts_and_empty_calls_are_answered(sampler) -> None:
    assert sampler.generate([], SamplingParams(max_new_tokens=4)) == []
    assert len(sampler.generate(["", "a"], SamplingParams(max_new_tokens=4))) == 2


def test_a_chat_is_the_text_that_its_template_makes(sampler) -> None:
    params = SamplingParams(max_new_tokens=8)
    chat = (Message("user", "One apple."),)
    assert sampler.has_chat_template
    assert sampler.generate([chat], params) == sampler.generate(["<user>One apple.<assistant>"], params)


def test_a_chat_that_the_template_refuses_is_a_usage_error(sampler) -> None:
    with pytest.raises(UsageError, match="no system turn"):
        sampler.generate([(Message("system", "Be nice."),)], SamplingParams(max_new_tokens=4))


def test_a_chat_without_a_template_is_a_usage_error(model, tmp_path) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    (folder / "chat_template.jinja").unlink()
    with open_sampler(folder) as sampler:
        assert not sampler.has_chat_template
        with pytest.raises(UsageError, match="no chat template"):
            sampler.generate([(Message("user", "Hi"),)], SamplingParams(max_new_tokens=4))


def test_a_batch_that_does_not_fit_into_memory_is_halved(sampler, monkeypatch) -> None:
    expected = sampler.generate(PROMPTS, SamplingParams(max_new_tokens=4))
    decode, sizes = TransformersSampler._decode, []

    def decode_at_most_two(self, rows, params) -> None:
        sizes.append(len(rows))
        if len(rows) > 2:
            raise torch.OutOfMemoryError
        decode(self, rows, params)

    monkeypatch.setattr(TransformersSampler, "_decode", decode_at_most_two)
    monkeypatch.setattr(transformers_backend, "MAX_BATCH", {"cpu": 6, "cuda": 6})
    assert sampler.generate(PROMPTS, SamplingParams(max_new_tokens=4)) == expected
    assert sizes == [6, 3, 1, 1, 1, 1, 1, 1]


def test_no_memory_for_a_single_text_is_an_infrastructure_error(sampler, monkeypatch) -> None:
    def decode(self, rows, params) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(TransformersSampler, "_decode", decode)
    with pytest.raises(InfrastructureError, match="not enough memory"):
        sampler.generate(["a"], SamplingParams(max_new_tokens=4))


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
def test_a_folder_that_is_no_checkpoint_is_a_usage_error_of_one_line(model, tmp_path, spoil) -> None:
    folder = shutil.copytree(model, tmp_path / "model")
    spoil(folder)
    with pytest.raises(UsageError, match="model") as refused, open_sampler(folder):
        pass
    assert "\n" not in str(refused.value)


def test_an_empty_or_absent_folder_is_a_usage_error(tmp_path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(UsageError, match=r"no config\.json"), open_sampler(folder):
            pass


def test_vllm_that_is_not_installed_is_an_infrastructure_error(model, monkeypatch) -> None:
    monkeypatch.setenv("A2RL_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(InfrastructureError, match="make setup-vllm"), open_sampler(model, "vllm"):
        pass


def test_a_vllm_worker_that_dies_is_an_infrastructure_error_with_the_end_of_its_log(
    model, tmp_path, monkeypatch
) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho the engine broke >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_VLLM_PYTHON", str(python))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the log of a dead worker stays
    with (
        pytest.raises(InfrastructureError, match=r"exit code 3.*the engine broke") as died,
        open_sampler(model, "vllm"),
    ):
        pass
    assert "first" in died.value.__notes__[0]
