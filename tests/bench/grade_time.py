"""How long grades take: predicted by the product's formula, and measured with vLLM."""

import json
import os
import random
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, cast

from tokenizers import Tokenizer

from a2rl.core.settings import Settings
from a2rl.grading.prompt_check import CountingSampler
from a2rl.models.base_model import resolve_model
from a2rl.models.checkpoint import unpacked_bytes
from a2rl.run.rules import TYPICAL_SUBMISSIONS
from a2rl.sampling import (
    Completion,
    Conversation,
    Prompt,
    Sampler,
    SamplerAround,
    SamplingParams,
    T,
    open_sampler,
    translated,
)
from a2rl.sampling.engine_params import NUMBER_BYTES, Dtype, EngineMemory, VllmParams
from a2rl.sampling.grade_time import DEVICES, Device, Work, time_of_grade
from a2rl.task_api.catalog import load_grader, load_task
from a2rl.task_api.data import ensure_data
from tests.bench.measured import Row, mirror_of

MODEL = "smollm2-135m"
DTYPE: Dtype = "bfloat16"
GRADES = {"gsm8k": 24, "humaneval": 32, "alfworld": 8}
"""Tasks with their real data, and how many items are graded."""
BLOCK = 128
"""Tokens of a block of vLLM's cache on a processor."""
BATCH, STEPS, CONTEXT = 24, 48, 600
BUDGET_S = 12 * 3600
NO_TIME = sys.float_info.max
"""In a second, of what takes no time here."""
WORDS = "time year people way day man thing woman life child world school state family student".split()  # noqa: SIM905


SUITE = {
    "gsm8k": Work(items=1_319, prompt=1_456, fresh=72, answer=200, longest=512),
    "humaneval": Work(items=82, prompt=187, fresh=157, answer=220, longest=512),
    "alpacaeval": Work(items=805, prompt=37, fresh=35, answer=350, longest=512),
    "alfworld": Work(items=134, prompt=1_337, fresh=162, turns=25, later=225, answer=250, longest=750),
    "webshop": Work(items=100, prompt=274, fresh=179, turns=10, later=2_500, answer=150, longest=750),
    "deepsearchqa": Work(items=200, prompt=300, fresh=150, turns=5, later=2_400, answer=640, longest=1_536),
}
"""The tasks of the paper. The prompts of all but deepsearchqa were counted in SmolLM2's tokens; answers, turns and what
episodes add are assumed."""
QWEN: dict[str, tuple[int, dict[str, int], VllmParams]] = {
    "0.5B": (494_000_000, {"num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
                           "hidden_size": 896, "intermediate_size": 4_864, "vocab_size": 151_936}, VllmParams()),
    "7B": (7_616_000_000, {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
                           "hidden_size": 3_584, "intermediate_size": 18_944, "vocab_size": 152_064}, VllmParams()),
    "32B": (32_760_000_000, {"num_hidden_layers": 64, "num_attention_heads": 40, "num_key_value_heads": 8,
                             "hidden_size": 5_120, "intermediate_size": 27_648, "vocab_size": 152_064},
            VllmParams(max_model_len=8_192, kv_cache_memory_bytes=8 << 30)),
}  # fmt: skip
"""Qwen2.5: parameters, configuration, and options with which it fits into 80 GB."""


def paper_suite(settings: Settings, folder: Path) -> Iterator[Row]:
    """Estimates the grades of the paper's suite on an H100: nothing is measured."""
    for size, (parameters, config, params) in QWEN.items():
        model = folder / size
        model.mkdir()
        (model / "config.json").write_text(json.dumps({"max_position_embeddings": 32_768, "dtype": DTYPE, **config}))
        with (model / "model.safetensors").open("wb") as weights:
            weights.truncate(parameters * NUMBER_BYTES[DTYPE])
        run_s = []
        for task, work in SUITE.items():
            limits = load_task(task, settings.root).variant("full").limits
            memory = EngineMemory.of(
                model, unpacked_bytes(model), params, DTYPE, limits.max_new_tokens, limits.max_steps
            )
            grade = time_of_grade(work, memory, DTYPE, DEVICES["H100"])
            run_s.append(grade.total_s * TYPICAL_SUBMISSIONS)
            parts = f"load {grade.load_s:.0f}, read {grade.read_s:.0f}, write {grade.write_s:.0f}"
            share = f"{run_s[-1] / BUDGET_S:.1%} of 12 h for {TYPICAL_SUBMISSIONS}"
            yield Row(f"{task}, {size}", f"{grade.total_s:.0f} s ({parts}; {grade.at_once} at once), {share}")
        yield Row(f"all tasks, {size}", f"{mean(run_s) / BUDGET_S:.1%} of the suite's 12 h; memory: {memory}")


