"""Removes checkpoints that a run no longer needs, as its setting `keep` says; the ledger has an event for each.

A checkpoint is needed until it is graded. `keep: best` then keeps the best so far. `keep: none` keeps it only until the
checks of the stage `validity` have looked at its weights. What could not be graded is kept, so that one can see why.
"""

import shutil
from collections.abc import Sequence

from a2rl.grading.submission_states import ungraded
from a2rl.run.directory import RunDir
from a2rl.run.events import CheckpointPruned, SubmissionAccepted, ValidityDecided
from a2rl.run.ledger import Entry, grades_among
from a2rl.run.ranking import best_among
from a2rl.run.spec import RunSpec

PREFIX = ".pruned-"


class _NothingToPruneError(Exception):
    """All checkpoints are needed."""


def pruned(entries: Sequence[Entry]) -> set[str]:
    """Returns the digests of the checkpoints that were removed."""
    return {entry.event.weights_digest for entry in entries if isinstance(entry.event, CheckpointPruned)}


def unneeded(spec: RunSpec, entries: Sequence[Entry]) -> list[str]:
    """Returns the digests of the checkpoints that can be removed now, in the order of their submission.

    While the result is open, its checkpoint is needed with every setting.
    """
    if spec.keep == "all":
        return []
    is_open = not any(isinstance(entry.event, ValidityDecided) for entry in entries)
    grades, gone, waiting = grades_among(entries), pruned(entries), ungraded(entries)
    best = best_among(entries)
    kept = {best.submission.weights_digest} if best and (spec.keep == "best" or is_open) else set()
    accepted = [entry.event.weights_digest for entry in entries if isinstance(entry.event, SubmissionAccepted)]
    return [
        digest
        for digest in dict.fromkeys(accepted)
        if digest not in kept | gone | waiting.keys() and grades[digest].result.score is not None
    ]


def mark_unneeded(run: RunDir) -> None:
    """Records which checkpoints are removed, and takes them out of their place; `sweep` removes them."""
    while True:
        try:
            run.ledger.append_next(lambda entries: _next(run.spec, entries))
        except _NothingToPruneError:
            break
    for digest in pruned(run.ledger.entries()):
        if (folder := run.checkpoint(digest)).exists():
            folder.rename(folder.with_name(f"{PREFIX}{folder.name}"))


def sweep(run: RunDir) -> None:
    """Removes what was taken out of its place."""
    for folder in run.checkpoints.glob(f"{PREFIX}*"):
        shutil.rmtree(folder, ignore_errors=True)


def prune(run: RunDir) -> None:
    """Removes all checkpoints that are no longer needed, while no grading service is running."""
    mark_unneeded(run)
    sweep(run)


def invalid_pruning(spec: RunSpec, entries: Sequence[Entry]) -> str:
    """Returns the first removal of a checkpoint that was still needed; empty if there is none."""
    for number, entry in enumerate(entries):
        event = entry.event
        if isinstance(event, CheckpointPruned) and event.weights_digest not in unneeded(spec, entries[:number]):
            return f"entry {entry.seq} removes a checkpoint that the run still needed, or that was not there"
    return ""


def _next(spec: RunSpec, entries: Sequence[Entry]) -> CheckpointPruned:
    for digest in unneeded(spec, entries):
        return CheckpointPruned(weights_digest=digest)
    raise _NothingToPruneError
