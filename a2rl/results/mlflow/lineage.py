"""What a run used and made, for MLflow: its data sets, and the checkpoint that is its result."""

from collections.abc import Sequence
from pathlib import Path

from a2rl.core.files import folder_digest
from a2rl.core.settings import Settings
from a2rl.results.mlflow.models import BestCheckpoint
from a2rl.results.mlflow.store import DataSet
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.validity.record import read_validity


def data_of(run: RunDir, ready: SetupRecord, settings: Settings) -> list[DataSet]:
    """Returns the data sets of a run: what the agent gets, if it is on this machine, and what grades it.

    Of the second, MLflow gets the digest only, because the items are secret.
    """
    spec = run.spec
    name, visible = f"{spec.task}-{spec.variant}", settings.data(spec.task, spec.variant) / "visible"
    items = {} if ready.eval_items is None else {"items": ready.eval_items}
    graded = DataSet(f"{name}-eval", ready.data_digest, f"{name}-eval", "evaluation", items)
    if not visible.is_dir():
        return [graded]
    files = [path.stat().st_size for path in visible.rglob("*") if path.is_file()]
    size = {"files": len(files), "bytes": sum(files)}
    return [DataSet(name, folder_digest(visible), str(visible), "training", size), graded]


def best_checkpoint(run: RunDir, result: GradeRecord, entries: Sequence[Entry]) -> BestCheckpoint | None:
    """Returns the checkpoint that is the result of a run; None if it has no result."""
    chosen = next(
        (
            entry.event
            for entry in entries
            if isinstance(entry.event, SubmissionAccepted) and entry.event.submission_id == result.submission_id
        ),
        None,
    )
    if chosen is None or result.final is None or result.final.score is None:
        return None
    spec, validity = run.spec, read_validity(run)
    is_whole = spec.limit is None and (validity is None or validity.word != "void")
    alias = {"strict": "best", "paper": "best-paper"}[spec.protocol] if is_whole else ""
    path = run.checkpoint(chosen.weights_digest)
    tags = {
        "a2rl.checkpoint": str(path),
        "a2rl.weights_digest": chosen.weights_digest,
        "a2rl.submission": str(chosen.submission_id),
        "a2rl.protocol": spec.protocol,
        "agent": spec.agent,
        "verdict": result.verdict,
    }
    return BestCheckpoint(run.id, spec.task, spec.variant, spec.model, Path(path), result.final.score, alias, tags)
