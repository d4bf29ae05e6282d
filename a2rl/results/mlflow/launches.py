"""A launch in MLflow: the run that contains all runs that were started together, with their mean gain.

Its figures follow from those of its runs, so whoever writes them last is right.
"""

from statistics import fmean
from typing import Any

from a2rl.core.locks import file_lock
from a2rl.core.settings import Settings
from a2rl.results.mlflow.store import MlflowStore, Point
from a2rl.run.directory import RunDir
from a2rl.run.records import sum_known

LAUNCH_TAG = "a2rl.launch_id"
LOCK_TIMEOUT_S = 30


def launch_of(store: MlflowStore, run: RunDir, at: float, settings: Settings) -> str:
    """Returns the MLflow run of a run's launch, which is created on first use; empty if it has none. Two requests."""
    suite, launch = run.spec.suite, run.spec.launch
    if not launch:
        return ""
    meanwhile = "another process makes the run of a launch in MLflow"
    with file_lock(settings.mlruns / ".launches.lock", meanwhile, LOCK_TIMEOUT_S, heeds_stop=False):
        found = store.find(LAUNCH_TAG, launch, suite)
        if found is None:
            tags = {LAUNCH_TAG: launch}
            found = store.create(suite, f"{suite} {launch}", at, tags)
    return str(found.info.run_id)


def sync_launch(store: MlflowStore, suite: str, launch: str, at: float) -> None:
    """Brings the figures of a launch up to date, after one of its runs has ended. Three requests."""
    runs = list(store.children(suite, launch).values())
    ended = [each for each in runs if each.info.status in ("FINISHED", "FAILED")]
    gains = [gain for each in ended if (gain := each.data.metrics.get("gain")) is not None]
    improved = sum(each.data.tags.get("verdict") == "improved" for each in ended)
    figures: dict[str, float] = {"runs": len(runs), "runs_ended": len(ended), "runs_improved": improved}
    figures |= {"gain": fmean(gains)} if gains else {}
    figures |= _cost(ended)
    tags = {"verdict": f"{improved} of {len(runs)} improved"}
    store.log(launch, [Point(name, value, at, len(ended)) for name, value in figures.items()], tags=tags)
    store.end(launch, at)


def _cost(runs: list[Any]) -> dict[str, float]:
    """Returns the cost of all runs that had a driver; nothing if that of one of them is unknown."""
    driven = [each.data.metrics for each in runs if "tokens" in each.data.metrics]
    cost = sum_known(each.get("cost_usd") for each in driven)
    return {"cost_usd": cost} if driven and cost is not None else {}
