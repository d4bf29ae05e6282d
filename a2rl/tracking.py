"""MLflow mirrors the ledger: a parent run for each benchmark run, nested ones for the baseline and every submission.

The only module that imports mlflow. The ledger is the truth; `sync` brings MLflow up to it and may be called at any
time and again, also by several processes: what is there already is left alone, and what is logged again carries the
ledger's own time, so that a crash between two calls loses and doubles nothing.
"""

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from a2rl.errors import A2rlError, InfrastructureError
from a2rl.events import BaselineKnown, Graded, SubmissionAccepted
from a2rl.figures import items_table, result_metrics, run_params, score_metrics
from a2rl.ledger import Entry, grades_among
from a2rl.printable import printable
from a2rl.ranking import selection_note
from a2rl.records import BaselineRecord, ExecuteRecord, GradeRecord, SetupRecord
from a2rl.run import RunDir
from a2rl.secrets import scrub
from a2rl.settings import Settings

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PARENT, CHILD, DONE = "a2rl.run_id", "a2rl.child", "a2rl.complete"
LIMITS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
"""Unless the user says otherwise: a server that is gone is to be noticed soon; it is asked again later."""
LOCK_TIMEOUT_S = 30
PAGE = 1000
TABLE = "items.json"
MAX_TEXT = 5000
"""Characters of a tag or a parameter: what all of MLflow's stores take."""
MAX_TAGS = 100
_CONNECT_LOCK = threading.Lock()


class TrackingError(InfrastructureError):
    """MLflow did not do what it was asked for."""


