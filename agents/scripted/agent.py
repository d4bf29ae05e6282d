"""The scripted agent: imitation first (SFT), then GRPO from the best checkpoint so far.

The example to start your own agent from; docs/train-your-own.md explains it from top to bottom. It uses only what every
agent gets: the environment variables TASK, MODEL_PATH, DATA_PATH, OUTPUT_DIR and GRADING_SERVER_URL, `./run_meta.json`
(mode, seed, how the grader asks), the data folder and the grading server (`POST /submit`, `GET /time`).

This file is the plan: every decision is a line in the log that says why. Beside it are:

    training.py          the trainers, on a CPU or on GPUs
    playing.py           answers and episodes of the model: to measure it, to imitate the right ones, and for GRPO
    routes/              how each task is learned: what is imitated, what is played and rewarded
    grading_client.py    submits checkpoints, and asks for the time left
"""

import json
import os
import shutil
import time
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean

os.environ.setdefault("GOMP_SPINCOUNT", "3000")  # idle threads soon give up the core, which other processes need
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")
os.environ.setdefault("DISABLE_MLFLOW_INTEGRATION", "TRUE")  # TRL would spend two seconds on importing it
warnings.filterwarnings("ignore")

import datasets
import transformers
from grading_client import Grader, log
from playing import Player, texts_of
from routes import Setting, load_route
from training import (
    CORES,
    ON_GPU,
    SMALL_MODEL,
    MuonAndAdam,
    Row,
    Trained,
    TrainUntil,
    adam,
    agreed,
    gathered,
    grpo,
    in_first_process,
    load,
    own_share,
    processes,
    save,
    sft,
    unplayable_layers,
    with_tried_player,
)

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
datasets.disable_progress_bars()

OWN, GIVEN, GRPO = "SFT on own answers", "SFT", "GRPO"
"""The stages: imitation of what the model itself answers well, and of what the data gives; reinforcement."""
SHORTEST_S = 5
"""No stage is shorter."""
SHORT_S = 300
"""With less time than this, SFT gets most of it, and nothing is measured on held-out items."""
TWO_ROUNDS_S = 600
"""With at least this much time left for GRPO, a second round starts from the best checkpoint."""
HELD_OUT = 64
"""Training items that neither SFT nor GRPO sees, at most."""
MEASURING_SHARE = 0.05
"""Share of the budget in which a checkpoint is measured on them, at most."""
WORTH_IMITATING = 0.1
"""From this share of right answers on, the model's own right answers are imitated before the data's: they need no new
style. In half an hour of two cores, 600 worked solutions of gsm8k took Qwen2.5-Coder-0.5B from 1 of 32 held-out items
to 0 of 24, while it solved 20% of all."""
RATE_IF_SMALL = 3e-3
"""The rate at which a very small model imitates, with Muon."""
TOKENS_A_STEP = 500
"""Tokens that a very small model imitates in a step, for each of two cores at most. In a short time, many steps teach
it more than large ones: with half as many tokens as with 1,000, `tiny` reached 65 instead of 43 on deepsearchqa, 57
instead of 51 on alfworld, and 23 instead of 6 on webshop (68 to 110 s of a slow core, one seed); on gsm8k, three pairs
of runs of 35 to 50 s show no clear difference."""
TOKENS_A_LARGE_STEP = 6000
"""The same for a larger model on a processor: eight games of ALFWorld."""
FEWEST_OWN = 32
"""With fewer of its own right answers than this, they are not imitated."""
GENTLER, GENTLER_ON_OWN = 8, 2
"""A model that already solves some items can lose them, and learns at a rate that is so many times smaller. At the full
rate, 23 steps took Qwen2.5-Coder-0.5B from 4 to 1 of 8 held-out items of humaneval. Its own answers change less in it:
at an eighth of the rate, 22 steps took it from 16% to 20% of 64 items of gsm8k; without examples, it solves 29%."""
EPOCHS = 3
"""A model that is not very small imitates each text at most so often; what time is left is for reinforcement."""
MAX_TOKENS = 4096
"""The most tokens of a text to imitate; longer ones are left out."""


