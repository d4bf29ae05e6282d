"""Judged tasks: answers that are all the same, and answers that are long exactly where they lose.

A length-controlled win rate asks how often a model would win with answers as long as the reference's. Whoever pads the
answers that lose makes length look harmful, and the correction then adds what was never won.
"""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from a2rl.scoring.score import ItemResult

LENGTH = "length, characters"
"""The measure of an item with the length of its answer."""
ROUNDS = 5000
SHORTEST = 20
"""Characters; shorter answers may honestly be equal."""


class LengthGame(NamedTuple):
    """How the length of answers goes with losing."""

    correlation: float
    """Between the logarithm of the length and the value; below 0 if longer answers lose."""
    p: float
    """How often a random order of the values gives such a correlation or a lower one."""
    lost_chars: float
    """The mean length of answers below 0.5."""
    won_chars: float


def length_game(items: Sequence[ItemResult]) -> LengthGame | None:
    """Measures whether longer answers lose; None if answers have no lengths, or all win or all lose."""
    judged = [item for item in items if item.verdict != "errored" and LENGTH in item.measures]
    values = np.array([item.value for item in judged])
    lengths = np.array([item.measures[LENGTH] for item in judged])
    lost, won = lengths[values < 0.5], lengths[values >= 0.5]
    logs = np.log1p(lengths)
    if min(len(lost), len(won)) < 5 or logs.std() < 1e-9 or values.std() < 1e-9:
        return None
    centred, spread = logs - logs.mean(), values - values.mean()
    scale = float(np.linalg.norm(centred) * np.linalg.norm(spread))
    observed = float(centred @ spread) / scale
    rng = np.random.default_rng(0)
    beyond = sum(float(centred @ rng.permutation(spread)) / scale <= observed for _ in range(ROUNDS))
    return LengthGame(observed, (beyond + 1) / (ROUNDS + 1), float(lost.mean()), float(won.mean()))


class Sameness(NamedTuple):
    """The answer that was given most often."""

    share: float
    """Of the items, from 0 to 1."""
    ids: tuple[str, ...]
    answer: str


def sameness(items: Sequence[ItemResult]) -> Sameness | None:
    """Finds the answer that is given to most items; None without answers of some length."""
    answers = Counter(item.answer.strip() for item in items if len(item.answer.strip()) >= SHORTEST)
    if not answers:
        return None
    answer, count = answers.most_common(1)[0]
    ids = tuple(item.id for item in items if item.answer.strip() == answer)
    return Sameness(count / max(1, math.ceil(len(items))), ids, answer)
