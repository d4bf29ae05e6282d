"""One MLflow store: the connection, its errors, and the few requests that a2rl makes.

Each method says how many requests it makes, since that is what a mirror costs.

    store = MlflowStore(settings)
    with store.errors():
        parent = store.find(run)
"""

import json
import logging
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.locks import file_lock
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.core.settings import Settings

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUN_ID_TAG, CHILD_TAG = "a2rl.run_id", "a2rl.child"
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""Settings of MLflow that the user may override. With them, MLflow soon reports a server that does not answer."""
PAGE_SIZE = 1000
MAX_TEXT = 5000
"""The length in characters of a tag or a parameter that all of MLflow's stores accept."""
CREATE_TIMEOUT_S = 120
"""How long to wait for another process that creates the database. Two that create it at once would both fail."""
MAX_PARAMS = 100
"""The number of parameters that MLflow accepts in one request."""
MAX_METRICS = 900
"""The same for metrics, with room for some tags: 1,000 entities may be in one request."""
LOCAL_UI = "http://127.0.0.1:5000"
"""Where `make ui` shows the local database."""
_CONNECT_LOCK = threading.Lock()
VIEW_KEY = "a2rl-results"
"""Names the saved view `Results`, a tag of the experiment in the form in which MLflow's pages save views. It lists the
runs without their submissions, by their gain; its charts draw the scores over the seconds of the budget."""
VIEW_COLUMNS = (
    "params.`agent`", "params.`driver`", "params.`task`", "params.`mode`", "metrics.`score`", "metrics.`gain`",
    "tags.`verdict`", "tags.`validity`",
)  # fmt: skip
_STATE = {
    "selectedColumns": VIEW_COLUMNS,
    "columnOrder": VIEW_COLUMNS,
    "searchFilter": "tags.`a2rl.run_id` LIKE '%'",
    "orderByKey": "metrics.`gain`",
    "orderByAsc": False,
}
_VIEW = {"name": "Results", "createdAt": 1, "updatedAt": 1, "state": json.dumps(_STATE)}
EXPERIMENT_TAGS = {
    "mlflow.experimentKind": "custom_model_development",
    f"mlflow.sharedViewState.{VIEW_KEY}": json.dumps(_VIEW),
}
"""The tags of an experiment that decide how it is shown."""
TRAINING = "workflowType=machine_learning"
"""In a URL: shows the pages for the training of models, whatever the browser showed last."""

_DAMAGED = "; move that file away: the runs have all that it showed, and `a2rl report RUN` mirrors one again"
REMEDIES = {
    "malformed": _DAMAGED,
    "not a database": _DAMAGED,
    "database is locked": "; wait until the program that uses it has ended, then `a2rl report RUN` mirrors the run",
}
"""What helps against errors of the database on this machine."""


class TrackingError(InfrastructureError):
    """A request to MLflow failed."""


class Point(NamedTuple):
    """One value of a metric."""

    name: str
    value: float
    at: float
    """Wall-clock time in Unix seconds."""
    step: int = 0


