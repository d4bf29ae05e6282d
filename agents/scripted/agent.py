"""The scripted agent: supervised fine-tuning (SFT) first, then GRPO from the best checkpoint so far.

The example to start your own agent from. It uses only what every agent gets: the environment variables TASK,
MODEL_PATH, DATA_PATH, OUTPUT_DIR and GRADING_SERVER_URL, `./run_meta.json` (mode, seed, steps), the data folder and the
grading server (`POST /submit`, `GET /time`).

This file is the plan and the training with TRL. Beside it are:

    grading_client.py    submits checkpoints, and asks for the time left
    routes/              how each task is learned: what SFT imitates, what GRPO rolls out and rewards
    turn_advantages.py   GRPO that tells the good turns of an episode from the bad ones
    cpu_speed.py         trainers and an optimizer for small models on a CPU
"""

import json
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # idle threads soon give up the core, which other processes need
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
warnings.filterwarnings("ignore")

import datasets
import torch
import transformers
from cpu_speed import FastGRPOTrainer, FastSFTTrainer, MuonAndAdam
from grading_client import Grader, log
from routes import CORES, IGNORED_LABEL, ON_GPU, Example, Grpo, load_route
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, SFTConfig, SFTTrainer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()

SMALL_MODEL = 100_000_000
"""Models with fewer parameters learn at rates that would ruin a larger one."""
SHORT_S = 300
"""With less time than this, SFT gets most of it."""
TWO_ROUNDS_S = 600
"""With at least this much time left for GRPO, a second round starts from the best checkpoint."""
MAX_LENGTH = 1536
"""Maximum number of tokens of an SFT example; the rest is cut off."""
SFT_CHARACTERS = 3_200 * min(2, CORES)
"""Characters in an SFT batch of a small model: many small steps teach it more than a few large ones, but smaller
batches would leave a second core idle."""


# The plan.


@dataclass
class Best:
    """The checkpoint with the highest score so far."""

    checkpoint: Path
    score: float


def main() -> None:
    """Trains, submits after each stage, and ends before the deadline."""
    meta = json.loads(Path("run_meta.json").read_text())
    mode, seed = meta["mode"], int(meta["seed"])
    route = load_route(os.environ["TASK"], Path(os.environ["DATA_PATH"]), seed)
    grader = Grader(os.environ["GRADING_SERVER_URL"])
    base = Path(os.environ["MODEL_PATH"])
    transformers.set_seed(seed)
    examples = route.examples()
    parameters = sum(weights.numel() for weights in load(base)[0].parameters())
    output, steps = Path(os.environ["OUTPUT_DIR"]), meta.get("steps")
    recipe = Recipe(examples, route.grpo(), output, seed, small=parameters < SMALL_MODEL, steps=steps)
    reserve_s = max(6.0, 0.03 * grader.remaining_s())  # to save and submit the last checkpoint
    log(f"{parameters:,} parameters, {len(examples)} examples, mode {mode}, {grader.remaining_s():.0f} s left")

    best = Best(base, -1.0)
    if mode != "rl-only":
        share = 1.0 if steps else sft_share(mode, grader.remaining_s(), recipe.rollouts)
        checkpoint = recipe.sft(base, "sft", share * (grader.remaining_s() - reserve_s))
        submit_and_compare(grader, best, checkpoint, "SFT")
    if mode != "sft-only":
        reinforce(grader, best, recipe, reserve_s)
    log(f"done: best {best.checkpoint.name} with {best.score}, {grader.remaining_s():.0f} s left")


def sft_share(mode: str, remaining_s: float, rollouts: Grpo) -> float:
    """Returns SFT's share of the time left: in a short time imitation gets further than reinforcement learning."""
    if mode == "sft-only":
        return 1.0
    return 0.85 if remaining_s < SHORT_S else rollouts.sft_share


def reinforce(grader: Grader, best: Best, recipe: "Recipe", reserve_s: float) -> None:
    """Runs rounds of GRPO, each from the best checkpoint; a round without progress halves the learning rate."""
    rate = 5e-4 if recipe.small else 1e-6
    rounds = 1 if recipe.steps or grader.remaining_s() < TWO_ROUNDS_S else 2
    for number in range(1, rounds + 1):
        seconds = (grader.remaining_s() - reserve_s) / (rounds + 1 - number)
        if seconds < 5:
            break
        checkpoint = recipe.grpo(best.checkpoint, f"grpo-{number}", seconds, rate)
        if not submit_and_compare(grader, best, checkpoint, "GRPO"):
            rate /= 2


def submit_and_compare(grader: Grader, best: Best, checkpoint: Path, method: str) -> bool:
    """Submits a checkpoint that was trained from the best one, and returns whether it is the new best."""
    score = grader.submit(checkpoint, method, parent=best.checkpoint.name)
    if score is None or score <= best.score:
        return False
    best.checkpoint, best.score = checkpoint, score
    return True


# Training.


