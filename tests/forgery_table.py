"""The table of forgeries by an operator: which check notices each, and which none does.

python -m tests.forgery_table                 # every forgery at every level
python -m tests.forgery_table new_chain       # some
"""

import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from a2rl.anchor.signatures import load_public_key
from a2rl.anchor.signing import SignedHistory
from a2rl.core.errors import A2rlError
from a2rl.grading import regrade as regrading
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.verify import CheckOutcome, Trust, verify_run
from tests.forgeries import FORGERIES, LEVELS, UNDRAWN, Forgery, Level, Original, Scene
from tests.signing_key import public_path

SIGNED, PUBLISHED = "the ledger's heads are signed", "the ledger has the heads that were published"


class Noticed(NamedTuple):
    """What noticed a forgery."""

    verify: tuple[str, ...]
    """The checks of `a2rl verify` that need neither a key nor a published head."""
    signature: bool
    """A check of the signatures with the signer's public key."""
    published: bool
    """A comparison with the heads that were published during the run."""
    regrade: bool
    """Grading anew the checkpoint that counts, and the base model."""

    def __str__(self) -> str:
        names = {"verify": bool(self.verify), "signature": self.signature, "published head": self.published}
        found = [name for name, noticed in {**names, "grading anew": self.regrade}.items() if noticed]
        return ", ".join(found) or "NOTHING"


def noticed(scene: Scene, level: Level = "naive", with_mlflow: bool = True) -> Noticed:
    """Makes every check of a forged run. Who holds the key also holds the memory of the signer, so it is not asked."""
    key = load_public_key(public_path(scene.original.key))
    history = None if level == "with the key" else SignedHistory.beside(scene.original.key)
    trust = Trust(frozenset({key}), history, scene.original.published)
    checks = {
        each.what: each for each in verify_run(scene.run, Tracker(scene.settings) if with_mlflow else None, trust)
    }
    signed, published = checks.pop(SIGNED), checks.pop(PUBLISHED)
    return Noticed(
        tuple(_failed(checks.values())),
        bool(signed.problem),
        bool(published.problem),
        _regrade_differs(scene),
    )


def _failed(checks: Collection[CheckOutcome]) -> list[str]:
    return [check.what for check in checks if check.problem]


def _regrade_differs(scene: Scene) -> bool:
    """Grades anew with a grader whose scores follow from the weights alone."""
    with patch.object(regrading, "grade_now", scene.grade):
        try:
            found = regrading.regrade(scene.run, scene.settings), regrading.regrade_baseline(scene.run, scene.settings)
        except (A2rlError, KeyError, FileNotFoundError, ValueError):
            return True
        return not all(each.is_same for each in found)


def forge(forgery: Forgery, level: Level, scene: Scene) -> None:
    """Makes a forgery and hides it."""
    forgery(scene)
    scene.finish(level, draws=forgery not in UNDRAWN)


def main(names: Collection[str]) -> None:
    """Prints the table."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        original = Original.make(Path(scratch))
        honest = noticed(original.copy(Path(scratch) / "honest"))
        sys.stdout.write(f"the honest run: {honest} {', '.join(honest.verify)}\n\n| forgery | {' | '.join(LEVELS)} |\n")
        sys.stdout.write("|---" * (1 + len(LEVELS)) + "|\n")
        for forgery in FORGERIES:
            if names and forgery.__name__ not in names:
                continue
            cells = []
            for level in LEVELS:
                scene = original.copy(Path(scratch) / f"{forgery.__name__}-{level.replace(' ', '-')}")
                forge(forgery, level, scene)
                cells.append(str(noticed(scene, level)))
            about = (forgery.__doc__ or "").partition("`")[0].strip()
            sys.stdout.write(f"| {about} | {' | '.join(cells)} |\n")
            sys.stdout.flush()
    sys.stdout.write(f"\n{time.monotonic() - started:.0f} s\n")


if __name__ == "__main__":
    main(sys.argv[1:])
