"""Several answers to each item: the item's value is their mean.

Intervals and tests treat an item with all of its answers as one observation (a cluster), so they cover both the choice
of the items and the randomness of the answers.
"""

from collections.abc import Sequence

from a2rl.scoring.score import ItemResult, Verdict

MOST = 0.5
"""An item counts as correct if its mean value is above this."""


def mean_of_samples(rounds: Sequence[Sequence[ItemResult]]) -> list[ItemResult]:
    """Returns one result for each item from the results of several rounds over the same items in the same order."""
    if len(rounds) == 1:
        return list(rounds[0])
    return [_mean(samples) for samples in zip(*rounds, strict=True)]


def _mean(samples: Sequence[ItemResult]) -> ItemResult:
    """Returns the mean of an item's samples. The item is errored if one of them is: a part would not be its mean."""
    first, count = samples[0], len(samples)
    tokens = sum(sample.tokens for sample in samples)
    errored = [sample for sample in samples if sample.verdict == "errored"]
    if errored:
        return errored[0].model_copy(update={"tokens": tokens})
    value = min(1.0, sum(sample.value for sample in samples) / count)
    names = {name for sample in samples for name in sample.measures}
    found = {name: [sample.measures[name] for sample in samples if name in sample.measures] for name in sorted(names)}
    return first.model_copy(
        update={
            "verdict": _verdict(samples, value),
            "value": value,
            "tokens": tokens,
            "measures": {name: sum(values) / len(values) for name, values in found.items()},
        }
    )


def _verdict(samples: Sequence[ItemResult], value: float) -> Verdict:
    if value > MOST:
        return "correct"
    truncated = sum(sample.verdict == "truncated" for sample in samples)
    return "truncated" if truncated > len(samples) / 2 else "wrong"
