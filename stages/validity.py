"""Stage `validity`: what the result is worth. Checks read what is known of the run; they can only lower its worth."""

import time

from a2rl.contamination.check import length_gaming, log_probability_gap, text_hits, twins_gap
from a2rl.core.settings import Settings
from a2rl.grading.submission_states import prune
from a2rl.provenance.check import provenance, tries
from a2rl.run.directory import RunDir
from a2rl.validity.checks import CheckFunction, RunEvidence, run_checks, run_checks_apart
from a2rl.validity.conduct import (
    code,
    confinement,
    cut_short,
    full_records,
    hosts,
    leaked_keys,
    survivors,
    teachers,
    ungraded,
    unrecorded,
    untouched_base,
)
from a2rl.validity.halves import halves_agree
from a2rl.validity.record import STAGE, ValidityRecord, decide, reveal_draw

READING: tuple[CheckFunction, ...] = (
    confinement, survivors, ungraded, cut_short, untouched_base, code, leaked_keys, full_records, unrecorded, teachers,
    hosts, halves_agree,
    length_gaming, provenance, tries, text_hits,
)  # fmt: skip
"""The checks of a run that read what is there, the cheap ones first. They are made in a process of their own."""
GRADING: tuple[CheckFunction, ...] = (twins_gap, log_probability_gap)
"""Those that start graders. To add a check, add its function."""


def validity(run: RunDir, settings: Settings) -> ValidityRecord:
    """Makes all checks and records what follows from them; then the result's weights may go, if they are not kept.

    Raises:
        InterruptedByUserError: The user stopped the pipeline.
    """
    if (done := run.read(STAGE, ValidityRecord)) is None:
        started = time.monotonic()
        evidence = RunEvidence(run, settings)
        findings = run_checks_apart(evidence, READING) + run_checks(evidence, GRADING)
        reveal_draw(run)
        done = decide(run, findings, time.monotonic() - started)
    prune(run)
    return done