class Counted(SamplerAround):
    """A sampler that counts tokens, and the seconds that it generates."""

    def __init__(self, sampler: Sampler, tokenizer: Tokenizer) -> None:
        self._sampler, self.seconds = sampler, 0.0
        self._first = CountingSampler(tokenizer, 0, has_chat_template=sampler.has_chat_template)
        self._said: list[list[Completion]] = []

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        said: list[list[Completion]] = [[] for _ in conversations]
        self._said += said
        noted = [translated(each, self._noting(place)) for each, place in zip(conversations, said, strict=True)]
        started = time.perf_counter()
        results = self._sampler.converse(noted, params)
        self.seconds += time.perf_counter() - started
        return results

    def _noting(self, said: list[Completion]) -> Callable[[Prompt], Generator[Prompt, Completion, Completion]]:
        def ask(prompt: Prompt) -> Generator[Prompt, Completion, Completion]:
            if not said:
                self._first.prompts.append(prompt)
            completion = yield prompt
            said.append(completion)
            return completion

        return ask

    @property
    def work(self) -> Work:
        """What was asked."""
        asked = self._first.work
        written = [sum(each.tokens for each in said) for said in self._said]
        first = [said[0].prompt_tokens for said in self._said]
        grown = [said[-1].prompt_tokens + said[-1].tokens - said[0].prompt_tokens for said in self._said]
        by_template = mean(first) - asked.prompt
        return Work(
            items=len(written),
            prompt=mean(first),
            fresh=asked.fresh + by_template,
            turns=mean(map(len, self._said)),
            later=max(0.0, mean(grown) - mean(written)),
            answer=mean(written),
            longest=max(written),
        )


class Pace(NamedTuple):
    """What this machine reaches with texts that have nothing to do with a task, in seconds."""

    read_token: float
    write_token: float
    look_back: float
    """For each token of the context of a token."""
    look_back_shared: float
    """The same where all contexts begin alike."""
    step: float
    turn: float

    @classmethod
    def of(cls, sampler: Sampler) -> "Pace":
        """Measures a sampler."""
        words = random.Random(time.time_ns())

        def texts(count: int, length: int) -> list[str]:
            return [" ".join(words.choices(WORDS, k=length)) for _ in range(count)]

        def run(prompts: Sequence[str], tokens: int) -> tuple[float, list[Completion]]:
            started = time.perf_counter()
            written = sampler.generate(prompts, SamplingParams(max_new_tokens=tokens))
            return time.perf_counter() - started, written

        def step(prompts: Sequence[str]) -> tuple[float, float]:
            """Returns the seconds of a step, and how many texts are in progress. The prompts are in the cache."""
            run(prompts, 1)
            first_s, _ = run(prompts, 1)
            all_s, written = run(prompts, 1 + STEPS)
            steps = max(each.tokens for each in written) - 1
            return (all_s - first_s) / steps, (sum(each.tokens for each in written) - len(written)) / steps

        read_s, read = run(texts(12, 400), 1)
        read_token = read_s / sum(each.prompt_tokens for each in read)
        turns = [run(each, 1) for each in (texts(1, 5) for _ in range(10))]
        turn = mean(each_s - written[0].prompt_tokens * read_token for each_s, written in turns)
        one_s, _ = step(texts(1, 5))
        short_s, short = step(texts(BATCH, 5))
        write_token = (short_s - one_s) / (short - 1)

        def look_back(prompts: Sequence[str]) -> float:
            long_s, long = step(prompts)
            return (long_s - one_s - (long - 1) * write_token) / long / CONTEXT

        [alike] = texts(1, CONTEXT)
        apart_s, shared_s = look_back(texts(BATCH, CONTEXT)), look_back([f"{alike} {own}" for own in texts(BATCH, 5)])
        return cls(read_token, write_token, apart_s, shared_s, one_s - write_token, turn)

    def device(self, memory: EngineMemory) -> Device:
        """Returns the constants. With one model, reading the weights cannot be told from the rest of a step."""
        operations = 2 * memory.weights_bytes / NUMBER_BYTES[DTYPE]
        token_bytes = memory.cache_bytes / memory.cache_tokens
        return Device(
            read_flops=operations / self.read_token,
            write_flops=operations / self.write_token,
            weights_per_s=NO_TIME,
            cache_per_s=token_bytes / self.look_back,
            shared_per_s=token_bytes / self.look_back_shared,
            step_s=self.step,
            turn_s=self.turn,
            block=BLOCK,
            load_per_s=NO_TIME,
        )


def grade_time(settings: Settings, folder: Path) -> Iterator[Row]:
    """Predicts three grades with the constants of this machine, and measures them; nothing without vLLM."""
    if not settings.vllm_python.is_file():
        return
    model = resolve_model(MODEL, settings)
    memory = EngineMemory.of(model, unpacked_bytes(model), VllmParams(), DTYPE, 512, 1)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    with open_sampler(model, "vllm", dtype=DTYPE, memory=memory) as sampler:
        before = Pace.of(sampler)
        for task, items in GRADES.items():
            counted = Counted(sampler, tokenizer)
            hidden = ensure_data(task, "full", mirror_of(task, settings), settings) / "hidden"
            grader, definition = cast(Any, load_grader(task)), load_task(task, settings.root)
            limits = definition.variant("full").limits
            grader.grade(counted, hidden, grader.item_ids(hidden)[:items], limits, definition.choose({}))
            after = Pace.of(sampler)
            device = Pace(*map(mean, zip(before, after, strict=True))).device(memory)
            predicted = time_of_grade(counted.work, memory, DTYPE, device)
            before = after
            ratio, load = predicted.total_s / counted.seconds, os.getloadavg()[0]
            yield Row(
                f"{items} items of {task}, {MODEL}, {DTYPE}: predicted / measured",
                f"{predicted.total_s:.0f} s / {counted.seconds:.0f} s = {ratio:.2f}, load {load:.1f}",
            )
            yield Row("  its tokens, and the constants", f"{counted.work}; {device}")
