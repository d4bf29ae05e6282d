"""What the model does with a task: it is measured on it, its right answers are collected, and GRPO plays it.

All of it goes through the player that every agent is handed (data/episodes.py): many episodes at once, each with its
key-value cache. A question with one answer is an episode of one turn.
"""

import random
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import torch
from grading_client import log
from routes import BaseRoute, Example, Setting
from training import CORES, IGNORED_LABEL, Row, Trained

AT_ONCE = 96
"""Answers that are sampled at once when right ones are collected, and before it is judged whether that is worth it. A
batch waits for its longest answer: with 128 at once, two cores write 1.8 times as many answers of Qwen2.5-Coder-0.5B to
gsm8k as with 32."""
FASTER_AT_ONCE = 2.0
"""...and about so many times as many as with a few. On a slow machine, only as many are begun as can end in time."""
ANSWERS = 4
"""The most answers that are sampled to a question."""
TEMPERATURE = 0.3
"""The temperature at which they are sampled, after each question has been answered once without sampling. It is low,
because a higher one makes small models err. Of what Qwen2.5-Coder-0.5B answers to gsm8k with examples, 3% is right at
1, 8% at 0.6, and 17% without sampling; without examples, 23% of 96 at 0.3, and 29% without sampling."""
FEWEST_MEASURED, SLOW_S = 8, 4.0
"""A model is measured on at least so many episodes. First it plays as many as fit into the time if each takes these
seconds, which says how many more do."""
LONGER = 0.5
"""A measurement is cut off when it takes longer than it should by this share of its time."""
TURN_WEIGHT = 5.0
"""Weight of a turn's advantage, where the advantage of its episode has weight 1."""
DISCOUNT = 0.95
"""Factor by which a reward counts less for each turn that lies between a turn and the end of its episode."""


