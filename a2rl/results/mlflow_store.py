"""One MLflow store: the connection, its errors, and the few requests that a2rl makes.

This is the only module that imports mlflow.

    store = MlflowStore(settings)
    with store.errors():
        parent = store.find(run)
"""

import logging
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

RUN_ID_TAG, CHILD_TAG = "a2rl.run_id", "a2rl.child"
DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
}
"""Settings of MLflow that the user may override. With them, MLflow soon reports a server that does not answer."""
EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}
"""Makes the pages of MLflow show an experiment as the training of models, with its metrics and charts."""
PAGE_SIZE = 1000
MAX_TEXT = 5000
"""The length in characters of a tag or a parameter that all of MLflow's stores accept."""
MAX_PARAMS = 100
"""The number of parameters that MLflow accepts in one request."""
_CONNECT_LOCK = threading.Lock()


class TrackingError(InfrastructureError):
    """A request to MLflow failed."""


class MlflowStore:
    """The store at MLFLOW_TRACKING_URI, or the SQLite database in mlruns/; the connection is made when first needed."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._client: MlflowClient | None = None
        self._is_loading = False
        self._answered_at = 0.0

    def alive_at(self) -> float:
        """Returns when MLflow last answered, by the monotonic clock.

        While the library is being loaded, which takes seconds, this is the current time.
        """
        return time.monotonic() if self._is_loading else self._answered_at

    def connect_soon(self) -> None:
        """Connects in a background thread, since importing mlflow takes seconds."""

        def connect() -> None:
            try:
                with self.errors():
                    self.client  # noqa: B018 - connects
            except TrackingError:
                return  # the next request connects again

        threading.Thread(target=connect, name="mlflow", daemon=True).start()

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
        with quiet_mlflow():
            from mlflow.tracking import MlflowClient

            client = MlflowClient(tracking_uri=self.uri)
            if self._is_local:
                self._settings.mlruns.mkdir(exist_ok=True)
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
            raise
        except Exception as error:  # MLflow, SQLAlchemy and requests raise many unrelated types
            first = (str(error).strip().splitlines() or [""])[0][:300]
            message = f"MLflow at {self.uri} failed: {type(error).__name__}: {first}"
            raise TrackingError(_without_password(message)) from error

    def experiment(self, suite: str) -> str:
        """Returns the id of a suite's experiment, which is created on first use.

        Raises:
            TrackingError: The experiment was deleted.
        """
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
        return str(known.experiment_id)

    def find(self, run: RunDir) -> Any:
        """Returns the MLflow run of a run; None if there is none."""
        query = f"tags.`{RUN_ID_TAG}` = '{run.id}'"
        found = self.client.search_runs([self.experiment(run.spec.suite)], query, max_results=1)
        return found[0] if found else None

    def children(self, run: RunDir, parent: str) -> dict[str, Any]:
        """Returns all nested runs of an MLflow run by name."""
        experiment, found, token = self.experiment(run.spec.suite), dict[str, Any](), None
        while True:
            query = f"tags.`mlflow.parentRunId` = '{parent}'"
            page = self.client.search_runs([experiment], query, max_results=PAGE_SIZE, page_token=token)
            found |= {child.data.tags.get(CHILD_TAG, child.info.run_id): child for child in page}
            if not (token := page.token):
                return found

    def log(
        self,
        run_id: str,
        metrics: Mapping[str, float] | None = None,
        at: float = 0.0,
        step: int = 0,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Logs metrics, parameters and tags. MLflow keeps a metric of the same time, step and value only once."""
        from mlflow.entities import Metric, Param, RunTag

        points = [Metric(name, float(value), int(at * 1000), step) for name, value in (metrics or {}).items()]
        known = [Param(name, short_text(str(value))) for name, value in (params or {}).items()]
        labels = [RunTag(name, short_text(value)) for name, value in (tags or {}).items()]
        for first in range(0, max(1, len(known)), MAX_PARAMS):
            self.client.log_batch(run_id, metrics=points, params=known[first : first + MAX_PARAMS], tags=labels)


def short_text(text: str) -> str:
    """Returns a text for MLflow: printable, without secrets, and not too long."""
    return printable(scrub(text), MAX_TEXT)[:MAX_TEXT]


def _without_password(text: str) -> str:
    return re.sub(r"//[^/@\s]*@", "//", text)


@contextmanager
def quiet_mlflow() -> Iterator[None]:
    """Sets short timeouts and silences MLflow and alembic, which log every migration of a new database."""
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow", "alembic", "mlflow.store.db.utils"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)  # we report a server that is down ourselves
    yield