class MlflowStore:
    """The store at MLFLOW_TRACKING_URI, or the SQLite database in mlruns/; the connection is made when first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: MlflowClient | None = None
        self._is_loading = False
        self._answered_at = 0.0
        self._experiments: dict[str, str] = {}

    def alive_at(self) -> float:
        """Returns when MLflow last answered, by the monotonic clock.

        While the library is being loaded, which takes seconds, this is the current time.
        """
        return time.monotonic() if self._is_loading else self._answered_at

    @property
    def client(self) -> "MlflowClient":
        """The connected client; connects on first use."""
        with _CONNECT_LOCK:
            if self._client is None:
                self._is_loading = True
                try:
                    self._client = self._connect()
                finally:
                    self._is_loading = False
        self._answered_at = time.monotonic()  # every request asks for the client
        return self._client

    def _connect(self) -> "MlflowClient":
        _quieten()
        from mlflow.tracking import MlflowClient

        if not self._is_local:
            return MlflowClient(tracking_uri=self.uri)
        lock, meanwhile = self._settings.mlruns / ".mlflow.lock", "another process makes MLflow's database"
        with file_lock(lock, meanwhile, CREATE_TIMEOUT_S, heeds_stop=False):
            client = MlflowClient(tracking_uri=self.uri)
            client.search_experiments(max_results=1)  # creates the database on first use
            return client

    @property
    def uri(self) -> str:
        """MLFLOW_TRACKING_URI, or the SQLite database in mlruns/."""
        return self._settings.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self._settings.mlruns / 'mlflow.db'}"

    @property
    def _is_local(self) -> bool:
        return self.uri.startswith("sqlite:")

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turns every error of MLflow, its database or the network into a TrackingError with a message of one line."""
        try:
            yield
        except A2rlError:
            self._experiments.clear()
            raise
        except Exception as error:  # MLflow, SQLAlchemy and requests raise many unrelated types
            self._experiments.clear()  # one of them may have been deleted
            first = (str(error).strip().splitlines() or [""])[0][:300]
            remedy = next((text for sign, text in REMEDIES.items() if self._is_local and sign in first), "")
            message = f"MLflow at {self.uri} failed: {type(error).__name__}: {first}{remedy}"
            raise TrackingError(_without_password(message)) from error

    def experiment(self, suite: str) -> str:
        """Returns the id of a suite's experiment, which is created on first use; up to three requests, only once.

        Raises:
            TrackingError: The experiment was deleted.
        """
        if suite not in self._experiments:
            self._experiments[suite] = self._find_experiment(suite)
        return self._experiments[suite]

    def _find_experiment(self, suite: str) -> str:
        if (known := self.client.get_experiment_by_name(suite)) is None:
            location = (self._settings.mlruns / "artifacts").resolve().as_uri() if self._is_local else None
            try:
                return str(self.client.create_experiment(suite, artifact_location=location, tags=EXPERIMENT_TAGS))
            except Exception:  # the type depends on the store; another process may have created the experiment
                known = self.client.get_experiment_by_name(suite)
                if known is None:
                    raise
        if known.lifecycle_stage == "deleted":
            raise TrackingError(
                f"its experiment {suite!r} was deleted: restore it, or choose another name for the suite"
            )
        for name, value in EXPERIMENT_TAGS.items():
            if name not in known.tags:  # it was made by hand
                self.client.set_experiment_tag(known.experiment_id, name, value)
        return str(known.experiment_id)

    def find(self, tag: str, value: str, suite: str) -> Any:
        """Returns the first MLflow run of a suite with this value of a tag; None if there is none. One request."""
        found = self.client.search_runs(
            [self.experiment(suite)], f"tags.`{tag}` = '{value}'", order_by=["attributes.start_time"], max_results=1
        )
        return found[0] if found else None

    def children(self, suite: str, parent: str) -> dict[str, Any]:
        """Returns all nested runs of an MLflow run by name. One request for each thousand of them.

        If a name occurs again, the later runs have their ids as names.
        """
        experiment, found, token = self.experiment(suite), dict[str, Any](), None
        while True:
            query = f"tags.`mlflow.parentRunId` = '{parent}'"
            page = self.client.search_runs(
                [experiment], query, order_by=["attributes.start_time"], max_results=PAGE_SIZE, page_token=token
            )
            for child in page:
                name = child.data.tags.get(CHILD_TAG, child.info.run_id)
                found[child.info.run_id if name in found else name] = child
            if not (token := page.token):
                return found

    def create(self, suite: str, name: str, at: float, tags: Mapping[str, str]) -> Any:
        """Creates an MLflow run that began at this Unix time. One request."""
        known = {key: short_text(value) for key, value in tags.items()}
        return self.client.create_run(self.experiment(suite), millis(at), known, short_text(name))

    def log(
        self,
        run_id: str,
        points: Sequence[Point] = (),
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Logs metrics, parameters and tags; MLflow keeps a metric of the same time, step and value only once.

        One request for each 900 points, and none if there is nothing to log.
        """
        from mlflow.entities import Metric, Param, RunTag

        metrics = [Metric(each.name, float(each.value), millis(each.at), each.step) for each in points]
        known = [Param(name, short_text(str(value))) for name, value in (params or {}).items()][:MAX_PARAMS]
        labels = [RunTag(name, short_text(value)) for name, value in (tags or {}).items()]
        while metrics or known or labels:
            self.client.log_batch(run_id, metrics=metrics[:MAX_METRICS], params=known, tags=labels)
            metrics, known, labels = metrics[MAX_METRICS:], [], []

    def save(self, artifacts: str, *files: Path) -> None:
        """Copies files to the artifacts of an MLflow run, whose URI it has given. One request for each file."""
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        place = get_artifact_repository(artifacts, tracking_uri=self.uri)
        for file in files:
            place.log_artifact(str(file))
            self._answered_at = time.monotonic()

    def save_text(self, artifacts: str, name: str, text: str) -> None:
        """Writes a text to an artifact. One request."""
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / name).write_text(text, encoding="utf-8")
            self.save(artifacts, Path(folder) / name)

    def end(self, run_id: str, at: float, *, failed: bool = False) -> None:
        """Ends an MLflow run at this Unix time. One request."""
        self.client.set_terminated(run_id, "FAILED" if failed else "FINISHED", millis(at))

    @property
    def server(self) -> str:
        """The URL of the pages that show this store."""
        return _without_password(self.uri).rstrip("/") if self.uri.startswith("http") else LOCAL_UI


def short_text(text: str) -> str:
    """Returns a text for MLflow: printable, without secrets, and not too long."""
    return printable(scrub(text), MAX_TEXT)[:MAX_TEXT]


def millis(at: float) -> int:
    """Returns a Unix time as MLflow stores it."""
    return int(at * 1000)


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


def _quieten() -> None:
    """Sets short timeouts and silences MLflow and alembic, which log every migration of a new database."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # we report a server that is down ourselves


def results_url(server: str, experiment: str) -> str:
    """Returns the page with the results of an experiment."""
    return f"{server}/#/experiments/{experiment}/runs?{TRAINING}&viewStateShareKey={VIEW_KEY}"
