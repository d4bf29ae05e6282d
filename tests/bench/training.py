"""Training: the scripted agent's passes beside TRL's own and plain PyTorch, and its choices beside others."""

import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import torch

from a2rl.core.files import read_jsonl
from a2rl.core.settings import Settings
from a2rl.models.base_model import resolve_model
from a2rl.task_api.data import ensure_data
from tasks.gsm8k.prompts import prompt, solution
from tests.bench.measured import Row, mirror_of, seconds

ON_GPU = torch.cuda.is_available()
MODELS = {"smollm2-135m": 32 if ON_GPU else 4, "qwen2.5-coder-0.5b": 16 if ON_GPU else 2}
"""The texts of a batch, which are also the rollouts of a group: as many as the logits of all tokens, which the others
compute, leave room for in 24 GB, or on a GPU in 80 GB."""
REPEATED = 2
"""Passes of each kind; the faster one counts."""


class Choice(NamedTuple):
    """How a model imitates."""

    rate: float | None = None
    """Of AdamW; None: the rate and the optimizer that the agent takes for the model."""
    adapter: bool = False
    """Whether a LoRA adapter is trained instead of all weights."""
    dtype: torch.dtype = torch.float32
    """The type of the trained weights. A model that is not very small computes in bfloat16 where that is fast."""
    examples: float = 0.25
    """The share of the texts that begin with the examples that the grader shows."""
    in_chat: bool = True
    """Whether the texts have the model's chat template where the grader asks with it."""


EXAMPLES = {"examples before no game": Choice(examples=0.0), "examples before each game": Choice(examples=1.0)}
CHOICES = {
    ("smollm2-135m", "alfworld"): {
        "as the agent does: all weights, float32, rate 3e-4, examples before a quarter of the games": Choice(),
        "rate 1e-5": Choice(rate=1e-5),
        "LoRA of rank 64, rate 3e-3": Choice(adapter=True),
        "weights in bfloat16": Choice(dtype=torch.bfloat16),
        **EXAMPLES,
    },
    ("tiny", "alfworld"): {
        "as the agent does: Muon, rate 3e-3, examples before a quarter of the games": Choice(),
        "AdamW, rate 3e-3": Choice(rate=3e-3),
        **EXAMPLES,
    },
    ("smollm2-135m", "gsm8k"): {
        "as the agent does: in the chat template": Choice(examples=0.1),
        "without the chat template": Choice(examples=0.1, in_chat=False),
    },
}
TRAINED_S = 300
"""How long each trains, without loading and measuring."""
ITEMS, HELD_OUT = {"smollm2-135m": 480, "tiny": 3000}, {"smollm2-135m": 24, "tiny": 128}
"""Items to imitate, and others to measure on: as many as the model has time for."""