class Tracker:
    """Mirrors runs into one MLflow store; the connection is made when first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: MlflowClient | None = None
        self._is_loading = False
        self._answered_at = 0.0

    def sync(self, run: RunDir) -> None:
        """Brings MLflow up to the run's ledger and records.

        Raises:
            TrackingError: MLflow is not there, or refused something; calling this again makes up for it.
        """
        with self._asking(), self._alone(run):
            entries = run.ledger.entries()
            parent = self._parent(run)
            children = self._children(run, parent.info.run_id)
            self._sync_baseline(run, parent, children, entries)
            self._sync_submissions(run, parent, children, entries)
            self._sync_result(run, parent, entries)

    def mirrored(self, run: RunDir) -> dict[str, Mapping[str, float]]:
        """What MLflow holds for a run: the metrics of its nested runs by name, and of the parent under `result`."""
        with self._asking():
            parent = self._find(run)
            if parent is None:
                return {}
            children = self._children(run, parent.info.run_id)
            found: dict[str, Mapping[str, float]] = {"result": dict(parent.data.metrics)}
            return found | {name: dict(child.data.metrics) for name, child in children.items()}

    def head(self, run: RunDir) -> str | None:
        """The head of the ledger's chain as MLflow holds it."""
        with self._asking():
            parent = self._find(run)
            return parent.data.tags.get("a2rl.ledger_head") if parent else None

    def alive_at(self) -> float:
        """When MLflow last answered, by the monotonic clock. What this machine does by itself, such as loading the
        library, which takes seconds, counts as a sign of life."""
        return time.monotonic() if self._is_loading else self._answered_at

    def connect_soon(self) -> None:
        """Connects in the background: to import mlflow takes seconds, in which a run has other things to do."""

        def connect() -> None:
            try:
                with self._asking():
                    self.client  # noqa: B018 - connects
            except TrackingError:
                return  # whoever needs it asks again

        threading.Thread(target=connect, name="mlflow", daemon=True).start()

    @property
    def client(self) -> "MlflowClient":
        with _CONNECT_LOCK:
            if self._client is None:
                self._is_loading = True
                try:
                    self._client = self._connect()
                finally:
                    self._is_loading = False
        self._answered_at = time.monotonic()  # it is asked for again with every call
        return self._client

    def _connect(self) -> "MlflowClient":
        with quiet_mlflow():
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=self.uri)
            if self._is_local:
                self._settings.mlruns.mkdir(exist_ok=True)
                client.search_experiments(max_results=1)  # makes the database, once
            return client

    @property
    def uri(self) -> str:
        """MLFLOW_TRACKING_URI, or the SQLite database in mlruns/."""
        return self._settings.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._settings.mlruns / 'mlflow.db'}"

    @property
    def _is_local(self) -> bool:
        return self.uri.startswith("sqlite:")

    @contextmanager
    def _asking(self) -> Iterator[None]:
        """Whatever MLflow, its database or the network raises becomes one kind of error, in one line."""
        try:
            yield
        except A2rlError:
            raise
        except Exception as error:
            first = (str(error).strip().splitlines() or [""])[0][:300]
            told = f"MLflow at {self.uri} failed: {type(error).__name__}: {first}"
            raise TrackingError(_without_password(told)) from error

    @contextmanager
    def _alone(self, run: RunDir) -> Iterator[None]:
        """One process at a time mirrors a run: `a2rl report` may be called while it is going on."""
        try:
            with FileLock(run.root / ".mirror.lock", timeout=LOCK_TIMEOUT_S):
                yield
        except Timeout as error:
            raise TrackingError(f"another process is mirroring run {run.id}") from error

    def _experiment(self, suite: str) -> str:
        if (known := self.client.get_experiment_by_name(suite)) is None:
            location = (self._settings.mlruns / "artifacts").resolve().as_uri() if self._is_local else None
            try:
                return str(self.client.create_experiment(suite, artifact_location=location))
            except Exception:
                known = self.client.get_experiment_by_name(suite)  # another run may have been faster
                if known is None:
                    raise
        if known.lifecycle_stage == "deleted":
            raise TrackingError(f"its experiment {suite!r} was deleted: restore it, or name the suite otherwise")
        return str(known.experiment_id)

    def _parent(self, run: RunDir) -> Any:
        found = self._find(run)
        if found is None:
            tags = {PARENT: run.id}
            found = self.client.create_run(self._experiment(run.spec.suite), run_name=run.id, tags=tags)
        ready = run.read("setup", SetupRecord)
        if ready is not None and "model_digest" not in found.data.params:
            self._log(found.info.run_id, params=run_params(run, ready), tags={"a2rl.sandbox": ready.sandbox.kind})
        return found

    def _sync_baseline(self, run: RunDir, parent: Any, children: Mapping[str, Any], entries: list[Entry]) -> None:
        record = run.read("baseline", BaselineRecord)
        at = next((entry.at for entry in entries if isinstance(entry.event, BaselineKnown)), None)
        if record is not None and at is not None:
            metrics, tags = score_metrics(record.total), {"a2rl.key": record.key}
            self._child(run, parent, children, "baseline", metrics, at, tags, run.baseline_items)

    def _sync_submissions(self, run: RunDir, parent: Any, children: Mapping[str, Any], entries: list[Entry]) -> None:
        grades = grades_among(entries)
        times = {entry.event.weights_digest: entry.at for entry in entries if isinstance(entry.event, Graded)}
        for event in (entry.event for entry in entries if isinstance(entry.event, SubmissionAccepted)):
            name, grade = f"submission {event.submission_id}", grades.get(event.weights_digest)
            if grade is None or _is_done(children.get(name)):
                continue
            metrics = {**score_metrics(grade.result), "seconds_since_start": event.elapsed_s}
            if grade.improvement is not None:
                metrics["improvement"] = grade.improvement
            tags = {
                "a2rl.weights_digest": event.weights_digest,
                "a2rl.checkpoint": str(run.checkpoint(event.weights_digest)),
                "a2rl.code_revision": event.code_revision or "",
                "a2rl.model_path": event.model_path,
                "a2rl.reason": grade.result.reason,
            }
            at = times[event.weights_digest]
            if grade.result.score is not None:
                # Before the nested run is closed: a crash between the two logs the same point again, which is one.
                public = {"public_score": grade.result.score}
                self._log(parent.info.run_id, public, at, event.submission_id)
            items = run.items(event.weights_digest, run.spec.public_split)
            self._child(run, parent, children, name, metrics, at, tags, items)

    def _sync_result(self, run: RunDir, parent: Any, entries: list[Entry]) -> None:
        result, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
        if result is None or (executed is None and result.failed_stage is None):
            return
        parent_id, at = parent.info.run_id, entries[-1].at if entries else 0.0
        found = result_metrics(result, executed)
        metrics = {name: value for name, value in found.items() if parent.data.metrics.get(name) != value}
        head = run.ledger.verify() if entries else ""
        tags = {"a2rl.verdict": result.verdict, "a2rl.reason": result.reason, "a2rl.ledger_head": head}
        if result.final and (note := selection_note(run)):
            tags["a2rl.selection"] = note
        self._log(parent_id, metrics, at, tags=tags)
        for artifact in (run.report, run.trajectory):
            if artifact.exists():
                self.client.log_artifact(parent_id, str(artifact))
        self.client.set_terminated(parent_id, "FAILED" if result.verdict == "failed" else "FINISHED")

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
        if _is_done(child):
            return
        if child is None:
            every = {"mlflow.parentRunId": parent.info.run_id, PARENT + "_of_child": run.id, CHILD: name, **tags}
            known = {key: _short(value) for key, value in every.items()}
            child = self.client.create_run(parent.info.experiment_id, run_name=name, tags=known)
        child_id = child.info.run_id
        if items.exists():
            self.client.log_text(child_id, items_table(items), TABLE)  # MLflow's own log_table would append to it
        shown = json.dumps([{"path": TABLE, "type": "table"}])
        self.client.set_terminated(child_id, "FINISHED" if "score" in metrics else "FAILED")
        self._log(child_id, metrics, at, tags={DONE: "true", "mlflow.loggedArtifacts": shown})  # last: then it is whole

    def _log(
        self,
        run_id: str,
        metrics: Mapping[str, float] | None = None,
        at: float = 0.0,
        step: int = 0,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """All in one request; a metric of the same time, step and value is there once, however often it is logged."""
        from mlflow.entities import Metric, Param, RunTag

        points = [Metric(name, float(value), int(at * 1000), step) for name, value in (metrics or {}).items()]
        known = [Param(name, _short(str(value))) for name, value in (params or {}).items()]
        labels = [RunTag(name, _short(value)) for name, value in (tags or {}).items()]
        for first in range(0, max(1, len(known)), MAX_TAGS):
            self.client.log_batch(run_id, metrics=points, params=known[first : first + MAX_TAGS], tags=labels)

    def _children(self, run: RunDir, parent: str) -> dict[str, Any]:
        """All nested runs by name, however many they are."""
        experiment, found, token = self._experiment(run.spec.suite), dict[str, Any](), None
        while True:
            query = f"tags.`mlflow.parentRunId` = '{parent}'"
            page = self.client.search_runs([experiment], query, max_results=PAGE, page_token=token)
            found |= {child.data.tags.get(CHILD, child.info.run_id): child for child in page}
            if not (token := page.token):
                return found

    def _find(self, run: RunDir) -> Any:
        query = f"tags.`{PARENT}` = '{run.id}'"
        found = self.client.search_runs([self._experiment(run.spec.suite)], query, max_results=1)
        return found[0] if found else None


def _is_done(child: Any) -> bool:
    return child is not None and DONE in child.data.tags


def _short(text: str) -> str:
    """As MLflow gets it: visible, without secrets, and not too long."""
    return printable(scrub(text), MAX_TEXT)[:MAX_TEXT]


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """MLflow and alembic announce every migration of a new database; a user did not ask. Nor do we wait for it long."""
    for name, value in LIMITS.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # of a server that is down we tell ourselves
    yield
