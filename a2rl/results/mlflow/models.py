"""What a run used and made, in MLflow: its data sets, and its best checkpoint in the registry of models.

The weights stay in the run's directory. A registered model has one version for each run of its task, variant and base
model. The alias `best` (`best-paper` for runs under that protocol) is on the version with the highest score among the
runs that graded the whole eval set and are not void.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.files import folder_digest
from a2rl.results.mlflow.store import DataSet, MlflowStore, short_text
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry
from a2rl.run.records import GradeRecord, SetupRecord
from a2rl.run.spec import RunSpec
from a2rl.validity.record import read_validity

RUN_TAG, SCORE_TAG, GROUP_TAG = "a2rl.run_id", "score", "a2rl.alias"
MAX_NAME = 100


class BestCheckpoint(NamedTuple):
    """The checkpoint that is the result of a run."""

    run: str
    """The id of the run."""
    task: str
    variant: str
    base: str
    """The base model: a name, a folder, or a hub id."""
    checkpoint: Path
    score: float
    alias: str
    """The alias that it competes for; empty if it competes for none."""
    tags: Mapping[str, str]

    @property
    def name(self) -> str:
        """The name of the registered model."""
        parts = (self.task, self.variant, Path(self.base).name)
        return "-".join(re.sub(r"[^\w.-]+", "_", part) for part in parts)[:MAX_NAME]


def log_model(store: MlflowStore, suite: str, run_id: str, best: BestCheckpoint) -> str:
    """Makes a logged model that refers to the checkpoint, as an output of an MLflow run; returns its id. Four
    requests."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    made = store.client.create_logged_model(
        store.experiment(suite), best.name, run_id, {key: short_text(value) for key, value in best.tags.items()},
        {"base": short_text(best.base)}, "checkpoint",
    )  # fmt: skip
    about = {"checkpoint": str(best.checkpoint), "base": best.base, **best.tags}
    store.save_text(made.artifact_location, "checkpoint.json", json.dumps(about, indent=1))
    store.client.finalize_logged_model(made.model_id, LoggedModelStatus.READY)
    store.client.log_outputs(run_id, [LoggedModelOutput(made.model_id, 0)])
    return str(made.model_id)


def register(store: MlflowStore, run_id: str, model_id: str, best: BestCheckpoint) -> None:
    """Registers a logged model as the version of its run, and puts the alias on the best version. Up to six
    requests; calling this again changes only what has changed."""
    versions = _versions(store, best.name)
    tags = {RUN_TAG: best.run, SCORE_TAG: str(best.score), GROUP_TAG: best.alias, **best.tags}
    known = next((each for each in versions if each.tags.get(RUN_TAG) == best.run), None)
    if known is None:
        if not versions:
            with suppress(Exception):  # its type depends on the store; another process made it, or the next call fails
                store.client.create_registered_model(best.name)
        source = store.client.get_logged_model(model_id).artifact_location
        known = store.client.create_model_version(
            best.name, source, run_id, {key: short_text(value) for key, value in tags.items()},
            description=short_text(f"The result of run {best.run}. The weights are in {best.checkpoint}"),
            await_creation_for=0, model_id=model_id,
        )  # fmt: skip
        versions = _versions(store, best.name)  # with those that other processes made meanwhile
    elif known.tags.get(GROUP_TAG, "") != best.alias:  # it was found to be void
        store.client.set_model_version_tag(best.name, known.version, GROUP_TAG, best.alias)
        versions = _versions(store, best.name)
    for alias in {each.tags.get(GROUP_TAG, "") for each in versions} - {""}:
        _point(store, best.name, alias, versions)


def _point(store: MlflowStore, name: str, alias: str, versions: list[Any]) -> None:
    rivals = [each for each in versions if each.tags.get(GROUP_TAG) == alias]
    winner = max(rivals, key=lambda each: (float(each.tags[SCORE_TAG]), -int(each.version)))
    if alias not in winner.aliases:
        store.client.set_registered_model_alias(name, alias, winner.version)


def _versions(store: MlflowStore, name: str) -> list[Any]:
    return list(store.client.search_model_versions(f"name = '{name}'", max_results=10_000))


def data_of(spec: RunSpec, ready: SetupRecord, data: Path) -> list[DataSet]:
    """Returns the data sets of a run: what the agent gets, if it is in the folder `data`, and what grades it.

    Of the second, MLflow gets the digest only, because the items are secret.
    """
    name, visible = f"{spec.task}-{spec.variant}", data / "visible"
    graded = DataSet(f"{name}-eval", ready.data_digest, f"{name}-eval", "evaluation", {"items": ready.eval_items})
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
