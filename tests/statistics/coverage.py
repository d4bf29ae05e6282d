"""`python -m tests.statistics.coverage`: how often the intervals contain the true value, and verdicts are wrong.

Each case is simulated with the estimators of a2rl/scoring themselves. A 95% interval should cover 93 to 97.5%. Without
any true change, at most 2.5% of runs should be called improved, plus the noise of the simulation. Right-or-wrong
intervals are computed exactly, over all outcomes.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from itertools import product
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.progress import track
from rich.table import Table
from scipy.stats import binom

from a2rl.scoring.means import Interval, mean_interval, wilson_interval
from a2rl.scoring.paired import LEVEL, corrected, difference_interval
from a2rl.scoring.seeds import interval_over_runs, mean_gain
from tests.statistics.alpacaeval import LengthControlled

Array = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]
"""Draws the values of so many items."""
REPETITIONS = 2_000
COVERAGE = (93.0, 97.5)
SIZES = (41, 67, 82, 100, 134, 200, 402, 660, 805, 1319)
"""The eval sets of the tasks and their halves."""
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98, 0.99)


class Case(NamedTuple):
    """One simulation."""

    row: dict[str, Any]
    """What is simulated, as it stands in the table."""
    simulate: Callable[[int], float]
    """Returns the percentage for a number of repetitions."""
    is_slow: bool = False
    """Whether it takes as long as all others together."""


def covers(interval: Interval, points: float) -> bool:
    """Returns whether the interval contains the value, up to rounding."""
    return interval.low - 1e-9 <= points <= interval.high + 1e-9


def exact_share(n: int, p: float, repetitions: int) -> float:
    """Returns the exact coverage of the interval of right-or-wrong answers."""
    outcomes = np.arange(n + 1)
    covered = [covers(wilson_interval(k / n, n), 100 * p) for k in outcomes]
    return 100 * float(binom.pmf(outcomes, n, p)[covered].sum())


def graded(zeros: float, ones: float, shape: tuple[float, float]) -> Draw:
    """Draws values that are 0 or 1 with these probabilities, and otherwise follow a beta distribution."""

    def draw(rng: np.random.Generator, n: int) -> Array:
        kind = rng.random(n)
        return np.where(kind < zeros, 0.0, np.where(kind > 1 - ones, 1.0, rng.beta(*shape, size=n)))

    return draw


def graded_mean(zeros: float, ones: float, shape: tuple[float, float], n: int, repetitions: int) -> float:
    """Returns the coverage of the interval of the mean of graded values."""
    rng, draw = np.random.default_rng(n), graded(zeros, ones, shape)
    true = 100 * (ones + (1 - zeros - ones) * shape[0] / sum(shape))
    hits = [covers(mean_interval(draw(rng, n).tolist()), true) for _ in range(repetitions)]
    return 100 * float(np.mean(hits))


@cache
def binary_difference(gains: int, losses: int, n: int, level: float) -> Interval:
    """Returns the interval for these numbers of gained and lost items, which determine it."""
    return difference_interval([1.0] * gains + [-1.0] * losses + [0.0] * (n - gains - losses), level)


def paired_binary(gained: float, lost: float, n: int, repetitions: int) -> float:
    """Returns the coverage of the interval of the difference of right-or-wrong answers."""
    rng = np.random.default_rng(n)
    counts = rng.multinomial(n, [gained, lost, 1 - gained - lost], size=repetitions)
    hits = [covers(binary_difference(g, b, n, LEVEL), 100 * (gained - lost)) for g, b, _ in counts.tolist()]
    return 100 * float(np.mean(hits))


def paired_graded(zeros: float, gain: float, n: int, repetitions: int) -> float:
    """Returns the coverage of the interval of the difference of graded values with a share of zeros.

    A share of the items, `gain`, gets a new value; the others keep theirs.
    """
    rng, draw = np.random.default_rng(n), graded(zeros, 0.0, (1, 1))
    better = graded(0.0, 0.2, (1, 1))
    true = 100 * gain * ((0.2 + 0.8 * 0.5) - (1 - zeros) * 0.5)
    hits = []
    for _ in range(repetitions):
        before, after, changed = draw(rng, n), better(rng, n), rng.random(n) < gain
        difference = np.where(changed, after - before, 0.0)
        hits.append(covers(difference_interval(difference.tolist(), LEVEL), true))
    return 100 * float(np.mean(hits))


def runs_and_items(
    runs: int, spread: float, n: int, repetitions: int, true: float = 0.2, failing: float = 0.0
) -> float:
    """Returns the coverage of the mean gain of several runs, whose true gains differ by a standard deviation `spread`.

    A share `failing` of the runs has no result, which counts as a gain of zero.
    """
    rng, hits = np.random.default_rng(n), []
    for _ in range(repetitions):
        base = rng.beta(1.2, 2.0, n) * 0.5
        chances = np.clip(base + true + spread * rng.standard_normal((runs, 1)), 0.0, 1.0)
        table = (rng.random((runs, n)) < chances).astype(float) - (rng.random(n) < base)
        table *= rng.random((runs, 1)) >= failing
        hits.append(covers(mean_gain(table.tolist()).ci, 100 * true * (1 - failing)))
    return 100 * float(np.mean(hits))


def agreeing_runs(runs: int, share: float, n: int, repetitions: int) -> float:
    """Returns the coverage of the mean gain of runs that all solve the same items, of which there is this share."""
    rng = np.random.default_rng(n)
    tables = ([(rng.random(n) < share).astype(float).tolist()] * runs for _ in range(repetitions))
    return 100 * float(np.mean([covers(mean_gain(table).ci, 100 * share) for table in tables]))


def runs_on_draws(draws: Sequence[int], spread: float | None, n: int, repetitions: int, true: float = 0.2) -> float:
    """Returns the coverage of the mean gain of runs on several draws of items, each with so many runs.

    Their true gains differ by a standard deviation `spread`; None for runs that all solve the same items of a draw.
    """
    rng, hits = np.random.default_rng(n), []
    for _ in range(repetitions):
        gains, intervals = list[float](), list[list[Interval]]()
        for runs in draws:
            base = rng.beta(1.2, 2.0, n) * 0.5
            chances = np.clip(base + true + (spread or 0.0) * rng.standard_normal((runs, 1)), 0.0, 1.0)
            table = (rng.random((runs, n)) < chances).astype(float) - (rng.random(n) < base)
            if spread is None:
                table = np.tile((rng.random(n) < true).astype(float), (runs, 1))
            gains += (100 * table.mean(axis=1)).tolist()
            changes = [(int((row > 0).sum()), int((row < 0).sum())) for row in table]
            intervals.append([binary_difference(gained, lost, n, LEVEL) for gained, lost in changes])
        hits.append(covers(interval_over_runs(gains, intervals), 100 * true))
    return 100 * float(np.mean(hits))


def false_improved(protocol: str, n: int, p: float, k: int, repetitions: int) -> float:
    """Returns the share of runs called improved whose k submissions are as good as the base model."""
    rng, improved = np.random.default_rng(n * k), 0
    public = n // 2 if protocol == "strict" else 0
    for _ in range(repetitions):
        chance = rng.beta(2 * p, 2 * (1 - p), n)
        base = rng.random(n) < chance
        tries = rng.random((k, n)) < chance
        if protocol == "strict":
            best = tries[int(tries[:, :public].sum(axis=1).argmax())][public:]
            improved += binary_low(base[public:], best, LEVEL) > 0
        else:
            best = tries[int(tries.sum(axis=1).argmax())]
            improved += binary_low(base, best, corrected(LEVEL, k)) > 0
    return 100 * improved / repetitions


def binary_low(base: npt.NDArray[np.bool_], best: npt.NDArray[np.bool_], level: float) -> float:
    """Returns the lower end of the improvement."""
    gains, losses = int((best & ~base).sum()), int((base & ~best).sum())
    return binary_difference(gains, losses, base.size, level).low


def cases() -> Iterator[Case]:
    """Yields all simulations."""
    yield from intervals_of_one_model()
    yield from intervals_of_differences()
    for runs, n, spread in product((3, 5, 10), (41, 67, 134, 660), (0.0, 0.05, 0.1)):
        row = {"estimator": "mean gain over runs", "n": n, "runs": runs, "spread": 100 * spread}
        yield Case(row, partial(runs_and_items, runs, spread, n))
    for runs, n, share in product((3, 10), (70, 120, 200, 660), (0.015, 0.025, 0.05, 0.2, 0.5, 0.95, 0.98)):
        row = {"estimator": AGREEING, "n": n, "runs": runs, "gain": 100 * share}
        yield Case(row, partial(agreeing_runs, runs, share, n))
    for draws, n, spread_or_none in product(((5, 1), (10, 1), (5, 5), (1,) * 6), (70, 134), (None, 0.0, 0.05, 0.1)):
        row = {"estimator": DRAWS, "n": n, "runs on each": draws}
        row["spread"] = "none: the same items" if spread_or_none is None else 100 * spread_or_none
        yield Case(row, partial(runs_on_draws, draws, spread_or_none, n))
    for runs, gain, failing in product((3, 5, 10), (0.2, 0.5), (0.1, 0.2, 0.4)):
        row = {"estimator": FAILING, "n": 134, "runs": runs, "gain": 100 * gain, "failing": 100 * failing}
        yield Case(row, partial(runs_and_items, runs, 0.05, 134, true=gain, failing=failing))
    eval_sets = ((82, 0.2), (100, 0.5), (134, 0.05), (134, 0.3), (1319, 0.5))
    for protocol, (n, p), k in product(("strict", "paper"), eval_sets, (1, 5, 20, 50)):
        yield Case({"protocol": protocol, "n": n, "p": p, "k": k}, partial(false_improved, protocol, n, p, k))
    row = {"protocol": "paper", "task": "alpacaeval, answers 1,200 characters longer", "n": 100, "k": 1}
    yield Case(row, LengthControlled(100).false_improved, is_slow=True)


def intervals_of_one_model() -> Iterator[Case]:
    """Yields the simulations of means."""
    for n, p in product(SIZES, SHARES):
        yield Case({"estimator": "share", "n": n, "p": p}, partial(exact_share, n, p))
    extremes, shapes = ((0.6, 0.0), (0.92, 0.0), (0.98, 0.0), (0.0, 0.97)), ((1, 1), (2, 5), (0.5, 0.5))
    for n, (zeros, ones), shape in product((41, 67, 100, 134, 402, 1319), extremes, shapes):
        row = {"estimator": "graded mean", "n": n, "zeros": zeros, "ones": ones, "values": f"beta{shape}"}
        yield Case(row, partial(graded_mean, zeros, ones, shape, n))


def intervals_of_differences() -> Iterator[Case]:
    """Yields the simulations of differences between two models on the same items."""
    changes = ((0.1, 0.1), (0.2, 0.05), (0.4, 0.1), (0.3, 0.02), (0.05, 0.0))
    for n, (gained, lost) in product(SIZES, changes):
        row = {"estimator": "difference of shares", "n": n, "gained": gained, "lost": lost}
        yield Case(row, partial(paired_binary, gained, lost, n))
    for n, (zeros, changed) in product((41, 67, 100, 134, 402), ((0.6, 0.5), (0.92, 0.3), (0.98, 0.2))):
        row = {"estimator": "difference of graded means", "n": n, "zeros": zeros, "changed": changed}
        yield Case(row, partial(paired_graded, zeros, changed, n))
    yield Case({"estimator": "length-controlled difference", "n": 100}, LengthControlled(100).coverage, is_slow=True)


AGREEING = "mean gain, all runs solve the same items"
DRAWS = "mean gain, runs on several draws"
"""Each run's interval counts as if it erred as those of the other runs on its draw, which is the worst case."""
FAILING = "mean gain, some runs fail"
"""A handful of runs says little about how often runs fail: docs/statistics.md says how much too narrow the intervals
are."""
MEASURED = {"protocol": "false_improved", "estimator": "coverage"}


