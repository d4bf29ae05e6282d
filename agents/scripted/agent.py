"""The scripted agent: supervised fine-tuning first, then GRPO from the best checkpoint so far, submitting as it goes.

The example to start your own agent from. It uses only what every agent gets: the environment variables TASK,
MODEL_PATH, DATA_PATH, OUTPUT_DIR and GRADING_SERVER_URL, `./run_meta.json` (mode, seed), the data folder, and the
grading server (`POST /submit`, `GET /time`). How each task is learned is in routes/.
"""

import json
import os
import time
import warnings
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # threads that wait for long must not take the core that others need
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
warnings.filterwarnings("ignore")

import datasets
import requests
import torch
import transformers
from routes import CORES, ON_GPU, Example, Grpo, route_to
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()

SMALL_MODEL = 100_000_000
"""Parameters below which a model learns at rates that would wreck a real one."""
SFT_CHARACTERS = 3_200 * min(2, CORES)
"""In a step of SFT, for a small model: many small steps teach it more than few large ones, but so small that a second
core has nothing to do."""
SMALL_RATE = 3e-3
SHORT_S = 300
TWO_ROUNDS_S = 600
"""With so much left for GRPO, it starts a second time, from the best checkpoint."""
MAX_LENGTH = 1536
"""Tokens of a text at most; the rest is left out."""
TURN_WEIGHT, DISCOUNT = 5.0, 0.95
"""What the worth of a turn counts beside that of its episode, and by which a reward is worth less for each turn that it
is away."""


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
    """Stops the trainer before a step that would end too late, and logs a line now and then."""

    def __init__(self, name: str, seconds: float) -> None:
        self.name = name
        self.seconds = seconds
        self.started = time.monotonic()
        self.step_started = self.started
        self.next_line = 0.0

    def share_left(self) -> float:
        return max(0.0, 1 - (time.monotonic() - self.started) / self.seconds)

    def learning_rate_factor(self, step: int) -> float:
        """A short warm-up, then linear decay to zero by the clock, whatever the machine's speed."""
        return min(1.0, (step + 1) / 10) * self.share_left()

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.step_started = time.monotonic()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        now = time.monotonic()
        if now + (now - self.step_started) > self.started + self.seconds:
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        shown = {key: logs[key] for key in ("loss", "reward") if logs and key in logs}
        if shown and time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + self.seconds / 5
            figures = " ".join(f"{key} {float(value):.3f}" for key, value in shown.items())
            log(f"{self.name}: step {state.global_step} {figures}")


class MuonAndAdam(torch.optim.AdamW):
    """Muon (kellerjordan.github.io/posts/muon) for the weight matrices, AdamW for embeddings and norms.

    A small model learns several times as fast with it. `torch.optim.Muon` takes one matrix at a time, in bfloat16, and
    takes longer than the model on most processors.
    """

    SPEEDUP = 4
    """Muon's rate in units of AdamW's: its updates have a size of their own."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        named = list(model.named_parameters())
        self.matrices = [weights for name, weights in named if weights.dim() == 2 and "embed" not in name]
        self.momenta = [torch.zeros_like(weights) for weights in self.matrices]
        rest = [weights for name, weights in named if weights.dim() != 2 or "embed" in name]
        super().__init__(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        super().step()
        by_shape: dict[torch.Size, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for weights, momentum in zip(self.matrices, self.momenta, strict=True):
            if weights.grad is not None:
                momentum.lerp_(weights.grad, 0.05)
                by_shape.setdefault(weights.shape, []).append((weights, weights.grad.lerp(momentum, 0.95)))
        for (rows, columns), pairs in by_shape.items():
            rate = self.SPEEDUP * self.param_groups[0]["lr"] * max(1.0, rows / columns) ** 0.5
            for (weights, _), update in zip(pairs, orthogonal(torch.stack([each for _, each in pairs])), strict=True):
                weights.sub_(update, alpha=rate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        super().zero_grad(set_to_none)
        for weights in self.matrices:
            weights.grad = None


def adam(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.0)


def orthogonal(matrices: torch.Tensor) -> torch.Tensor:
    """The nearest orthogonal matrix of each [n, rows, columns], by five Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if tall else x


def logprobs_after(wanted: torch.Tensor, model: Any, temperature: float = 1.0, **inputs: torch.Tensor) -> torch.Tensor:
    """Log-probabilities [n, vocabulary] of what follows the `wanted` tokens [rows, tokens], n of them.

    On a CPU, TRL's own pass computes them after every token, and once more for the gradient.
    """
    hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[wanted])
    logprobs: torch.Tensor = (logits / temperature).log_softmax(-1)
    return logprobs


