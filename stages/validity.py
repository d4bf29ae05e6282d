"""Stage `validity`: what the result is worth. Checks read what is known of the run; they can only lower its worth."""

import time

from a2rl.contamination.check import length_gaming, text_hits
from a2rl.contamination.fresh_check import log_probability_gap, twins_gap
from a2rl.core.settings import Settings
from a2rl.grading.pruning import prune
from a2rl.provenance.check import provenance, tries
from a2rl.run.directory import RunDir
from a2rl.run.reveal import reveal_draw
from a2rl.validity.checks import Check, run_checks
from a2rl.validity.ending import confinement, survivors, ungraded
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.halves import halves_agree
from a2rl.validity.record import STAGE, ValidityRecord, decide
from a2rl.validity.rules_check import hosts, teachers
from a2rl.validity.traces import code, leaked_keys

CHECKS: tuple[Check, ...] = (
    confinement, survivors, ungraded, code, leaked_keys, teachers, hosts, halves_agree,
    length_gaming, provenance, tries, text_hits, twins_gap, log_probability_gap,
)  # fmt: skip
"""The checks of a run, the cheap ones first. To add one, add its function."""


def validity(run: RunDir, settings: Settings) -> ValidityRecord:
    """Makes all checks and records what follows from them; then the result's weights may go, if they are not kept.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
    """
    if (done := run.read(STAGE, ValidityRecord)) is None:
        started = time.monotonic()
        checked = run_checks(RunEvidence(run, settings), CHECKS)
        reveal_draw(run)
        done = decide(run, checked, time.monotonic() - started)
    prune(run)
    return done
