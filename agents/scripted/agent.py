"""The scripted agent: supervised fine-tuning first, then GRPO from the best checkpoint so far, submitting as it goes.

The example to start your own agent from. It uses only what every agent gets: the environment variables TASK,
MODEL_PATH, DATA_PATH, OUTPUT_DIR and GRADING_SERVER_URL, `./run_meta.json` (mode, seed), the data folder, and the
grading server (`POST /submit`, `GET /time`). Another task needs one more `Route`, nothing else.
"""

import json
import os
import random
import re
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # threads that wait must not take the core that others work on
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
warnings.filterwarnings("ignore")

import datasets
import requests
import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()

ON_GPU = torch.cuda.is_available()
SMALL_MODEL = 100_000_000
"""Parameters below which a model learns at rates that would wreck a real one."""


# How a task is learned: one route per task.


@dataclass(frozen=True)
class Example:
    prompt: str
    completion: str
    gold: str


class Reward(Protocol):
    def __call__(self, completion: str, gold: str) -> float: ...


@dataclass(frozen=True)
class Route:
    read: Callable[[Path], list[Example]]
    reward: Reward
    max_new_tokens: int


def read_gsm8k(data: Path) -> list[Example]:
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    return [
        Example(
            prompt=f"Question: {row['question']}\nLet's think step by step\nAnswer:",
            completion="\n" + row["answer"],
            gold=final_number(row["answer"]) or "",
        )
        for row in rows
    ]


def final_number(text: str) -> str | None:
    """The number after ####, or else the last one: what the grader looks at."""
    marked = re.search(r"####\s*(-?[\d,.]*\d)", text)
    numbers = [marked.group(1)] if marked else re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else None


def same_number(completion: str, gold: str) -> float:
    return float(final_number(completion.partition("Question:")[0]) == gold)


ROUTES = {"gsm8k": Route(read_gsm8k, same_number, max_new_tokens=96 if not ON_GPU else 320)}


# The grading server, and the clock that it keeps.


class Grader:
    def __init__(self, url: str) -> None:
        self.url = url
        self.deadline = 0.0
        self.sync_clock()

    def sync_clock(self) -> None:
        """Grading may be free of charge, so the time left is asked for again after every submission."""
        self.deadline = time.monotonic() + float(requests.get(f"{self.url}/time", timeout=30).json()["remaining"])

    def remaining_s(self) -> float:
        return self.deadline - time.monotonic()

    def submit(self, checkpoint: Path) -> float | None:
        """The score, or None where the grader took no submission or could not score it."""
        reply = requests.post(f"{self.url}/submit", json={"model_path": str(checkpoint)}, timeout=None)
        self.sync_clock()
        if not reply.ok:
            log(f"{checkpoint.name}: refused ({reply.status_code}): {detail(reply)}")
            return None
        answer = reply.json()
        score: float | None = answer["score"]
        log(f"{checkpoint.name}: score {score} (baseline {answer['baseline_score']}, best {answer['best']['score']})")
        return score


def detail(reply: requests.Response) -> str:
    try:
        return str(reply.json()["detail"])
    except (ValueError, KeyError, TypeError):
        return reply.text[:200]