class LeanSFTTrainer(SFTTrainer):  # type: ignore[misc]
    """TRL's default loss from the tokens to learn only, without its metrics. For one process."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        if ON_GPU:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels = inputs["labels"].roll(-1, 1)
        labels[:, -1] = -100
        learned = labels != -100
        text = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        logprobs = logprobs_after(learned, model, **text)
        loss = torch.nn.functional.nll_loss(logprobs, labels[learned], reduction="sum")
        return loss / (learned.sum() if num_items_in_batch is None else num_items_in_batch)


class LeanGRPOTrainer(GRPOTrainer):  # type: ignore[misc]
    """Leaves out of the model's pass what teaches nothing: episodes with no advantage, which are a good half of the
    batch once most games are won, most of the padding, and the logits after tokens that the model did not write.

    No change to the loss: its divisor, `num_items_in_batch`, counts all tokens (TRL's default `loss_type`). Where
    rollouts say in which states turns were taken, the advantage of an episode's tokens differs by turn: see `of_turns`.
    """

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        scored: dict[str, Any] = super()._generate_and_score_completions(inputs)
        if "states" in inputs[0]:
            of_episodes = scored["advantages"][:, None]
            # Where all of a group's episodes are worth the same there is nothing to learn but to hurry.
            turns = of_turns(inputs, scored["completion_mask"] * scored["tool_mask"]) * (of_episodes != 0)
            scored["advantages"] = of_episodes + TURN_WEIGHT * turns
        return scored

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        before = self._buffered_inputs
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is before:
            return inputs
        self._buffered_inputs = lean(self._buffered_inputs)
        first: dict[str, Any] = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return first

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["completion_mask"]
        self.written = (mask * inputs["tool_mask"] if "tool_mask" in inputs else mask).bool()
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **more: Any
    ) -> Any:
        if ON_GPU:
            arguments = (model, input_ids, attention_mask, logits_to_keep)
            return super()._get_per_token_logps_and_entropies(*arguments, **more)
        before = torch.zeros_like(input_ids, dtype=torch.bool)
        before[:, -logits_to_keep - 1 : -1] = self.written
        text = {"input_ids": input_ids, "attention_mask": attention_mask}
        logprobs = logprobs_after(before, model, self.temperature, **text)
        written = input_ids[:, -logits_to_keep:][self.written]
        of_written = logprobs.gather(1, written[:, None]).squeeze(1)
        entropy = torch.special.entr(logprobs.detach().exp()).sum(1)
        blank = logprobs.new_zeros(self.written.shape)
        return blank.masked_scatter(self.written, of_written), blank.masked_scatter(self.written, entropy), None


def of_turns(episodes: list[dict[str, Any]], written: torch.Tensor) -> torch.Tensor:
    """Advantages of tokens [rows, tokens] by their turns: the discounted reward of the episode from there on, less the
    mean over the turns that its group took in the same state. The second half of GiGPO (Feng et al. 2025, arXiv
    2505.10978).

    An episode's own advantage praises or blames all its turns alike; among turns in the same state it shows which one
    was the mistake. Turns are the runs of tokens that the model wrote (`written`, 1 or 0).
    """
    taken: dict[Any, list[tuple[int, int, float]]] = defaultdict(list)
    for row, episode in enumerate(episodes):
        last = len(episode["states"]) - 1
        for turn, state in enumerate(episode["states"]):
            taken[episode["prompt"], state].append((row, turn, episode["reward"] * DISCOUNT ** (last - turn)))
    advantages = torch.zeros(len(episodes), max(len(episode["states"]) for episode in episodes))
    for turns in taken.values():
        mean = sum(worth for _, _, worth in turns) / len(turns)
        for row, turn, worth in turns:
            advantages[row, turn] = worth - mean
    begins = written.diff(dim=1, prepend=torch.zeros_like(written[:, :1])) > 0
    turn_of = (begins.cumsum(1) - 1).clamp(min=0)
    return advantages.to(written.device).gather(1, turn_of) * written


def lean(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same number of batches with only the rows in them that have an advantage, neighbours in length together."""
    whole = {
        name: torch.cat([batch[name] for batch in batches]) if each.dim() else each for name, each in batches[0].items()
    }
    idle = ~whole["advantages"].view(len(whole["advantages"]), -1).any(1)
    count = max(len(batches), int((~idle).sum()))  # every batch has a row, if only one of no advantage
    rows = idle.int().argsort(stable=True)[:count]
    tokens = whole["prompt_mask"].sum(1) + whole["completion_mask"].sum(1)
    rows = rows[tokens[rows].argsort()]
    return [
        trimmed({name: each[some] if each.dim() else each for name, each in whole.items()})
        for some in rows.tensor_split(len(batches))
    ]


def trimmed(batch: dict[str, Any]) -> dict[str, Any]:
    """Without the columns that are padding in every row: on the left of prompts, on the right of completions."""
    prompt, completion = (int(batch[f"{part}_mask"].sum(1).max()) for part in ("prompt", "completion"))
    return {
        name: each if each.dim() < 2 else each[:, -prompt:] if name.startswith("prompt") else each[:, :completion]
        for name, each in batch.items()
    }


@dataclass
class Trainee:
    """What is being trained, and how: everything that SFT and GRPO have in common."""

    examples: list[Example]
    rollouts: Grpo
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
        config = SFTConfig(
            **self.common(self.sft_batch() if self.small else 8, 1 if self.small else 4),
            train_sampling_strategy="group_by_length",
            dataset_kwargs={"skip_prepare_dataset": True},
        )
        dataset = datasets.Dataset.from_list(tokenised(self.examples, load(start)[1]))
        optimizer, rate = (MuonAndAdam, SMALL_RATE) if self.small else (adam, 1e-5)
        return self.train(LeanSFTTrainer, optimizer, start, name, seconds, rate, args=config, train_dataset=dataset)

    def sft_batch(self) -> int:
        characters = sum(len(part.text) for example in self.examples for part in example) / len(self.examples)
        return max(4, min(32, round(SFT_CHARACTERS / characters)))

    def grpo(self, start: Path, name: str, seconds: float, rate: float) -> Path:
        config = GRPOConfig(
            **self.common(32 if self.small else 8, 2 * CORES if self.small else 8),
            num_generations=8,
            temperature=1.0,
            beta=0.0,
            **self.rollouts.config,
        )
        # A policy gradient is mostly noise, to which Muon would give the size of a signal.
        return self.train(LeanGRPOTrainer, adam, start, name, seconds, rate, args=config, **self.rollouts.trainer)

    def train(
        self, trainer_class: Any, optimizer_of: Any, start: Path, name: str, seconds: float, rate: float, **kwargs: Any
    ) -> Path:
        clock = UntilDeadline(name, seconds)
        model, tokenizer = load(start)
        optimizer = optimizer_of(model, rate)
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


def tokenised(examples: list[Example], tokenizer: Any) -> list[dict[str, list[int]]]:
    """Whole texts, as the model will meet them, with the loss on the parts to learn and on the end."""
    encoded = tokenizer(["".join(part.text for part in each) for each in examples], return_offsets_mapping=True)
    rows = []
    for example, tokens, offsets in zip(examples, encoded["input_ids"], encoded["offset_mapping"], strict=True):
        learned = [part.learn for part in example for _ in part.text]
        labels = [
            token if start < end and learned[end - 1] else -100
            for token, (start, end) in zip(tokens, offsets, strict=True)
        ]
        end = [tokenizer.eos_token_id]
        rows.append({"input_ids": (tokens + end)[:MAX_LENGTH], "labels": (labels + end)[:MAX_LENGTH]})
    return rows


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
    route = route_to(os.environ["TASK"], Path(os.environ["DATA_PATH"]), seed)
    grader = Grader(os.environ["GRADING_SERVER_URL"])
    base = Path(os.environ["MODEL_PATH"])
    transformers.set_seed(seed)
    examples = route.examples()
    parameters = sum(weights.numel() for weights in load(base)[0].parameters())
    trainee = Trainee(examples, route.grpo(), Path(os.environ["OUTPUT_DIR"]), seed, small=parameters < SMALL_MODEL)
    reserve_s = max(6.0, 0.03 * grader.remaining_s())  # to save and hand in the last checkpoint
    log(f"{parameters:,} parameters, {len(examples)} examples, mode {mode}, {grader.remaining_s():.0f} s left")

    best = Best(base, -1.0)
    if mode != "rl-only":
        # In a short time imitation gets further; with more of it, trial and error takes over sooner.
        share = 1.0 if mode == "sft-only" else 0.85 if grader.remaining_s() < SHORT_S else trainee.rollouts.sft_share
        consider(grader, best, trainee.sft(base, "sft", share * (grader.remaining_s() - reserve_s)))
    if mode != "sft-only":
        reinforce(grader, best, trainee, reserve_s)
    log(f"done: best {best.checkpoint.name} with {best.score}, {grader.remaining_s():.0f} s left")


def reinforce(grader: Grader, best: Best, trainee: Trainee, reserve_s: float) -> None:
    """Rounds of GRPO, each from the best checkpoint; a round that made things worse halves the learning rate."""
    rate = 5e-4 if trainee.small else 1e-6
    rounds = 1 if grader.remaining_s() < TWO_ROUNDS_S else 2
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
