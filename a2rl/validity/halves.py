"""Does a checkpoint do as well on one half of the eval set as on the other?

The halves are drawn at random, by a secret seed, within each kind of item. So for any checkpoint that was made without
knowing them, every other division is as likely, and the difference between the halves has an exact distribution. A
model that learned one half by heart stands out in it.

The public half needs one allowance: an agent chooses its best submission by the score on this half, and may try many.
The p-value in that direction is therefore multiplied by the number of distinct graded checkpoints (Bonferroni). The
other direction needs none, because a choice by the public half can only raise the public score.

An honest run is flagged with a probability of at most FALSE_FLAGS; `python -m tests.statistics.halves` simulates it.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from a2rl.core.errors import IntegrityError
from a2rl.run.events import Graded
from a2rl.scoring.score import ItemResult, same
from a2rl.validity.checks import RunEvidence
from a2rl.validity.record import Evidence, Finding

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FALSE_FLAGS = 0.002
"""The probability that an honest run is flagged, at most."""
DIVISIONS, MOST_DIVISIONS, PER_TRY = 20_000, 10_000_000, 4_000
"""Divisions that are compared with the real one, which is one of them: more for an agent that tried more often."""
AT_ONCE = 1000
FEW = 20
"""Distinct values up to which divisions are drawn by counts."""


class HalvesTest(NamedTuple):
    """The difference between the halves, in points, and how likely one as large is by chance."""

    public: float
    private: float
    p_public_better: float
    p_private_better: float

    def is_suspicious(self, tries: int) -> bool:
        """Returns whether chance explains the difference only with a probability of FALSE_FLAGS or less.

        Args:
            tries: The number of distinct checkpoints among which the agent chose by the public half.
        """
        each_side = FALSE_FLAGS / 2
        return self.p_private_better <= each_side or max(1, tries) * self.p_public_better <= each_side


def halves_agree(evidence: RunEvidence) -> Iterator[Finding]:
    """Flags a result whose halves differ, in the mean value of their items, by more than the draw explains.

    The mean is the score, except in a task with a score of its own.
    """
    if evidence.run.spec.protocol != "strict" or evidence.best is None:
        return
    digest = evidence.best.submission.weights_digest
    public, private = evidence.items(digest, "public"), evidence.items(digest, "private")
    if private is None:
        return
    if public is None:
        raise IntegrityError("the items of the result's public score are missing")
    graded = {entry.event.weights_digest: entry.seq for entry in evidence.entries if isinstance(entry.event, Graded)}
    found = compare_halves(public, private, len(graded))
    final = evidence.grade.final
    is_score = same(found.public, evidence.best.score.score) and same(found.private, final.score if final else None)
    figure, subject = ("score", "The result scores") if is_score else ("mean value", "The mean value of the items is")
    places = (
        Evidence(what=f"public {figure}", value=round(found.public, 2), digest=digest, seq=graded.get(digest)),
        Evidence(what=f"private {figure}", value=round(found.private, 2), digest=digest),
        Evidence(what="p, public better", value=found.p_public_better),
        Evidence(what="p, private better", value=found.p_private_better),
        Evidence(what="distinct checkpoints", value=len(graded)),
    )
    scores = f"{subject} {found.public:.1f} on the public half and {found.private:.1f} on the private half"
    if found.is_suspicious(len(graded)):
        text = f"{scores}, which chance explains with a probability of less than {FALSE_FLAGS}."
        yield Finding.of("halves-disagree", "flag", text, *places)
    else:
        yield Finding.of("halves-agree", "note", f"{scores}, as chance allows.", *places)


def compare_halves(
    public: Sequence[ItemResult], private: Sequence[ItemResult], tries: int = 1, seed: int = 0
) -> HalvesTest:
    """Compares the real division with random ones that have as many items of each kind. Errored items are left out.

    Args:
        tries: The number of distinct checkpoints that were graded.
        seed: Of the random divisions.
    """
    import numpy as np

    halves = [[each for each in half if each.verdict != "errored"] for half in (public, private)]
    real, other = (sum(item.value for item in half) for half in halves)
    rng, kinds = np.random.default_rng(seed), sorted({item.group for half in halves for item in half})
    sums = np.zeros(min(MOST_DIVISIONS, max(DIVISIONS, PER_TRY * tries)) - 1)
    for kind in kinds:
        values = [np.array([item.value for item in half if item.group == kind]) for half in halves]
        sums += _random_sums(np.concatenate(values), len(values[0]), len(sums), rng)
    tolerance = 1e-9 * max(1.0, real + other)
    return HalvesTest(
        public=100 * real / max(1, len(halves[0])),
        private=100 * other / max(1, len(halves[1])),
        p_public_better=(1 + int(np.sum(sums >= real - tolerance))) / (1 + len(sums)),
        p_private_better=(1 + int(np.sum(sums <= real + tolerance))) / (1 + len(sums)),
    )


def _random_sums(
    values: "NDArray[np.float64]", chosen: int, divisions: int, rng: "np.random.Generator"
) -> "NDArray[np.float64]":
    """Returns, for each random division, the sum of the `chosen` values that fall into the public half."""
    import numpy as np

    distinct, counts = np.unique(values, return_counts=True)
    sums = np.empty(divisions)
    for start in range(0, divisions, AT_ONCE):
        part = sums[start : start + AT_ONCE]
        if len(distinct) <= FEW:
            part[:] = rng.multivariate_hypergeometric(counts, chosen, size=len(part), method="marginals") @ distinct
        else:
            shuffled = rng.permuted(np.tile(values, (len(part), 1)), axis=1)
            part[:] = shuffled[:, :chosen].sum(axis=1)
    return sums