def run(case: Case, repetitions: int) -> dict[str, Any]:
    """Simulates a case and returns its row."""
    measured = MEASURED["protocol" if "protocol" in case.row else "estimator"]
    return {**case.row, measured: round(case.simulate(repetitions), 2)}


def is_as_it_should_be(row: dict[str, Any], repetitions: int) -> bool:
    """Returns whether the figure is within its limits, up to three standard errors of the simulation."""
    if row.get("estimator") == FAILING:
        return True
    if "coverage" in row:
        noise = 0 if row["estimator"] == "share" else 300 * sqrt(0.05 * 0.95 / repetitions)
        # With one item gained, few outcomes are possible; and runs on a draw err together less than is assumed.
        most = 100.0 if row["estimator"] in (AGREEING, DRAWS) else COVERAGE[1] + noise
        return COVERAGE[0] - noise <= float(row["coverage"]) <= most
    return float(row["false_improved"]) <= 2.5 + 300 * sqrt(0.025 * 0.975 / repetitions)


def main(arguments: Sequence[str] | None = None) -> None:
    """Simulates all cases, and prints them by estimator; exit code 1 if a figure is outside its limits."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--only", default="", help="simulate only estimators or protocols whose name contains this")
    parser.add_argument("--json", action="store_true", help="print all rows as JSON on the last line")
    chosen = parser.parse_args(arguments)
    started = time.monotonic()
    todo = [case for case in cases() if chosen.only in str(case.row.get("estimator") or case.row.get("protocol"))]
    # The slowest first: while one process works on them, the others do everything else.
    order = sorted(range(len(todo)), key=lambda place: not todo[place].is_slow)
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        done = pool.map(run, [todo[place] for place in order], [chosen.repetitions] * len(todo))
        shown = track(done, "simulating", total=len(todo), console=Console(stderr=True), transient=True)
        found = dict(zip(order, shown, strict=True))
    rows = [found[place] for place in range(len(todo))]
    console = Console()
    show(rows, chosen.repetitions, console)
    console.print(f"{len(rows)} cases, {chosen.repetitions} repetitions each, {time.monotonic() - started:.0f} s")
    if chosen.json:
        sys.stdout.write(json.dumps(rows) + "\n")
    sys.exit(0 if all(is_as_it_should_be(row, chosen.repetitions) for row in rows) else 1)


def show(rows: Sequence[dict[str, Any]], repetitions: int, console: Console) -> None:
    """Prints the lowest and highest figure of each estimator, and every case outside its limits."""
    table = Table("what", "cases", "lowest %", "highest %", "outside the limits")
    for name in dict.fromkeys(str(row.get("estimator") or f"falsely improved, {row['protocol']}") for row in rows):
        of_name = [row for row in rows if name in (row.get("estimator"), f"falsely improved, {row.get('protocol')}")]
        figures = [row.get("coverage", row.get("false_improved", 0.0)) for row in of_name]
        outside = [row for row in of_name if not is_as_it_should_be(row, repetitions)]
        shown = "\n".join(", ".join(f"{key} {value}" for key, value in row.items()) for row in outside)
        table.add_row(name, str(len(of_name)), f"{min(figures):.1f}", f"{max(figures):.1f}", shown)
    console.print(table)


if __name__ == "__main__":
    main()