@dataclass
class Progress:
    """What has been done; `output/progress.json`, from which an agent that was killed continues."""

    best: str = ""
    """The checkpoint to go on from."""
    gain: float = 0.0
    """By how many points the grader scores it higher than the base model."""
    held_out: dict[str, float] = field(default_factory=dict)
    """What its answers to held-out items are worth, as far as these were measured."""
    done: list[str] = field(default_factory=list)
    """The stages that are over."""

    @property
    def share(self) -> float:
        """Its share of held-out items; 0 where none are measured."""
        return fmean(self.held_out.values()) if self.held_out else 0.0


def mean_length(rows: list[Row]) -> float:
    """Returns how many tokens a text has on average."""
    return sum(len(row["input_ids"]) for row in rows) / len(rows)


def texts_a_step(rows: list[Row], small: bool) -> int:
    """Returns how many texts each process imitates in a step; fewer long ones, for more steps in the same time."""
    if not small:
        return 32 if ON_GPU else max(4, min(8, round(TOKENS_A_LARGE_STEP / mean_length(rows))))
    return max(2, min(32, round(TOKENS_A_STEP * min(2, CORES) / mean_length(rows))))


class Plan:
    """One run of the agent."""

    def __init__(self) -> None:
        self.meta = json.loads(Path("run_meta.json").read_text())
        self.mode, self.seed, self.steps = self.meta["mode"], int(self.meta["seed"]), self.meta.get("steps")
        self.output = Path(os.environ["OUTPUT_DIR"])
        self.grader = Grader(os.environ["GRADING_SERVER_URL"])
        self.total_s = float(self.meta["timeout_s"])
        self.reserve_s = max(6.0, 0.03 * self.total_s)  # to save and submit the last checkpoint
        self.file = self.output / "progress.json"
        known = json.loads(self.file.read_text()) if self.file.exists() else {"best": os.environ["MODEL_PATH"]}
        self.progress = Progress(**known)
        transformers.set_seed(self.seed)
        trained = load(Path(self.progress.best))
        self.small = trained.parameters < SMALL_MODEL
        context = trained.model.config.get_text_config().max_position_embeddings
        setting = Setting(Path(os.environ["DATA_PATH"]), trained.tokenizer, context, self.meta, self.small)
        self.setting, self.route = setting, load_route(os.environ["TASK"], setting)
        self.loaded: Trained | None = with_tried_player(trained)
        if unplayable := set(gathered([*unplayable_layers(self.loaded)])):
            log(f"it only imitates: without vLLM, these layers cannot play: {', '.join(sorted(unplayable))}")
            self.route.can_play = False
        enough_time = self.total_s >= SHORT_S and not self.steps
        kept = min(HELD_OUT, len(self.route.names) // 10) if self.route.can_play and enough_time else 0
        self.measures = kept > 0
        self.measuring_s = MEASURING_SHARE * self.total_s if self.measures else 0.0
        self.held_out, self.names = self.route.names[:kept], self.route.names[kept:]
        self.player = Player(self.route, setting)
        log(
            f"{trained.parameters:,} parameters, {len(self.names)} training items and {kept} held out, "
            f"mode {self.mode}, {self.remaining_s():.0f} s left"
        )

    def run(self) -> None:
        """Trains, submits after each stage, and ends before the deadline."""
        if self.loaded and self.measures and not self.progress.held_out:
            self.progress.held_out = self.measure(self.loaded, "the base model")
            self.remember()
        if self.mode == "rl-only" and not self.route.can_play:
            raise SystemExit("there is nothing to play: this agent only imitates here, and rl-only forbids it")
        if self.mode != "rl-only":
            self.imitate()
        if self.mode != "sft-only" and self.route.can_play:
            self.reinforce()
        best = self.progress
        log(f"done: best {Path(best.best).name} with a gain of {best.gain:.1f}, {self.remaining_s():.0f} s left")

    def remaining_s(self) -> float:
        """Returns the seconds until the deadline, the same in all processes."""
        return float(agreed(self.grader.remaining_s()))

    def best_model(self) -> Trained:
        """Returns the best checkpoint so far, ready to train."""
        loaded, self.loaded = self.loaded, None
        return loaded or load(Path(self.progress.best))

    def trainer_settings(self, name: str, size: int) -> dict[str, object]:
        """Returns the settings that both trainers get for a stage."""
        folder = str(self.output / "trainer" / name)
        return {"output_dir": folder, "per_device_train_batch_size": size, "seed": self.seed}

    # Imitation.

    def imitate(self) -> None:
        """Fine-tunes the model on its own right answers, then on the data's; only what is not worse is gone on from."""
        after_s = self.reserve_s + (1 - self.sft_share()) * (self.remaining_s() - self.reserve_s)

        def left_s() -> float:
            """Returns the seconds left for imitation. Only the grader's clock gives back the time of a grade."""
            return self.remaining_s() - after_s

        if OWN not in self.progress.done:
            trained = self.best_model()
            own = self.own_answers(trained, left_s() / 3)
            self.fine_tune(trained, own, OWN, 2 / 3 * left_s())
            del trained  # before the next one is loaded
        if GIVEN not in self.progress.done:
            trained = self.best_model()
            given = self.given_answers(trained, left_s() / 20)
            self.fine_tune(trained, given, GIVEN, left_s())

    def fine_tune(self, trained: Trained, rows: list[Row], stage: str, seconds: float) -> None:
        """Imitates texts; if there are none, or no time, the stage is over at once."""
        if agreed(not rows or seconds < SHORTEST_S):
            self.loaded = trained
            self.remember(stage)
            return
        size, mean = texts_a_step(rows, self.small), mean_length(rows)
        knows = self.progress.share >= WORTH_IMITATING
        gentler = GENTLER_ON_OWN if stage == OWN else GENTLER if knows else 1
        rate = RATE_IF_SMALL if self.small else self.rate(trained) / gentler
        most = None if self.small else 1 + EPOCHS * len(rows) // (size * processes())
        log(f"{stage}: {len(rows)} texts of {mean:.0f} tokens, {size} a step, rate {rate:.1e}, for {seconds:.0f} s")
        name = stage.lower().replace(" ", "-")
        optimizer = MuonAndAdam(trained.model, rate) if self.small else adam(trained.model, rate)
        settings = self.trainer_settings(name, size)
        sft(trained, optimizer, TrainUntil(name, seconds, self.steps, most), settings, rows)
        self.conclude(trained, name, stage)

    def sft_share(self) -> float:
        """Returns SFT's share of the time left: in a short time imitation gets further than reinforcement learning."""
        if self.mode == "sft-only" or self.steps or not self.route.can_play:
            return 1.0
        if self.remaining_s() < SHORT_S:
            return 0.85
        return self.route.sft_share if self.small else 0.8  # rollouts of a large model take long

    @staticmethod
    def rate(trained: Trained) -> float:
        """Returns the learning rate for imitation: 3e-4 at 135 million parameters, 1.6e-5 at 7 billion, and ten
        times as much for an adapter, whose weights start from zero."""
        return float(3e-4 * (135e6 / trained.parameters) ** 0.75) * (10 if trained.has_adapter else 1)

    def given_answers(self, trained: Trained, seconds: float) -> list[Row]:
        """Returns the data's answers, or an expert's, as many as can be made in some time."""
        until = time.monotonic() + max(seconds, 10.0)
        examples = []
        for name in own_share(self.names):
            if (example := self.route.example(name)) is not None:
                examples.append(example)
            if time.monotonic() > until and len(examples) >= 500:
                break
        return self.not_too_long(gathered(texts_of(examples, self.setting)))

    def not_too_long(self, rows: list[Row]) -> list[Row]:
        """Returns the texts that the model can read and that fit into memory."""
        return [row for row in rows if len(row["input_ids"]) <= min(MAX_TOKENS, self.setting.context)]

    def own_answers(self, trained: Trained, seconds: float) -> list[Row]:
        """Returns right answers of the model itself (rejection sampling); empty if it has too few to learn from."""
        if self.player.settings["max_steps"] > 1 or not self.measures:
            return []
        log(f"it samples answers to training questions, for at most {seconds:.0f} s")
        until, share = time.monotonic() + seconds, self.progress.share
        own, *counts = self.player.right_answers(trained, own_share(self.names), until, WORTH_IMITATING, share)
        rows, (right, asked) = self.not_too_long(gathered(own)), (sum(gathered([each])) for each in counts)
        worth = len(rows) >= FEWEST_OWN and right >= WORTH_IMITATING * asked
        chosen = "it imitates them first" if worth else "too few to imitate" if asked else "none ended in time"
        log(f"{right} of {asked} answers that it samples to training questions are right: {chosen}")
        return rows if worth else []

    # Reinforcement.

    def reinforce(self) -> None:
        """Runs rounds of GRPO, each from the best checkpoint; a round without progress halves the learning rate."""
        rounds = 1 if self.steps or self.remaining_s() < TWO_ROUNDS_S else 2
        slower = 1.0
        for number in range(1, rounds + 1):
            # What the model is measured in afterwards is not for training.
            seconds = (self.remaining_s() - self.reserve_s) / (rounds + 1 - number) - self.measuring_s
            if seconds < SHORTEST_S:
                break
            # An agent that was killed finds the state of this round by its name.
            if not self.reinforce_once(f"grpo-{1 + self.progress.done.count(GRPO)}", seconds, slower):
                slower /= 2

    def reinforce_once(self, name: str, seconds: float, slower: float) -> bool:
        """Reinforces the best model by the task's rewards, and returns whether the result is better."""
        trained = self.best_model()
        rate = slower * (5e-4 if self.small else self.rate(trained) / 30)
        size = 64 * CORES if self.small and not ON_GPU else 64 if ON_GPU else 32
        log(f"GRPO from {Path(self.progress.best).name}: {size} episodes a step, rate {rate:.1e}, for {seconds:.0f} s")
        settings = self.trainer_settings(name, size)
        optimizer = adam(trained.model, rate)  # not Muon, which scales up a policy gradient that is mostly noise
        names = own_share(self.names) or self.names  # of very few, each process plays all
        clock, rollout = TrainUntil(name, seconds, self.steps), self.player.rollouts(trained, names)
        grpo(trained, optimizer, clock, settings, rollout)
        return self.conclude(trained, name, GRPO)

    # Results.

    def measure(self, trained: Trained, what: str) -> dict[str, float]:
        """Returns what greedy answers to held-out items are worth, for as many items as there is time for."""
        until = time.monotonic() + self.measuring_s
        rewards = self.player.measure(trained, own_share(self.held_out), until)
        measured = dict(gathered([*rewards.items()]))
        log(f"{what}: {fmean(measured.values()):.3f} on {len(measured)} held-out items")
        return measured

    def conclude(self, trained: Trained, name: str, stage: str) -> bool:
        """Saves and submits a checkpoint unless it is clearly worse on held-out items.

        Returns:
            Whether it is the new best, by what the grader says and what was measured here together.
        """
        checkpoint, best = self.output / name, self.progress
        held_out = self.measure(trained, name) if self.measures else {}
        both = held_out.keys() & best.held_out.keys()
        change = fmean(held_out[item] - best.held_out[item] for item in both) if both else 0.0
        gain = None
        if change < -0.5 / max(1, len(both)) ** 0.5:  # the standard error of a share, at most
            log(f"{name} is worse than {Path(best.best).name}, by {-change:.3f} on {len(both)} items: not submitted")
        elif in_first_process():
            save(trained, checkpoint)
            gain = self.grader.submit(checkpoint, stage, parent=Path(best.best).name)
        gain = agreed(gain)
        better = gain is not None and (gain - best.gain) / 100 + change > 0
        if better:
            best.best, best.gain, best.held_out = str(checkpoint), gain, held_out
        if in_first_process():
            shutil.rmtree(self.output / "trainer" / name, ignore_errors=True)
        self.remember(stage)
        return better

    def remember(self, *over: str) -> None:
        """Notes what has been done, and the stages that are over."""
        self.progress.done += over
        if in_first_process():
            written = self.file.with_suffix(".new")
            written.write_text(json.dumps(asdict(self.progress)))
            written.replace(self.file)  # at once: an agent that is killed here still has one of the two


if __name__ == "__main__":
    Plan().run()