def log(message: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {message}", flush=True)


# Training.


class UntilDeadline(TrainerCallback):  # type: ignore[misc]
    """Stops the trainer on time and logs a line now and then."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self.started = time.monotonic()
        self.next_line = 0.0
        self.metrics: dict[str, float] = {}

    def share_left(self) -> float:
        return max(0.0, 1 - (time.monotonic() - self.started) / self.seconds)

    def learning_rate_factor(self, step: int) -> float:
        """A short warm-up, then linear decay to zero by the clock, whatever the machine's speed."""
        return min(1.0, (step + 1) / 10) * self.share_left()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = control.should_training_stop or self.share_left() <= 0

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        shown = {key: logs[key] for key in ("loss", "reward") if logs and key in logs}
        if shown and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + self.seconds / 5
            figures = " ".join(f"{key} {float(value):.3f}" for key, value in shown.items())
            log(f"{self.name}: step {state.global_step} {figures}")


@dataclass
class Trainee:
    """What is being trained, and how: everything that SFT and GRPO have in common."""

    route: Route
    examples: list[Example]
    output: Path
    seed: int
    small: bool

    def common(self, batch_size: int, accumulation: int) -> dict[str, Any]:
        return {
            "output_dir": str(self.output / "trainer"),
            "per_device_train_batch_size": batch_size,
            "gradient_accumulation_steps": accumulation,
            "max_steps": 1_000_000,  # the clock ends it
            "logging_steps": 5,
            "save_strategy": "no",
            "report_to": [],
            "disable_tqdm": True,
            "use_cpu": not ON_GPU,
            "bf16": ON_GPU,
            "gradient_checkpointing": not self.small,
            "dataloader_pin_memory": ON_GPU,
            "seed": self.seed,
        }

    def sft(self, start: Path, name: str, seconds: float) -> Path:
        rows = [{"prompt": e.prompt, "completion": e.completion} for e in self.examples]
        config = SFTConfig(**self.common(32 if self.small else 8, 1 if self.small else 4), max_length=1024)
        rate = 1e-3 if self.small else 1e-5
        dataset = datasets.Dataset.from_list(rows)
        return self.train(SFTTrainer, start, name, seconds, rate, args=config, train_dataset=dataset)

    def grpo(self, start: Path, name: str, seconds: float, rate: float) -> Path:
        rows = [{"prompt": e.prompt, "gold": e.gold} for e in self.examples]

        def reward(completions: list[str], gold: list[str], **_: Any) -> list[float]:
            return [self.route.reward(text, right) for text, right in zip(completions, gold, strict=True)]

        config = GRPOConfig(
            **self.common(64 if self.small else 8, 1 if self.small else 8),
            num_generations=8,
            max_completion_length=self.route.max_new_tokens,
            temperature=1.0,
            beta=0.0,
        )
        dataset = datasets.Dataset.from_list(rows)
        return self.train(
            GRPOTrainer, start, name, seconds, rate, args=config, train_dataset=dataset, reward_funcs=reward
        )

    def train(self, trainer_class: Any, start: Path, name: str, seconds: float, rate: float, **kwargs: Any) -> Path:
        clock = UntilDeadline(name, seconds)
        model, tokenizer = load(start)
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, clock.learning_rate_factor)
        trainer = trainer_class(
            model=model,
            processing_class=tokenizer,
            callbacks=[clock],
            optimizers=(optimizer, schedule),
            **kwargs,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        checkpoint = self.output / name
        trainer.model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        log(f"{name}: {trainer.state.global_step} steps in {time.monotonic() - clock.started:.0f} s")
        return checkpoint


def load(path: Path) -> tuple[Any, Any]:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16 if ON_GPU else torch.float32)
    return model.to("cuda" if ON_GPU else "cpu"), AutoTokenizer.from_pretrained(path)


# The plan.


@dataclass
class Best:
    checkpoint: Path
    score: float


def main() -> None:
    meta = json.loads(Path("run_meta.json").read_text())
    mode, seed = meta["mode"], int(meta["seed"])
    route = ROUTES[os.environ["TASK"]]
    grader = Grader(os.environ["GRADING_SERVER_URL"])
    base = Path(os.environ["MODEL_PATH"])
    transformers.set_seed(seed)
    examples = route.read(Path(os.environ["DATA_PATH"]))
    random.Random(seed).shuffle(examples)
    parameters = sum(weights.numel() for weights in load(base)[0].parameters())
    trainee = Trainee(route, examples, Path(os.environ["OUTPUT_DIR"]), seed, small=parameters < SMALL_MODEL)
    reserve_s = max(6.0, 0.03 * grader.remaining_s())  # to save and hand in the last checkpoint
    log(f"{parameters:,} parameters, {len(examples)} examples, mode {mode}, {grader.remaining_s():.0f} s left")

    best = Best(base, -1.0)
    if mode != "rl-only":
        share = 0.4 if mode == "free" else 1.0
        consider(grader, best, trainee.sft(base, "sft", share * (grader.remaining_s() - reserve_s)))
    if mode != "sft-only":
        reinforce(grader, best, trainee, reserve_s)
    log(f"done: best {best.checkpoint.name} with {best.score}, {grader.remaining_s():.0f} s left")


def reinforce(grader: Grader, best: Best, trainee: Trainee, reserve_s: float) -> None:
    """Rounds of GRPO, each from the best checkpoint; a round that made things worse halves the learning rate."""
    rate = 5e-4 if trainee.small else 1e-6
    rounds = 2 if grader.remaining_s() < 600 else 6
    for number in range(1, rounds + 1):
        seconds = (grader.remaining_s() - reserve_s) / (rounds + 1 - number)
        if seconds < 5:
            break
        if not consider(grader, best, trainee.grpo(best.checkpoint, f"grpo-{number}", seconds, rate)):
            rate /= 2


def consider(grader: Grader, best: Best, checkpoint: Path) -> bool:
    """Submit; keep the checkpoint where it scores best so far."""
    score = grader.submit(checkpoint)
    if score is None or score <= best.score:
        return False
    best.checkpoint, best.score = checkpoint, score
    return True


if __name__ == "__main__":
    main()
