"""How each task is learned: what SFT imitates, what GRPO rolls out and rewards. Another task needs one more route."""

import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from datasets import Dataset

ON_GPU = torch.cuda.is_available()


class Part(NamedTuple):
    """A piece of a text that SFT reads, and whether it learns to write it."""

    text: str
    learn: bool


Example = tuple[Part, ...]


class Grpo(NamedTuple):
    """What GRPO needs to know of a task: arguments of TRL's GRPOConfig and GRPOTrainer."""

    config: dict[str, Any]
    trainer: dict[str, Any]


class Route(Protocol):
    def examples(self) -> list[Example]: ...

    def grpo(self) -> Grpo: ...


class Gsm8k:
    """Imitate worked solutions; then a reward of 1 for the right number."""

    def __init__(self, data: Path, seed: int) -> None:
        rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
        random.Random(seed).shuffle(rows)
        self.rows = rows

    def examples(self) -> list[Example]:
        return [(Part(self.prompt(row), False), Part("\n" + row["answer"], True)) for row in self.rows]

    def grpo(self) -> Grpo:
        rows = [{"prompt": self.prompt(row), "gold": final_number(row["answer"])} for row in self.rows]
        trainer = {"train_dataset": Dataset.from_list(rows), "reward_funcs": right_number}
        return Grpo({"max_completion_length": 320 if ON_GPU else 96}, trainer)

    @staticmethod
    def prompt(row: dict[str, str]) -> str:
        return f"Question: {row['question']}\nLet's think step by step\nAnswer:"


def right_number(completions: list[str], gold: list[str], **_: Any) -> list[float]:
    answers = [final_number(text.partition("Question:")[0]) for text in completions]
    return [float(answer == right) for answer, right in zip(answers, gold, strict=True)]


def final_number(text: str) -> str | None:
    """The number after ####, or else the last one: what the grader looks at."""
    marked = re.search(r"####\s*(-?[\d,.]*\d)", text)
    numbers = [marked.group(1)] if marked else re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return numbers[-1].replace(",", "") if numbers else None


class Alfworld:
    """Imitate an expert that explores; then play the training games and reward the games won.

    What the games answer is learned too, in one of two plays: to foresee it a model has to understand the room.
    """

    MAX_STEPS = 30
    CROWDED = 10
    """Receptacles in a room from which on it pays to look first where a thing is likely to be."""

    def __init__(self, data: Path, seed: int) -> None:
        sys.path.insert(0, str(data))
        from alfred import Game

        games = {str(path): Game.load(path) for path in sorted((data / "train").rglob("game.tw-pddl"))}
        self.names = list(games)
        random.Random(seed).shuffle(self.names)
        self.games, self.seed = games, seed
        self.crowded = sum(len(game.receptacles) for game in games.values()) > self.CROWDED * len(games)

    def examples(self) -> list[Example]:
        return list(self.plays())

    def plays(self) -> Iterator[Example]:
        """The games that the expert wins, as texts to imitate."""
        from alfred import Expert, Play, play_out
        from alfred.transcript import opening, turn

        for place, name in enumerate(self.names):
            # In a small room it looks everywhere in order, which is easier to imitate.
            play, expert = Play(self.games[name]), Expert(homes=None if self.crowded else {})
            turns = play_out(play, expert, self.MAX_STEPS)
            if not play.won:
                continue
            parts = [Part(opening(play.intro), False)]
            for command, observation in turns:
                said, _, answered = turn(command, observation).partition("\n")
                parts += [Part(said + "\n", True), Part(answered, place % 2 == 0)]
            yield tuple(parts)

    def grpo(self) -> Grpo:
        from rollout import for_trl

        steps = 30 if self.crowded else 14  # the expert's longest plays, and a little more
        rollout = for_trl(self.games, max_steps=steps, max_invalid=3, temperature=1.0, seed=self.seed)
        rows = [{"prompt": name} for name in self.names]
        trainer = {"train_dataset": Dataset.from_list(rows), "reward_funcs": as_rolled_out, "rollout_func": rollout}
        return Grpo({}, trainer)


def as_rolled_out(reward: list[float], **_: Any) -> list[float]:
    return reward


ROUTES: dict[str, Callable[[Path, int], Route]] = {"gsm8k": Gsm8k, "alfworld": Alfworld}
