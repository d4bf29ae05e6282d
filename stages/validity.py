"""Stage `validity`: what the result is worth. Checks read what is known of the run; they can only lower its worth."""

import time

from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.reveal import reveal_draw
from a2rl.validity.checks import Check, run_checks
from a2rl.validity.ending import confinement, survivors, ungraded
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.halves import halves_agree
from a2rl.validity.record import STAGE, ValidityRecord, decide
from a2rl.validity.rules_check import hosts, teachers
from a2rl.validity.traces import code, leaked_keys

CHECKS: tuple[Check, ...] = (confinement, survivors, ungraded, code, leaked_keys, teachers, hosts, halves_agree)
"""The checks of a run, the cheap ones first. To add one, add its function."""


def validity(run: RunDir, settings: Settings) -> ValidityRecord:
    """Makes all checks and records what follows from them.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
    """
    if (done := run.read(STAGE, ValidityRecord)) is not None:
        return done
    started = time.monotonic()
    checked = run_checks(RunEvidence(run, settings), CHECKS)
    reveal_draw(run)
    return decide(run, checked, time.monotonic() - started)