def training_speed(settings: Settings, folder: Path) -> Iterator[Row]:
    """Times a pass forward and back over worked problems of gsm8k with four examples, as SFT, and over the rollouts of
    one prompt, as GRPO. Needs the models; they are downloaded if they are not there."""
    sys.path.insert(0, str(settings.root / "agents" / "scripted"))
    agent = importlib.import_module("training")
    from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

    visible = ensure_data("gsm8k", "full", mirror_of("gsm8k", settings), settings) / "visible"
    sys.path.append(str(visible))  # the decoder, which agents get with the data
    shots, rows = (read_jsonl(visible / name) for name in ("shots.jsonl", "train.jsonl"))
    for name, count in MODELS.items():
        trained = agent.load(resolve_model(name, settings))
        model, tokenizer = trained.model, trained.tokenizer

        def asked(row: dict[str, Any], tokenizer: Any = tokenizer) -> list[int]:
            chat = prompt(row["question"], shots, chat=True)
            return list(tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False))

        prompts = [asked(row) for row in rows[10 : 10 + count]]
        answers = [[*tokenizer(solution(row))["input_ids"], tokenizer.eos_token_id] for row in rows[10 : 10 + count]]
        texts = [before + after for before, after in zip(prompts, answers, strict=True)]
        labels = [[-100] * len(before) + after for before, after in zip(prompts, answers, strict=True)]
        batch = {
            "input_ids": _padded(texts, 0),
            "attention_mask": _padded([[1] * len(text) for text in texts], 0),
            "labels": _padded(labels, -100),
        }
        common: dict[str, Any] = {"output_dir": str(folder), "report_to": [], "use_cpu": not ON_GPU, "bf16": False}
        given: dict[str, Any] = {"model": model, "processing_class": tokenizer}
        config = SFTConfig(dataset_kwargs={"skip_prepare_dataset": True}, **common)
        data = _dataset([{"input_ids": texts[0], "labels": labels[0]}])
        theirs, ours = (kind(args=config, train_dataset=data, **given) for kind in (SFTTrainer, agent.Sft))
        learned = sum(map(len, answers))
        plain = _fastest(model, _plain_loss, model, batch)
        by_trl = _fastest(model, _loss, theirs, batch)
        by_us = _fastest(model, _loss, ours, batch)
        tokens = sum(map(len, texts))
        yield Row(f"{name}: a pass of SFT over {tokens} tokens, {learned} of them learned", f"{by_us:.2f} s")
        yield Row("the same: plain PyTorch / the agent", f"{plain / by_us:.1f}x")
        yield Row("the same: TRL's SFTTrainer / the agent", f"{by_trl / by_us:.1f}x")

        group = {
            "prompt_ids": torch.tensor([prompts[0]] * count),
            "prompt_mask": torch.ones(count, len(prompts[0]), dtype=torch.long),
            "completion_ids": _padded(answers, 0),
            "completion_mask": _padded([[1] * len(answer) for answer in answers], 0),
            "advantages": torch.tensor([1.0, -1.0] * (count // 2)),
            "num_items_in_batch": torch.tensor(learned),
        }
        rewards = {"reward_funcs": lambda completions, **_: [0.0] * len(completions)}
        grpo = GRPOConfig(temperature=1.0, per_device_train_batch_size=count, num_generations=count, beta=0.0, **common)
        prompted = _dataset([{"prompt": "a"}])
        theirs, ours = (
            kind(args=grpo, train_dataset=prompted, **given, **rewards) for kind in (GRPOTrainer, agent.Grpo)
        )
        by_trl = _fastest(model, _loss, theirs, group)
        by_us = _fastest(model, _loss, ours, group)
        yield Row(f"{name}: a pass of GRPO over {count} rollouts of one prompt", f"{by_us:.2f} s")
        yield Row("the same: TRL's GRPOTrainer / the agent", f"{by_trl / by_us:.1f}x")


def training_choices(settings: Settings, folder: Path) -> Iterator[Row]:
    """Imitates games of the real ALFWorld and solutions of gsm8k, each time with another choice and for the same time,
    and measures on held-out items as the grader asks. Needs the models and the data."""
    tasks = {task for _, task in CHOICES}
    data = {task: ensure_data(task, "full", mirror_of(task, settings), settings) / "visible" for task in tasks}
    sys.path[:0] = [str(settings.root / "agents" / "scripted"), *map(str, data.values())]
    modules: Iterator[Any] = map(importlib.import_module, ("training", "playing", "routes", "agent"))
    training, playing, routes, agent = modules
    for (name, task), choices in CHOICES.items():
        path = resolve_model(name, settings)
        first = training.load(path)
        small = first.parameters < training.SMALL_MODEL
        meta = {"seed": 0, "options": {"prompts": "repaired"}, "max_steps": 50, "max_new_tokens": 256}
        context = first.model.config.max_position_embeddings
        setting = routes.Setting(data[task], first.tokenizer, context, meta | {"chat_template_kwargs": {}}, small)
        route = routes.load_route(task, setting)
        count = HELD_OUT[name]
        held_out, names = route.names[:count], route.names[count : count + ITEMS[name]]
        graded = _texts(route, held_out, Choice(examples=1.0), playing.texts_of, setting)
        for what, choice in choices.items():
            rows = _texts(route, names, choice, playing.texts_of, setting)
            os.environ["ADAPTER"] = str(int(choice.adapter))
            with Path(os.devnull).open("w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
                trained = training.load(path)
                if not choice.adapter:
                    trained.model.to(choice.dtype)
                rate = choice.rate or (agent.RATE_IF_SMALL if small else agent.Plan.rate(trained))
                is_muon = small and choice.rate is None
                optimizer = (training.MuonAndAdam if is_muon else training.adam)(trained.model, rate)
                clock = training.TrainUntil("sft", TRAINED_S)
                size = agent.texts_a_step(rows, small)
                arguments = {"output_dir": str(folder / task / what), "per_device_train_batch_size": size, "seed": 0}
                training.sft(trained, optimizer, clock, arguments, rows)
                won = sum(playing.Player(route, setting).measure(trained, held_out, math.inf).values())
            in_half = training.computes_in_bfloat16(trained.parameters)
            loss = sum(_learned_loss(trained.model, row, in_half) for row in graded) / len(graded)
            yield Row(f"{task}, {name}, {what}", f"loss {loss:.3f}, {won:.0f} of {count} held-out items")


def _texts(route: Any, names: list[str], choice: Choice, texts_of: Any, setting: Any) -> list[dict[str, list[int]]]:
    """Returns texts to imitate. Afterwards, the route asks as the grader does."""
    route.with_examples, route.chat = choice.examples, setting.chat and choice.in_chat
    rows: list[dict[str, list[int]]] = texts_of([each for each in map(route.example, names) if each], setting)
    route.chat = setting.chat
    return rows


@torch.no_grad()
def _learned_loss(model: Any, row: dict[str, list[int]], in_half: bool) -> float:
    """Returns the mean loss of the learned tokens of a text."""
    tokens, labels = (torch.tensor([row[column]], device=model.device) for column in ("input_ids", "labels"))
    with torch.autocast(model.device.type, torch.bfloat16, enabled=in_half):
        return float(model(input_ids=tokens, labels=labels).loss)


def _padded(rows: list[list[int]], value: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [value] * (longest - len(row)) for row in rows])


def _dataset(rows: list[dict[str, Any]]) -> Any:
    from datasets import Dataset

    return Dataset.from_list(rows)


def _loss(trainer: Any, batch: dict[str, Any]) -> torch.Tensor:
    trainer.current_gradient_accumulation_steps = 1
    there = {name: value.to(trainer.model.device) for name, value in batch.items()}
    loss: torch.Tensor = trainer.compute_loss(trainer.model, there, num_items_in_batch=None)
    return loss


def _plain_loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    loss: torch.Tensor = model(**{name: value.to(model.device) for name, value in batch.items()}).loss
    return loss


def _fastest(model: Any, loss: Callable[..., torch.Tensor], *given: Any) -> float:
    """Returns the seconds of a pass, computed as the agent does."""
    computes_in_bfloat16 = importlib.import_module("training").computes_in_bfloat16

    def forward_and_back() -> None:
        model.zero_grad()
        with torch.autocast(model.device.type, torch.bfloat16, enabled=computes_in_bfloat16(model.num_parameters())):
            value = loss(*given)
        torch.autograd.backward(value)
        if ON_GPU:
            torch.cuda.synchronize()

    return min(seconds(forward_and_back) for _ in range(REPEATED))