class Player:
    """Plays the items of a route with the model that is being trained."""

    def __init__(self, route: BaseRoute, setting: Setting) -> None:
        self.route, self.setting, self.seed = route, setting, setting.seed
        self.settings = {
            "max_steps": setting.meta["max_steps"],
            "max_new_tokens": setting.meta["max_new_tokens"],
            "template_kwargs": setting.meta["chat_template_kwargs"],
            **route.play_settings,
        }
        self.temperature = float(setting.meta.get("temperature", 0.0))
        self.small = setting.small
        self.processes = CORES if self.small else 1  # a small model gains nothing from threads
        self.episode_s = 0.0
        """How long an episode took of those that were played last."""

    def play(
        self,
        trained: Trained,
        names: Sequence[str],
        temperature: float,
        seed: int = 0,
        asked: Callable[[str], Any] | None = None,
        until: float = inf,
    ) -> list[Any]:
        """Plays one episode for each name, as it is graded or as `asked` says; cuts off what has not ended in time."""
        from episodes import play

        begun = time.monotonic()
        environments = [(asked or self.route.environment)(name) for name in names]
        settings = {**self.settings, "temperature": temperature, "seed": seed, "player": trained.player, "until": until}
        played: list[Any] = play(trained.model, trained.tokenizer, environments, **settings)
        self.episode_s = (time.monotonic() - begun) / max(1, len(names))
        return played

    def measure(self, trained: Trained, names: Sequence[str], until: float) -> dict[str, float]:
        """Plays as the grader does, as many of the names as fit into the time, and at least some.

        Returns:
            The reward of each. What has not ended when half as much time again has passed is worth what it is worth
            by then.
        """
        rewards: dict[str, float] = {}
        begun = time.monotonic()
        latest = until + LONGER * (until - begun)
        size = int(min(len(names), max(FEWEST_MEASURED, (until - begun) / SLOW_S)))
        while size > 0:
            these = names[len(rewards) : len(rewards) + size]
            played = self.play(trained, these, self.temperature, until=latest)
            rewards |= {name: each.reward for name, each in zip(these, played, strict=True)}
            per_episode = (time.monotonic() - begun) / len(rewards)
            size = int(min(len(names) - len(rewards), (until - time.monotonic()) / per_episode))
        return rewards

    def right_answers(
        self, trained: Trained, names: Sequence[str], until: float, worth: float, known: float
    ) -> tuple[list[Row], int, int]:
        """Samples answers until the time is over, or until it is clear that too small a share of them is right.

        Where the grader shows worked examples, the model is asked without them first, which is faster, and then in the
        way in which more of its answers are right. Whatever the way, it is to give these answers when it is asked as
        the grader asks.

        Args:
            worth: The share that makes it worth the time.
            known: The share of its answers that was right when it was measured as the grader asks.

        Returns:
            Of those that were sampled in the better way: the different right ones as rows to imitate, how many were
            right, and how many there were.
        """
        ways: dict[str, Callable[[str], Any]] = {"as the grader does": self.route.environment}
        if self.route.plain(names[0]).prompt != self.route.environment(names[0]).prompt:
            ways["without examples"] = self.route.plain
        expected = {"as the grader does": known if len(ways) > 1 else 1.0, "without examples": 1.0}
        found = {way: list[Row]() for way in ways}
        asked = dict.fromkeys(ways, 0)

        def share(way: str) -> float:
            return len(found[way]) / asked[way] if asked[way] else expected[way]

        queue = list(names) * ANSWERS
        while queue and (left_s := until - time.monotonic()) > 0 and max(map(share, ways)) >= worth:
            way = max(ways, key=share)
            fit = FASTER_AT_ONCE * left_s / self.episode_s if self.episode_s else AT_ONCE
            size = int(min(AT_ONCE, max(FEWEST_MEASURED, fit)))
            if (first := len(queue) - (ANSWERS - 1) * len(names)) > 0:
                size = min(size, first)  # without sampling, a second answer would be the same
            these, queue = queue[:size], queue[size:]
            seed = self.seed + len(queue)
            played = self.play(trained, these, 0.0 if first > 0 else TEMPERATURE, seed, ways[way], until)
            asked[way] += sum(not episode.cut for episode in played)
            for name, episode in zip(these, played, strict=True):
                if not episode.cut and episode.reward == 1 and len(episode.tokens) < self.settings["max_new_tokens"]:
                    found[way].append(self.answered(trained, self.route.environment(name).prompt, episode.tokens))
        best = max(filter(asked.get, ways), key=share, default="as the grader does")
        if len(ways) > 1:
            shares = ", ".join(f"{100 * share(way):.0f}% of {asked[way]} when asked {way}" for way in ways)
            log(f"of its sampled answers are right: {shares}")
        different = {tuple(row["input_ids"]): row for row in found[best]}
        return list(different.values()), len(found[best]), asked[best]

    def answered(self, trained: Trained, prompt: Any, answer: list[int]) -> Row:
        """Returns a prompt and its answer as a text to imitate."""
        before, end = self.setting.tokens(prompt), [trained.tokenizer.eos_token_id]
        tokens = answer if answer[-1:] == end else answer + end
        return {"input_ids": before + tokens, "labels": [IGNORED_LABEL] * len(before) + tokens}

    def rollouts(self, trained: Trained, names: Sequence[str]) -> Callable[[list[str], Any], dict[str, Any]]:
        """Returns a `rollout_func` of TRL's. Its prompts only say which rollouts belong together; which item each group
        plays is the schedule's choice."""
        from episodes import for_trl

        schedule = Schedule(self.route, names, self.seed)
        play = for_trl(
            self.route.practice,
            more={"states": lambda episode: getattr(episode.environment, "states", [])},
            temperature=1.0,
            seed=self.seed,
            processes=self.processes,
            player=trained.player,
            **self.settings,
        )

        def rollout(prompts: list[str], trainer: Any) -> dict[str, Any]:
            chosen = [schedule.name_for(prompt, trainer.state.global_step) for prompt in prompts]
            played: dict[str, Any] = play(chosen, trainer)
            schedule.record(chosen, played["reward"])
            trainer.turn_advantages = turn_advantages(chosen, played, played.pop("states"))
            return played

        return rollout


