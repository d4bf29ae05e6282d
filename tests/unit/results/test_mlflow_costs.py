"""Tests what mirroring costs, with a real MLflow server behind a proxy that counts requests."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from a2rl.core.settings import Settings
from a2rl.results.mirror import MLFLOW_NOTE, Mirror
from a2rl.results.mlflow.store import MlflowStore, TrackingError
from a2rl.results.mlflow.tracking import Tracker
from tests.mlflow_scale import measure
from tests.mlflow_server import CountingProxy, mlflow_server
from tests.run_maker import wait_for
from tests.simulated_runs import simulate_run

pytestmark = pytest.mark.heavy
MOST_PER_SUBMISSION = 6


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


def tracking(settings: Settings, url: str) -> Settings:
    return Settings(settings.root, {**settings.environ, "MLFLOW_TRACKING_URI": url})


def make_experiment(place: tuple[Path, str]) -> str:
    """Returns the experiment of a suite that nobody has used before; runs in a process of its own."""
    root, url = place
    store = MlflowStore(Settings(root, {"MLFLOW_TRACKING_URI": url} if url else {}))
    with store.errors():
        return store.experiment("raced")


def test_a_submission_costs_few_requests_at_any_time(tmp_path: Path) -> None:
    found = measure(1, 6, tmp_path)
    each = found.live[1:-1]
    assert len(each) == 6
    assert max(each) <= MOST_PER_SUBMISSION
    assert max(each[1:]) - min(each[1:]) <= 1, "the number does not grow"


def test_processes_that_create_an_experiment_at_once_agree_on_it(settings: Settings, server: str) -> None:
    """They agree at a server, and in a database in which nothing is yet."""
    with ProcessPoolExecutor(3, mp_context=get_context("spawn")) as processes:
        for url in (server, ""):
            assert len(set(processes.map(make_experiment, [(settings.root, url)] * 3))) == 1


def test_what_an_outage_left_behind_is_whole_when_mlflow_is_back(settings: Settings, server: str) -> None:
    proxy = CountingProxy(server)
    run = simulate_run(settings, 7, submissions=3, suite="outage")
    proxy.down = True
    lost = Tracker(tracking(settings, proxy.url))
    with pytest.raises(TrackingError):
        lost.sync(run)
    proxy.down = False
    later = Tracker(tracking(settings, proxy.url))
    mirror = Mirror(later.sync)
    mirror.catch_up([run])
    wait_for(lambda: later.results_page(run))
    mirror.close()
    assert MLFLOW_NOTE.read(run) == ""
    assert set(later.mirrored(run)) == {"result", "baseline", "submission 1", "submission 2", "submission 3"}
    proxy.close()


def test_a_server_gets_runs_with_their_launch_and_checkpoints(settings: Settings, server: str) -> None:
    tracker, run = Tracker(tracking(settings, server)), simulate_run(settings, 1, suite="kept")
    tracker.sync(run)
    found = tracker.store.find("a2rl.launch", run.spec.launch, "kept")
    assert found.data.tags["a2rl.run_id"] == run.id
    children = tracker.store.children("kept", found.info.run_id)
    assert str(settings.runs) in children["submission 1"].data.tags["a2rl.checkpoint"]
