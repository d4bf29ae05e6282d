"""A simulated judge for AlpacaEval that prefers long answers, and simulations of the length-controlled difference."""

import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from a2rl.core.files import write_jsonl
from a2rl.judge.client import DOLLARS
from a2rl.scoring.paired import LEVEL, Improvement
from a2rl.scoring.score import ItemResult
from tasks.alpacaeval import grade as grader
from tasks.alpacaeval.prepare import CALIBRATION

LENGTH_BIAS = 0.9
"""By how much a length that is one deviation more raises the log odds of a judge's preference."""


class Judged(NamedTuple):
    """A simulated eval set with a judge that prefers long answers."""

    hidden: Path
    difficulty: np.ndarray
    reference: np.ndarray

    def results(
        self, rng: np.random.Generator, skill: float, longer: float, ids: range | None = None
    ) -> list[ItemResult]:
        """Simulates a model with this skill (log odds), whose answers are longer by so many characters."""
        count = len(self.reference)
        lengths = np.maximum(10, self.reference + longer + rng.normal(0, 500, count))
        odds = skill - 0.5 * self.difficulty + LENGTH_BIAS * np.tanh((lengths - self.reference) / 900)
        values = 1 / (1 + np.exp(-(odds + rng.normal(0, 2.0, count))))
        return [item(place, float(values[place]), int(lengths[place])) for place in ids or range(count)]


def item(place: int, value: float, length: int) -> ItemResult:
    """Returns the result of an item by its place in the eval set."""
    measures = {grader.LENGTH: float(length), DOLLARS: 0.0}
    return ItemResult(id=str(place), verdict="correct" if value > 0.5 else "wrong", value=value, measures=measures)


def judged(folder: Path, items: int, seed: int = 0) -> Judged:
    """Draws an eval set, and writes its files into a folder."""
    rng = np.random.default_rng([items, seed] if seed else items)
    folder.mkdir()
    reference, difficulty = rng.lognormal(7.2, 0.5, items).round(), rng.normal(0, 1, items)
    rows = [
        {"instruction": f"Do {n}.", "dataset": "koala", "reference": "x" * int(each)}
        for n, each in enumerate(reference)
    ]
    write_jsonl(folder / "eval.jsonl", rows)
    lines = ["model,index,preference,std_delta_len,instruction_difficulty,not_gamed_baseline"]
    for name, sign in (("concise", 1), ("verbose", -1)):
        for place in range(items):
            length = sign * (1 + rng.normal(0, 0.3))
            odds = -LENGTH_BIAS * math.tanh(length) + rng.normal(0, 1)
            lines.append(f"{name},{place},{1 / (1 + math.exp(-odds))},{length},{difficulty[place]},False")
    (folder / CALIBRATION).write_text("\n".join(lines) + "\n")
    return Judged(folder, difficulty, reference)


EVAL_SETS = 20
"""Eval sets that a simulation draws; it repeats the judgements on each."""


class LengthControlled:
    """Simulates models on eval sets of `items` instructions."""

    def __init__(self, items: int) -> None:
        self._items = items

    def coverage(self, repetitions: int) -> float:
        """Returns how often, in percent, the interval contains the mean of all estimates of a true gain."""
        found = list(self._improvements(repetitions, skill=-0.5, longer=300))
        true = float(np.mean([each.points for each in found]))
        return 100 * float(np.mean([each.ci.low <= true <= each.ci.high for each in found]))

    def false_improved(self, repetitions: int) -> float:
        """Returns how often, in percent, answers that are 1,200 characters longer and no better are called improved."""
        found = self._improvements(repetitions, skill=-1, longer=1200)
        return 100 * float(np.mean([each.ci.low > 0 for each in found]))

    def _improvements(self, repetitions: int, skill: float, longer: float) -> Iterator[Improvement]:
        rng = np.random.default_rng(self._items)
        with _eval_sets(self._items) as eval_sets:
            for repetition in range(repetitions):
                of = eval_sets[repetition % EVAL_SETS]
                before, after = of.results(rng, -1, 0), of.results(rng, skill, longer)
                found = grader.improvement(before, after, LEVEL, of.hidden)
                assert found is not None
                yield found


@contextmanager
def _eval_sets(items: int) -> Iterator[list[Judged]]:
    with tempfile.TemporaryDirectory() as folder:
        yield [judged(Path(folder) / str(seed), items, seed) for seed in range(EVAL_SETS)]
