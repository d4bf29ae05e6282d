"""Stage `validity`: what the result is worth. Checks read what is known of the run; they can only lower its worth."""

import time

from a2rl.contamination.check import length_gaming, text_hits
from a2rl.contamination.fresh_check import log_probability_gap, twins_gap
from a2rl.core.settings import Settings
from a2rl.grading.pruning import prune
from a2rl.provenance.check import provenance, tries
from a2rl.run.directory import RunDir
from a2rl.validity.checks import Checked, CheckFunction, run_checks, run_checks_apart
from a2rl.validity.ending import confinement, cut_short, survivors, ungraded, untouched_base
from a2rl.validity.evidence import RunEvidence
from a2rl.validity.halves import halves_agree
from a2rl.validity.record import STAGE, ValidityRecord, decide, reveal_draw
from a2rl.validity.traces import code, full_records, hosts, leaked_keys, teachers

READING: tuple[CheckFunction, ...] = (
    confinement, survivors, ungraded, cut_short, untouched_base, code, leaked_keys, full_records, teachers, hosts,
    halves_agree,
    length_gaming, provenance, tries, text_hits,
)  # fmt: skip
"""The checks that read what is there, the cheap ones first. They are made in a process of their own."""
GRADING: tuple[CheckFunction, ...] = (twins_gap, log_probability_gap)
"""The checks that start graders."""
CHECKS = READING + GRADING
"""The checks of a run. To add one, add its function."""


def validity(run: RunDir, settings: Settings) -> ValidityRecord:
    """Makes all checks and records what follows from them; then the result's weights may go, if they are not kept.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
    """
    if (done := run.read(STAGE, ValidityRecord)) is None:
        started = time.monotonic()
        evidence = RunEvidence(run, settings)
        read, graded = run_checks_apart(evidence, READING), run_checks(evidence, GRADING)
        checked = Checked([*read.findings, *graded.findings], [*read.runs, *graded.runs])
        reveal_draw(run)
        done = decide(run, checked, time.monotonic() - started)
    prune(run)
    return done