@dataclass
class Recipe:
    """What is trained, and how: everything that SFT and GRPO have in common."""

    examples: list[Example]
    rollouts: Grpo
    output: Path
    seed: int
    small: bool
    steps: int | None = None
    """So many steps of SFT and of GRPO, whatever time they take, so that the seed decides the result; None: by time."""

    def sft(self, start: Path, name: str, seconds: float) -> Path:
        """Fine-tunes the model at `start` on the examples, and returns the folder of the new checkpoint."""
        clock = StopInTime(name, seconds, self.steps)
        batch_size, accumulation = (self.small_sft_batch_size(), 1) if self.small else (8, 4)
        config = SFTConfig(
            **self.common_settings(batch_size, accumulation),
            train_sampling_strategy="group_by_length",
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        model, tokenizer = load(start)
        optimizer = MuonAndAdam(model, 3e-3) if self.small else adam(model, 1e-5)
        return self.train(
            SFTTrainer if ON_GPU else FastSFTTrainer,
            model,
            tokenizer,
            optimizer,
            clock,
            args=config,
            train_dataset=datasets.Dataset.from_list(tokenize(self.examples, tokenizer)),
        )

    def small_sft_batch_size(self) -> int:
        """Returns the number of examples in a batch of a small model, by their mean length."""
        characters = sum(len(part.text) for example in self.examples for part in example) / len(self.examples)
        return max(4, min(32, round(SFT_CHARACTERS / characters)))

    def grpo(self, start: Path, name: str, seconds: float, rate: float) -> Path:
        """Reinforces the model at `start` by the task's rewards, and returns the folder of the new checkpoint."""
        clock = StopInTime(name, seconds, self.steps)
        batch_size, accumulation = (32, 2 * CORES) if self.small else (8, 8)
        config = GRPOConfig(
            **self.common_settings(batch_size, accumulation),
            num_generations=8,
            temperature=1.0,
            beta=0.0,
            **self.rollouts.config,
        )
        model, tokenizer = load(start)
        optimizer = adam(model, rate)  # not Muon, which scales up a policy gradient that is mostly noise
        return self.train(FastGRPOTrainer, model, tokenizer, optimizer, clock, args=config, **self.rollouts.trainer)

    def common_settings(self, batch_size: int, accumulation: int) -> dict[str, Any]:
        """Returns the arguments that SFTConfig and GRPOConfig share."""
        return {
            "output_dir": str(self.output / "trainer"),
            "per_device_train_batch_size": batch_size,
            "gradient_accumulation_steps": accumulation,
            "max_steps": self.steps or 1_000_000,  # without `steps`, `StopInTime` ends training
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

    def train(
        self,
        trainer_class: Any,
        model: Any,
        tokenizer: Any,
        optimizer: torch.optim.Optimizer,
        clock: "StopInTime",
        **arguments: Any,
    ) -> Path:
        """Trains until the clock says stop, and returns the folder of the new checkpoint."""
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, clock.learning_rate_factor)
        trainer = trainer_class(
            model=model,
            processing_class=tokenizer,
            callbacks=[clock],
            optimizers=(optimizer, schedule),
            **arguments,
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        checkpoint = self.output / clock.name
        trainer.model.save_pretrained(checkpoint)
        tokenizer.save_pretrained(checkpoint)
        log(f"{clock.name}: {trainer.state.global_step} steps in {time.monotonic() - clock.started:.0f} s")
        return checkpoint


class StopInTime(TrainerCallback):
    """Stops the trainer before a step that would end too late, and logs a few lines."""

    def __init__(self, name: str, seconds: float, steps: int | None = None) -> None:
        self.name = name
        self.seconds = seconds
        self.steps = steps
        self.started = time.monotonic()
        self.step_started = self.started
        self.next_line = 0.0

    def learning_rate_factor(self, step: int) -> float:
        """Returns a warm-up of ten steps, then a linear decay to zero, by the clock or over all steps."""
        done = step / self.steps if self.steps else (time.monotonic() - self.started) / self.seconds
        share_left = max(0.0, 1 - done)
        return min(1.0, (step + 1) / 10) * share_left

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Notes the time."""
        self.step_started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Stops training where a step as long as the last one would end too late."""
        now = time.monotonic()
        if now + (now - self.step_started) > self.started + self.seconds:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Logs loss and reward about five times."""
        shown = {key: logs[key] for key in ("loss", "reward") if logs and key in logs}
        if shown and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + self.seconds / 5
            figures = " ".join(f"{key} {float(value):.3f}" for key, value in shown.items())
            log(f"{self.name}: step {state.global_step} {figures}")


def load(path: Path) -> tuple[Any, Any]:
    """Loads a model and its tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.bfloat16 if ON_GPU else torch.float32)
    return model.to("cuda" if ON_GPU else "cpu"), AutoTokenizer.from_pretrained(path)


def adam(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    """Returns the optimizer of everything but SFT of a small model."""
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)


def tokenize(examples: list[Example], tokenizer: Any) -> list[dict[str, list[int]]]:
    """Tokenizes whole texts, as the model will meet them; the parts to learn and the end of the text have labels."""
    encoded = tokenizer(["".join(part.text for part in each) for each in examples], return_offsets_mapping=True)
    rows = []
    for example, tokens, offsets in zip(examples, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        learned = [part.learn for part in example for _ in part.text]
        labels = [
            token if start < end and learned[end - 1] else IGNORED_LABEL
            for token, (start, end) in zip(tokens, offsets, strict=True)
        ]
        end = [tokenizer.eos_token_id]
        rows.append({"input_ids": (tokens + end)[:MAX_LENGTH], "labels": (labels + end)[:MAX_LENGTH]})
    return rows


if __name__ == "__main__":
    main()
