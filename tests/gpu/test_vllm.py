"""Compares the two back ends, on CPU or GPU. This needs `make setup-vllm`, but no GPU.

The model is `models/tiny` if it exists, else the one that A2RL_TEST_MODEL names.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.sampling import NO_KWARGS, Conversation, Message, Prompt, Sampler, SamplingParams, T, open_sampler
from a2rl.sampling.vllm_backend import VllmSampler
from a2rl.sampling.vllm_process import EngineLease, EngineProcess, WeightsRejectedError
from a2rl.scoring.score import ItemResult
from a2rl.task_api.contract import Limits
from tasks.alfworld import grade as alfworld
from tasks.alfworld import mini

MODEL = Path(os.environ.get("A2RL_TEST_MODEL", Settings.load().root / "models" / "tiny"))
TIE = 1e-3
"""Two logits that are nearer than this count as tied: back ends may round either way."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Settings.load().vllm_python.is_file(), reason="vLLM is not installed: run `make setup-vllm`"
    ),
    pytest.mark.skipif(not (MODEL / "config.json").is_file(), reason=f"there is no model at {MODEL}"),
]
GAMES = 60
NAMES = ("Tom", "Ann", "Bob", "Eve")
PROMPTS = [
    f"Question: {NAMES[i % 4]} has {i * 7 % 100} apples and gets {i * 13 % 50} more"
    + " every day of the week" * (i % 5)
    + ". How many apples?\nAnswer:"
    for i in range(64)
]


@pytest.fixture(scope="module")
def vllm() -> Iterator[VllmSampler]:
    with open_sampler(MODEL, "vllm") as sampler:
        assert isinstance(sampler, VllmSampler)
        yield sampler


class Overheard:
    """A sampler that records its conversations."""

    def __init__(self, sampler: Sampler) -> None:
        self._sampler = sampler
        self.said: list[list[tuple[Prompt | Future[Any], str]]] = []
        """Of each conversation: what the model was asked, and its answer."""

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        return self._sampler.room_after(prompt, chat_template_kwargs)

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        self.said = [[] for _ in conversations]
        pairs = zip(conversations, self.said, strict=True)
        return self._sampler.converse([self._noting(each, said) for each, said in pairs], params)

    @staticmethod
    def _noting(conversation: Conversation[T], said: list[tuple[Prompt | Future[Any], str]]) -> Conversation[T]:
        try:
            prompt = next(conversation)
            while True:
                completion = yield prompt
                said.append((prompt, completion.text))
                prompt = conversation.send(completion)
        except StopIteration as end:
            return cast(T, end.value)


