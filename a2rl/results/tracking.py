"""Mirrors the ledger in MLflow: one MLflow run for each benchmark run, nested ones for baseline and submissions.

The ledger is authoritative. `sync` brings MLflow up to date with it. It may be called at any time and repeatedly, also
by several processes: entries that exist are left unchanged, and repeated metrics have the time stored in the ledger, so
that a crash between two requests neither loses nor duplicates anything.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from a2rl.core.settings import Settings
from a2rl.results.figures import items_table, result_metrics, run_params, run_tags, sample_tag, score_metrics
from a2rl.results.mlflow_store import CHILD_TAG, RUN_ID_TAG, MlflowStore, TrackingError, short_text
from a2rl.run.directory import RunDir
from a2rl.run.events import BaselineKnown, Graded, SubmissionAccepted
from a2rl.run.ledger import Entry, grades_among
from a2rl.run.ranking import selection_note
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, SetupRecord
from a2rl.validity.record import counted_gain, read_validity

COMPLETE_TAG = "a2rl.complete"
LOCK_TIMEOUT_S = 30
TABLE = "items.json"


class Tracker:
    """Mirrors runs into one MLflow store."""

    def __init__(self, settings: Settings) -> None:
        self.store = MlflowStore(settings)

    def sync(self, run: RunDir) -> None:
        """Brings MLflow up to date with the run's ledger and records.

        Raises:
            TrackingError: A request to MLflow failed; calling this again catches up.
        """
        with self.store.errors(), self._locked(run):
            entries = run.ledger.entries()
            parent = self._parent(run)
            children = self.store.children(run, parent.info.run_id)
            self._sync_baseline(run, parent, children, entries)
            self._sync_submissions(run, parent, children, entries)
            self._sync_result(run, parent, entries)

    def mirrored(self, run: RunDir) -> dict[str, Mapping[str, float]]:
        """Returns the metrics that MLflow has for a run, by the name of the nested run; the parent is `result`."""
        with self.store.errors():
            parent = self.store.find(run)
            if parent is None:
                return {}
            children = self.store.children(run, parent.info.run_id)
            found: dict[str, Mapping[str, float]] = {"result": dict(parent.data.metrics)}
            return found | {name: dict(child.data.metrics) for name, child in children.items()}

    def head(self, run: RunDir) -> str | None:
        """Returns the head of the ledger's hash chain that MLflow has; None if it has none."""
        with self.store.errors():
            parent = self.store.find(run)
            return parent.data.tags.get("a2rl.ledger_head") if parent else None

    @contextmanager
    def _locked(self, run: RunDir) -> Iterator[None]:
        """Lets one process at a time mirror a run, since `a2rl report` may be called while the run is in progress."""
        try:
            with FileLock(run.root / ".mirror.lock", timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout as error:
            raise TrackingError(f"another process is mirroring run {run.id}") from error

    def _parent(self, run: RunDir) -> Any:
        found = self.store.find(run)
        if found is None:
            tags = {RUN_ID_TAG: run.id}
            if run.spec.launch:
                tags["a2rl.launch"] = run.spec.launch
            found = self.store.client.create_run(self.store.experiment(run.spec.suite), run_name=run.id, tags=tags)
        ready = run.read("setup", SetupRecord)
        if ready is not None and "model_digest" not in found.data.params:
            self.store.log(found.info.run_id, params=run_params(run, ready), tags=run_tags(run, ready))
        return found

    def _sync_baseline(self, run: RunDir, parent: Any, children: Mapping[str, Any], entries: list[Entry]) -> None:
        record = run.read("baseline", BaselineRecord)
        at = next((entry.at for entry in entries if isinstance(entry.event, BaselineKnown)), None)
        if record is not None and at is not None:
            metrics, tags = score_metrics(record.total), {"a2rl.key": record.key, **sample_tag(run)}
            self._child(run, parent, children, "baseline", metrics, at, tags, run.baseline_items)

    def _sync_submissions(self, run: RunDir, parent: Any, children: Mapping[str, Any], entries: list[Entry]) -> None:
        grades = grades_among(entries)
        times = {entry.event.weights_digest: entry.at for entry in entries if isinstance(entry.event, Graded)}
        for event in (entry.event for entry in entries if isinstance(entry.event, SubmissionAccepted)):
            name, grade = f"submission {event.submission_id}", grades.get(event.weights_digest)
            if grade is None or _is_complete(children.get(name)):
                continue
            metrics = {**score_metrics(grade.result), "seconds_since_start": event.elapsed_s}
            if grade.improvement is not None:
                metrics["improvement"] = grade.improvement
            tags = {
                "a2rl.weights_digest": event.weights_digest,
                "a2rl.checkpoint": str(run.checkpoint(event.weights_digest)),
                "a2rl.code_revision": event.code_revision or "",
                "a2rl.model_path": event.model_path,
                "a2rl.adapter": event.adapter,
                "a2rl.reason": grade.result.reason,
                **sample_tag(run),
            }
            at = times[event.weights_digest]
            if grade.result.score is not None:
                # This is logged before the nested run is complete. After a crash it may be logged again; MLflow still
                # keeps one point.
                public = {"public_score": grade.result.score}
                self.store.log(parent.info.run_id, public, at, event.submission_id)
            items = run.items(event.weights_digest, run.spec.public_split)
            self._child(run, parent, children, name, metrics, at, tags, items)

    def _sync_result(self, run: RunDir, parent: Any, entries: list[Entry]) -> None:
        result, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
        if result is None or (executed is None and result.failed_stage is None):
            return
        parent_id, at = parent.info.run_id, entries[-1].at if entries else 0.0
        found = result_metrics(result, executed) | {"gain": counted_gain(run, result)}
        metrics = {name: value for name, value in found.items() if parent.data.metrics.get(name) != value}
        head = run.ledger.verify() if entries else ""
        tags = {"a2rl.verdict": result.verdict, "a2rl.reason": result.reason, "a2rl.ledger_head": head}
        if (validity := read_validity(run)) is not None:
            tags |= {"a2rl.validity": validity.word, "a2rl.findings": " ".join(validity.why)}
        if result.final and (note := selection_note(run)):
            tags["a2rl.selection"] = note
        self.store.log(parent_id, metrics, at, tags=tags)
        for artifact in (run.report, run.trajectory):
            if artifact.exists():
                self.store.client.log_artifact(parent_id, str(artifact))
        self.store.client.set_terminated(parent_id, "FAILED" if result.verdict == "failed" else "FINISHED")

    def _child(
        self,
        run: RunDir,
        parent: Any,
        children: Mapping[str, Any],
        name: str,
        metrics: Mapping[str, float],
        at: float,
        tags: Mapping[str, str],
        items: Path,
    ) -> None:
        child = children.get(name)
        if _is_complete(child):
            return
        if child is None:
            every = {
                "mlflow.parentRunId": parent.info.run_id,
                RUN_ID_TAG + "_of_child": run.id,
                CHILD_TAG: name,
                **tags,
            }
            known = {key: short_text(value) for key, value in every.items()}
            child = self.store.client.create_run(parent.info.experiment_id, run_name=name, tags=known)
        child_id = child.info.run_id
        if items.exists():
            self.store.client.log_text(
                child_id, items_table(items), TABLE
            )  # log_table would append to an existing table instead
        shown = json.dumps([{"path": TABLE, "type": "table"}])
        self.store.client.set_terminated(child_id, "FINISHED" if "score" in metrics else "FAILED")
        self.store.log(
            child_id, metrics, at, tags={COMPLETE_TAG: "true", "mlflow.loggedArtifacts": shown}
        )  # last: marks it as complete


def _is_complete(child: Any) -> bool:
    return child is not None and COMPLETE_TAG in child.data.tags