class Schedule:
    """Chooses an item for each prompt: mostly one of the kinds that are solved in some episodes and not in others.

    An item that is always solved, or never, teaches GRPO nothing, because all its episodes have the same reward.
    """

    DECAY = 0.98
    """Factor by which an episode counts less towards the rate of its kind, for each later one of the kind."""

    def __init__(self, route: BaseRoute, names: Sequence[str], seed: int) -> None:
        self.route, self.random = route, random.Random(seed)
        self.waiting: dict[str, list[str]] = defaultdict(list)
        for name in self.random.sample(names, len(names)):
            self.waiting[route.kind(name)].append(name)
        self.rate = {kind: 0.5 for kind in self.waiting}
        self.step, self.chosen = -1, dict[str, str]()

    def name_for(self, prompt: str, step: int) -> str:
        """Returns an item; the same one for all rollouts of a prompt in a step, which form a group."""
        if step != self.step:
            self.step, self.chosen = step, {}
        if prompt not in self.chosen:
            kinds = list(self.waiting)
            chances = [max(0.02, self.rate[kind] * (1 - self.rate[kind])) for kind in kinds]
            kind = self.random.choices(kinds, chances)[0]
            self.chosen[prompt] = self.waiting[kind][0]
            self.waiting[kind].append(self.waiting[kind].pop(0))
        return self.chosen[prompt]

    def record(self, names: Sequence[str], rewards: Sequence[float]) -> None:
        """Updates the rates."""
        for name, reward in zip(names, rewards, strict=True):
            kind = self.route.kind(name)
            self.rate[kind] += (1 - self.DECAY) * (reward - self.rate[kind])


def turn_advantages(
    names: Sequence[str], played: dict[str, Any], states: Sequence[Sequence[Any]]
) -> dict[tuple[int, ...], list[float]]:
    """Computes the advantage of each token's turn over the other turns that its group took in the same state.

    This is the second half of GiGPO (Feng et al. 2025, arXiv 2505.10978). The advantage of an episode is the same for
    all its turns; comparing turns that were taken in the same state shows which of them was the mistake. The value of a
    turn is the discounted reward of its episode.

    Args:
        names: The item of each episode; episodes of the same item are a group.
        played: The columns `prompt_ids`, `completion_ids`, `env_mask` (1 for tokens that the model wrote; turns are the
            runs of 1) and `reward` of the episodes.
        states: The state before each turn, for each episode; empty where an environment reports none.

    Returns:
        For the tokens of an episode: the advantages of those after the prompt, 0 where the model did not write.
    """
    values: dict[Any, list[float]] = defaultdict(list)
    for name, seen, reward in zip(names, states, played["reward"], strict=True):
        for turn, state in enumerate(seen):
            values[name, state].append(reward * DISCOUNT ** (len(seen) - 1 - turn))
    found = {}
    columns = (played[column] for column in ("prompt_ids", "completion_ids", "env_mask", "reward"))
    for name, seen, prompt, completion, written, reward in zip(names, states, *columns, strict=True):
        by_turn = []
        for turn, state in enumerate(seen):
            of_state = values[name, state]
            by_turn.append(reward * DISCOUNT ** (len(seen) - 1 - turn) - sum(of_state) / len(of_state))
        if by_turn:
            begins = torch.tensor(written).diff(prepend=torch.zeros(1, dtype=torch.long)) > 0
            turn_of_token = (begins.cumsum(0) - 1).clamp(min=0)
            advantages = TURN_WEIGHT * torch.tensor(by_turn)[turn_of_token] * torch.tensor(written)
            found[(*prompt, *completion)] = advantages.tolist()
    return found


def texts_of(examples: Sequence[Example], setting: Setting) -> list[Row]:
    """Tokenizes texts as the model will meet them; the parts to learn and the end of the text have labels."""
    rows = []
    for example in examples:
        in_chat = not isinstance(example.prompt, str)
        before = setting.tokens(example.prompt) if in_chat else []
        parts = [(example.prompt, False), *example.parts] if not in_chat else list(example.parts)
        encoded = setting.tokenizer(
            "".join(text for text, _ in parts), return_offsets_mapping=True, add_special_tokens=not in_chat
        )
        learned = [learn for text, learn in parts for _ in text]
        labels = [
            token if start < end and learned[end - 1] else IGNORED_LABEL
            for token, (start, end) in zip(encoded["input_ids"], encoded["offset_mapping"], strict=True)
        ]
        end = [setting.tokenizer.eos_token_id]
        rows.append(
            {"input_ids": before + encoded["input_ids"] + end, "labels": [IGNORED_LABEL] * len(before) + labels + end}
        )
    return rows