def _gap_at_first_difference(prompt: str, one: str, other: str) -> float:
    """Returns the difference of the logits of the first tokens that differ; infinite if neither is the best."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    tokens = tokenizer(prompt)["input_ids"]
    length = len(tokens)
    for _ in range(len(one) + len(other)):
        with torch.inference_mode():
            logits = model(torch.tensor([tokens])).logits[0, -1]
        best, second = logits.topk(2)[1].tolist()
        grown = [tokenizer.decode([*tokens[length:], token], skip_special_tokens=True) for token in (best, second)]
        fits = [(one.startswith(text), other.startswith(text)) for text in grown]
        if fits[0] != (True, True):
            return float(logits[best] - logits[second])
        if fits[1] != (False, False) and float(logits[best] - logits[second]) < TIE:
            return float(logits[best] - logits[second])
        tokens.append(best)
    return float("inf")


def test_both_back_ends_give_the_same_greedy_texts_up_to_ties(
    vllm: Sampler, capsys: pytest.CaptureFixture[str]
) -> None:
    params = SamplingParams(max_new_tokens=64)
    with open_sampler(MODEL) as sampler:
        expected = sampler.generate(PROMPTS, params)
    completions = vllm.generate(PROMPTS, params)
    differing = [i for i in range(len(PROMPTS)) if completions[i] != expected[i]]
    gaps = [_gap_at_first_difference(PROMPTS[i], expected[i].text, completions[i].text) for i in differing]
    with capsys.disabled():
        sys.stdout.write(f"\n{len(gaps)} of {len(PROMPTS)} texts differ between the back ends, at gaps of {gaps}\n")
    assert all(gap < TIE for gap in gaps)
    assert [c.prompt_tokens for c in completions] == [c.prompt_tokens for c in expected]


def test_both_back_ends_play_the_same_games_up_to_ties(
    vllm: Sampler, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, household in enumerate(mini.generate(GAMES, 5, "eval")):
        mini.write(household, tmp_path / "games" / f"{household.kind}-{number}")
    options = {"prompts": "none"}

    def play(sampler: Sampler) -> list[tuple[list[tuple[Prompt | Future[Any], str]], ItemResult]]:
        overheard = Overheard(sampler)
        limits = Limits(max_new_tokens=24, max_steps=30)
        items = alfworld.grade(cast(Sampler, overheard), tmp_path, alfworld.item_ids(tmp_path), limits, options)
        return list(zip(overheard.said, items, strict=True))

    with open_sampler(MODEL) as sampler:
        expected = play(sampler)
    gaps = []
    for (ours, our_item), (theirs, their_item) in zip(expected, play(vllm), strict=True):
        parted = next(((one, other) for one, other in zip(ours, theirs, strict=False) if one != other), None)
        if parted is None:
            assert their_item == our_item
            continue
        (prompt, our_text), (their_prompt, their_text) = parted
        assert their_prompt == prompt
        gaps.append(_gap_at_first_difference(str(prompt), our_text, their_text))
    won = sum(item.value for _, item in expected)
    with capsys.disabled():
        sys.stdout.write(f"\n{len(gaps)} of {GAMES} games ({won:.0f} won) part, at gaps of {gaps}\n")
    assert all(gap < TIE for gap in gaps)


def test_exact_mode_gives_the_same_texts_whatever_else_is_asked(vllm: Sampler) -> None:
    params = SamplingParams(max_new_tokens=32)
    with open_sampler(MODEL, "vllm", exact=True) as exact:
        together = exact.generate(PROMPTS[:16], params)
        assert [exact.generate([prompt], params)[0] for prompt in PROMPTS[:16]] == together


def test_stop_strings_cut_the_text_in_the_same_place(vllm: Sampler) -> None:
    texts = [completion.text for completion in vllm.generate(PROMPTS, SamplingParams(max_new_tokens=40))]
    longest = max(range(len(texts)), key=lambda i: len(texts[i]))
    prompt, whole = PROMPTS[longest], texts[longest]
    stop = whole[len(whole) // 2 :][:2]
    assert stop
    params = SamplingParams(max_new_tokens=40, stop=("never found", stop))
    with open_sampler(MODEL) as sampler:
        assert vllm.generate([prompt], params) == sampler.generate([prompt], params)
    assert vllm.generate([prompt], params)[0].text == whole[: whole.find(stop)]


def test_sampled_texts_repeat_with_their_seed(vllm: Sampler) -> None:
    def sample(seed: int, count: int) -> list[str]:
        params = SamplingParams(max_new_tokens=24, temperature=1.0, seed=seed)
        return [completion.text for completion in vllm.generate(PROMPTS[:1] * count, params)]

    assert sample(1, 8) == sample(1, 8)
    assert sample(1, 8)[:3] == sample(1, 3)
    assert len(set(sample(1, 8) + sample(2, 8))) > 4


def test_the_most_likely_token_alone_is_greedy(vllm: Sampler) -> None:
    greedy = vllm.generate(PROMPTS[:8], SamplingParams(max_new_tokens=24))
    assert vllm.generate(PROMPTS[:8], SamplingParams(max_new_tokens=24, temperature=1.0, top_k=1)) == greedy


def test_more_seeded_prompts_than_one_step_takes_are_answered(vllm: Sampler) -> None:
    # Seeded requests with split prompts crash vLLM 0.32 on CPU; a prompt of about 2048 tokens is split.
    params = SamplingParams(max_new_tokens=2, temperature=1.0)
    assert len(vllm.generate(PROMPTS * 8, params)) == len(PROMPTS) * 8


def test_long_and_empty_prompts_are_answered_alike(vllm: Sampler) -> None:
    prompts = ["x y " * 3000, ""]
    params = SamplingParams(max_new_tokens=8)
    with open_sampler(MODEL) as sampler:
        expected = sampler.generate(prompts, params)
    assert [c.prompt_tokens for c in vllm.generate(prompts, params)] == [c.prompt_tokens for c in expected]


def test_chats_go_through_the_template(vllm: Sampler) -> None:
    chat = (Message("user", PROMPTS[0]),)
    with open_sampler(MODEL) as sampler:
        if sampler.has_chat_template:
            params = SamplingParams(max_new_tokens=8)
            assert vllm.generate([chat], params)[0].prompt_tokens == sampler.generate([chat], params)[0].prompt_tokens
        else:
            with pytest.raises(UsageError, match="no chat template"):
                vllm.generate([chat], SamplingParams(max_new_tokens=8))


def test_an_engine_that_took_other_weights_answers_as_a_new_one(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(MODEL, other)
    for file in other.glob("*.safetensors"):
        torch.manual_seed(1)
        tensors = load_file(file)
        noise = {name: 0.02 * tensor.float().std() * torch.randn(tensor.shape) for name, tensor in tensors.items()}
        save_file({name: tensor + noise[name].to(tensor.dtype) for name, tensor in tensors.items()}, file)
    params = SamplingParams(max_new_tokens=32)
    with open_sampler(other, "vllm") as sampler:
        expected = sampler.generate(PROMPTS, params)
    engine = EngineProcess.start(MODEL, exact=False, dtype=None, params=None, log=tmp_path / "log")
    try:
        with open_sampler(MODEL, "vllm", lease=EngineLease(engine.connection, is_warm=False, why="")) as sampler:
            before = sampler.generate(PROMPTS, params)
        for model, texts in ((other, expected), (MODEL, before)):
            engine.connection.rest()
            with open_sampler(model, "vllm", lease=EngineLease(engine.connection, is_warm=True, why="")) as sampler:
                assert sampler.generate(PROMPTS, params) == texts
        with pytest.raises(WeightsRejectedError):
            engine.connection.load(tmp_path)
        assert before != expected
    finally:
        engine.close()


def test_a_broken_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text((MODEL / "config.json").read_text())
    with pytest.raises(UsageError, match="tokenizer"), open_sampler(tmp_path, "vllm"):
        pass


def test_a_killed_worker_is_an_infrastructure_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It leaves no process."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the log of a dead worker is kept
    with open_sampler(MODEL, "vllm") as sampler:
        assert isinstance(sampler, VllmSampler)
        worker = psutil.Process(sampler.worker_pid)
        worker.send_signal(signal.SIGKILL)
        with pytest.raises(InfrastructureError, match="worker ended"):
            sampler.generate(PROMPTS[:1], SamplingParams(max_new_tokens=8))
    assert not worker.is_running()


def test_the_worker_ends_with_its_parent() -> None:
    script = (
        "import sys, time; from pathlib import Path; from a2rl.sampling.vllm_backend import VllmSampler\n"
        f"sampler = VllmSampler(Path({str(MODEL)!r}), False, print)\n"
        "print(sampler.worker_pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=Settings.load().root, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    deadline = time.monotonic() + 10
    while worker.is_running() and worker.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE
