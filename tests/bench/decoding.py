"""Decoding: prompts that begin alike, types of numbers, and a real model beside vLLM."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings
from a2rl.models.base_model import resolve_model
from a2rl.sampling import Completion, Prompt, Sampler, SamplingParams, as_prompt, open_sampler
from a2rl.sampling.engine_params import Dtype
from a2rl.sampling.transformers_backend import TransformersSampler
from a2rl.task_api.catalog import load_task
from a2rl.task_api.data import ensure_data
from tasks.gsm8k.final_number import QUESTION
from tasks.gsm8k.prompts import prompt
from tests.bench.measured import Row, mirror_of

PROMPTS = 64
SHOTS = 24
"""Worked examples before each prompt of the mini data, about as many tokens as the real ones have."""
REAL_MODEL = "smollm2-135m"
TYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


class Answers(NamedTuple):
    """What a sampler wrote, and in what time."""

    texts: list[Completion]
    seconds: float

    def against(self, other: "Answers") -> str:
        """Returns how many times as long the other one took, and how many texts differ."""
        different = sum(mine.text != theirs.text for mine, theirs in zip(self.texts, other.texts, strict=True))
        return f"{other.seconds / self.seconds:.1f}x, {different} texts differ"

    def speed(self) -> str:
        """Returns the number of tokens per second."""
        tokens = sum(completion.tokens for completion in self.texts)
        return f"{tokens / self.seconds:.0f} tokens per second ({tokens} in {self.seconds:.0f} s)"


def shared_prefix(settings: Settings, folder: Path) -> Iterator[Row]:
    """Compares reading what prompts begin with once, in two types of numbers, with reading it for each prompt."""
    questions = read_jsonl(ensure_data("gsm8k", "mini", None, settings) / "hidden" / "eval.jsonl")
    shots = questions[-SHOTS:]
    prompts = [as_prompt(prompt(row["question"], shots, chat=False)) for row in questions[:PROMPTS]]
    model, params = resolve_model("tiny", settings), SamplingParams(max_new_tokens=32)
    for dtype in TYPES:
        alone, together = (_by_transformers(model, dtype, sharing, prompts, params) for sharing in (False, True))
        yield Row(
            f"answering {PROMPTS} prompts with {SHOTS} shots in {dtype}: read for each / read once",
            together.against(alone),
        )


def real_model(settings: Settings, folder: Path) -> Iterator[Row]:
    """Answers real items of gsm8k with a real model: in the same ways, and by vLLM if it is installed.

    It downloads the model if it is not there.
    """
    hidden = ensure_data("gsm8k", "full", mirror_of("gsm8k", settings), settings) / "hidden"
    shots = read_jsonl(hidden / "shots.jsonl")
    questions = [row["question"] for row in read_jsonl(hidden / "eval.jsonl")[:PROMPTS]]
    prompts = [as_prompt(prompt(question, shots, chat=True)) for question in questions]
    limits = load_task("gsm8k", settings.root).variant("full").limits
    params = SamplingParams(max_new_tokens=limits.max_new_tokens, stop=(QUESTION,))
    model = resolve_model(REAL_MODEL, settings)
    name = f"answering {PROMPTS} items of gsm8k with {REAL_MODEL}"
    ours: dict[Dtype, Answers] = {}
    for dtype in TYPES:
        ours[dtype] = _by_transformers(model, dtype, True, prompts, params)
        yield Row(f"{name} in {dtype}", ours[dtype].speed())
        alone = _by_transformers(model, dtype, False, prompts, params)
        yield Row(f"the same in {dtype}: shots read for each / read once", ours[dtype].against(alone))
    yield Row("the same: float32 / bfloat16", ours["bfloat16"].against(ours["float32"]))
    for dtype in TYPES if settings.vllm_python.is_file() else ():
        with open_sampler(model, "vllm", dtype=dtype) as sampler:
            by_vllm = _answers(sampler, prompts, params)
        yield Row(f"the same in {dtype}, by vLLM", by_vllm.speed())
        yield Row(f"the same in {dtype}: transformers / vLLM", by_vllm.against(ours[dtype]))


def _by_transformers(
    model: Path, dtype: Dtype, sharing: bool, prompts: Sequence[Prompt], params: SamplingParams
) -> Answers:
    sampler = TransformersSampler(model, False, lambda: None, dtype, sharing)
    answers = _answers(sampler, prompts, params)
    sampler.close()
    return answers


def _answers(sampler: Sampler, prompts: Sequence[Prompt], params: SamplingParams) -> Answers:
    started = time.perf_counter()
    texts = sampler.generate(prompts, params)
    return Answers(texts, time.perf_counter() - started)
