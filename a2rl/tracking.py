"""MLflow mirrors the ledger: a parent run for each benchmark run, nested ones for the baseline and every submission.

The only module that imports mlflow. The ledger is the truth; `sync` brings MLflow up to it and may be called at any
time and again: what is there already is left alone, so that a crash between two calls loses and doubles nothing.
"""

import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from a2rl.events import SubmissionAccepted
from a2rl.files import read_model
from a2rl.grading.job import GradeResult
from a2rl.printable import printable
from a2rl.records import BaselineRecord, ExecuteRecord, GradeRecord, SetupRecord
from a2rl.run import RunDir
from a2rl.score import TaskScore
from a2rl.secrets import scrub
from a2rl.settings import Settings

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

PARENT, CHILD, DONE = "a2rl.run_id", "a2rl.child", "a2rl.complete"
REFUSED = re.compile(r"[^\w\-. :/]")
"""What MLflow takes in no metric's name; a task names its kinds and measures as people read them."""
MAX_CHARS = 5000
"""Of a tag or parameter; MLflow takes 6,000 at most."""
_SCHEMA_LOCK = threading.Lock()


class Tracker:
    """Mirrors runs into one MLflow store; the connection is made when first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: MlflowClient | None = None
        self._parents: dict[str, str] = {}
        self._seen: dict[str, int] = {}
        self._lock = threading.RLock()

    def sync_new(self, run: RunDir) -> None:
        """Like `sync`, but returns at once while the ledger has nothing new."""
        entries = run.ledger.entries()
        if len(entries) != self._seen.get(run.id):
            self.sync(run)
            self._seen[run.id] = len(entries)

    def sync(self, run: RunDir) -> None:
        """Brings MLflow up to the run's ledger and records."""
        with self._lock:
            parent = self._parent(run)
            self._sync_baseline(run, parent)
            self._sync_submissions(run, parent)
            self._sync_result(run, parent)

    def mirrored(self, run: RunDir) -> dict[str, Mapping[str, float]]:
        """What MLflow holds for a run: the metrics of its nested runs by name, and of the parent under `result`."""
        with self._lock:
            parent = self._find(run, f"tags.`{PARENT}` = '{run.id}'")
            if parent is None:
                return {}
            found: dict[str, Mapping[str, float]] = {"result": dict(parent.data.metrics)}
            for child in self._children(run, parent.info.run_id):
                found[child.data.tags[CHILD]] = dict(child.data.metrics)
            return found

    def head(self, run: RunDir) -> str | None:
        """The head of the ledger's chain as MLflow holds it."""
        with self._lock:
            parent = self._find(run, f"tags.`{PARENT}` = '{run.id}'")
            return parent.data.tags.get("a2rl.ledger_head") if parent else None

    def connect_soon(self) -> None:
        """Connects in the background: to import mlflow takes seconds, in which a run has other things to do."""
        threading.Thread(target=lambda: self.client, name="mlflow", daemon=True).start()

    @property
    def client(self) -> "MlflowClient":
        with _SCHEMA_LOCK:
            if self._client is None:
                self._client = self._connect()
        return self._client

    def _connect(self) -> "MlflowClient":
        with quiet_mlflow():
            from mlflow.tracking import MlflowClient

            self._settings.mlruns.mkdir(exist_ok=True)
            client = MlflowClient(tracking_uri=self.uri)
            client.search_experiments(max_results=1)  # makes the database, once
            return client

    @property
    def uri(self) -> str:
        """MLFLOW_TRACKING_URI, or the SQLite database in mlruns/."""
        return self._settings.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._settings.mlruns / 'mlflow.db'}"

    def _experiment(self, suite: str) -> str:
        if (known := self.client.get_experiment_by_name(suite)) is not None:
            return str(known.experiment_id)
        local = self.uri.startswith("sqlite:")
        location = (self._settings.mlruns / "artifacts").resolve().as_uri() if local else None
        return str(self.client.create_experiment(suite, artifact_location=location))

    def _parent(self, run: RunDir) -> str:
        if run.id in self._parents:
            return self._parents[run.id]
        found = self._find(run, f"tags.`{PARENT}` = '{run.id}'")
        if found is None:
            spec = run.spec
            found = self.client.create_run(
                self._experiment(spec.suite), run_name=spec.run_id, tags={PARENT: spec.run_id}
            )
            params: dict[str, Any] = spec.model_dump(exclude={"versions", "run_id", "schema_version"})
            params |= {f"version.{name}": version for name, version in spec.versions.items()}
            if (ready := run.read("setup", SetupRecord)) is not None:
                params |= {
                    "model_digest": ready.model_digest,
                    "data_digest": ready.data_digest,
                    "sandbox": ready.sandbox,
                }
                self.client.set_tag(found.info.run_id, "a2rl.sandbox", printable(ready.sandbox))
            for name, value in params.items():
                self.client.log_param(found.info.run_id, name, printable(str(value))[:MAX_CHARS])
        self._parents[run.id] = str(found.info.run_id)
        return self._parents[run.id]

    def _sync_baseline(self, run: RunDir, parent: str) -> None:
        record = run.read("baseline", BaselineRecord)
        if record is None:
            return
        self._child(
            run,
            parent,
            "baseline",
            _score_metrics(record.total),
            {"a2rl.key": record.key},
            run.baseline_items,
        )

    def _sync_submissions(self, run: RunDir, parent: str) -> None:
        grades = run.ledger.grades()
        for event in run.ledger.events(SubmissionAccepted):
            if (grade := grades.get(event.weights_digest)) is None:
                continue
            metrics = {**_score_metrics(grade.result), "seconds_since_start": event.elapsed_s}
            if grade.improvement is not None:
                metrics["improvement"] = grade.improvement
            tags = {
                "a2rl.weights_digest": event.weights_digest,
                "a2rl.checkpoint": str(run.checkpoint(event.weights_digest)),
                "a2rl.code_revision": event.code_revision or "",
                "a2rl.model_path": event.model_path,
                "a2rl.reason": grade.result.reason,
            }
            items = run.items(event.weights_digest, run.spec.public_split)
            self._child(run, parent, f"submission {event.submission_id}", metrics, tags, items)
            if grade.result.score is not None:
                self.client.log_metric(parent, "public_score", grade.result.score, step=event.submission_id)

    def _sync_result(self, run: RunDir, parent: str) -> None:
        result, executed = run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
        if result is None or executed is None:
            return
        metrics = {
            "baseline_score": result.baseline.score,
            "submissions": executed.submissions,
            "agent_seconds": executed.elapsed_s,
        }
        if executed.usage:
            metrics |= executed.usage.model_dump()
        if result.public and result.final:
            metrics |= {
                "best_score": result.public.score,
                "final_score": result.final.score,
                "improvement": result.improvement,
            }
            metrics |= dict(zip(("final_ci_low", "final_ci_high"), result.final.ci or (), strict=False))
            metrics |= dict(
                zip(("improvement_ci_low", "improvement_ci_high"), result.improvement_ci or (), strict=False)
            )
        for name, value in metrics.items():
            if value is not None:
                self.client.log_metric(parent, name, float(value))
        self.client.set_tag(parent, "a2rl.verdict", result.verdict)
        self.client.set_tag(parent, "a2rl.ledger_head", run.ledger.verify())
        for artifact in (run.report, run.trajectory):
            if artifact.exists():
                self.client.log_artifact(parent, str(artifact))
        self.client.set_terminated(parent, "FINISHED")

    def _child(
        self, run: RunDir, parent: str, name: str, metrics: Mapping[str, float], tags: Mapping[str, str], items: Any
    ) -> None:
        known = {child.data.tags[CHILD]: child for child in self._children(run, parent)}
        if name in known:
            child = known[name]
            if child.data.tags.get(DONE):
                return
        else:
            every = {"mlflow.parentRunId": parent, PARENT + "_of_child": run.id, CHILD: name, **_visible(tags)}
            child = self.client.create_run(self._experiment(run.spec.suite), run_name=name, tags=every)
        child_id = child.info.run_id
        for metric, value in metrics.items():
            self.client.log_metric(child_id, metric, value)
        if items.exists():
            rows = [_visible(item.model_dump()) for item in read_model(items, GradeResult).items]
            self.client.log_table(
                child_id, {key: [row[key] for row in rows] for key in rows[0]}, "items.json"
            ) if rows else None
        self.client.set_tag(child_id, DONE, "true")
        self.client.set_terminated(child_id, "FINISHED" if "score" in metrics else "FAILED")

    def _children(self, run: RunDir, parent: str) -> list[Any]:
        experiment = self._experiment(run.spec.suite)
        return list(self.client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{parent}'", max_results=1000))

    def _find(self, run: RunDir, query: str) -> Any:
        found = self.client.search_runs([self._experiment(run.spec.suite)], query, max_results=1)
        return found[0] if found else None


def _visible(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with all that an agent or its model wrote made visible."""
    return {
        name: printable(scrub(value), MAX_CHARS, lines=True)[:MAX_CHARS] if isinstance(value, str) else value
        for name, value in values.items()
    }


def _score_metrics(score: TaskScore) -> dict[str, float]:
    counts = {name: float(getattr(score, name)) for name in ("total", "correct", "wrong", "truncated", "errored")}
    metrics = {**counts, "grading_seconds": score.seconds}
    if score.score is not None:
        metrics["score"] = score.score
    if score.ci is not None:
        metrics |= {"ci_low": score.ci.low, "ci_high": score.ci.high}
    metrics |= {f"by_kind.{name}": group.score for name, group in score.groups.items() if group.score is not None}
    metrics |= {f"measure.{name}": value for name, value in score.measures.items()}
    return {REFUSED.sub("", name): value for name, value in metrics.items()}


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """MLflow and alembic announce every migration of a new database; a user did not ask."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    yield
