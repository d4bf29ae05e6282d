"""The flow `a2rl`: the runs of a suite, in parallel up to a limit.

prefect deployment run a2rl/full-bench --param variant=full --param model=Qwen/Qwen2.5-7B
"""

import inspect
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run

from a2rl.anchor.follower import ANCHOR_NOTE, Anchor
from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs
from a2rl.config.suite import SUITE_SETTINGS, Setting
from a2rl.core.errors import A2rlError, InterruptedByUserError, RunFailedError
from a2rl.core.processes import STOP
from a2rl.core.settings import Settings
from a2rl.execution.preflight import require_ready
from a2rl.results.mirror import Mirror, Mirrors, left_behind
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.suite.leaderboard import boards
from a2rl.results.suite.run_summary import summaries
from a2rl.results.suite.tables import runs as table_of_runs
from a2rl.results.suite.tables import standings
from a2rl.results.table import table_lines
from a2rl.run.directory import RunDir
from a2rl.run.owner import create_run, require_made_here
from flows.policies import benchmark_run, shares_of_cores
from flows.submission import reason_in_workers_log, require_ready_here, submit_runs

Function = TypeVar("Function", bound=Callable[..., Any])


def with_suite_parameters(function: Function) -> Function:
    """Replaces `**given` in a function's signature by one parameter for each setting of a suite.

    The function gets the values by the suite's keys. None keeps the suite's value.
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *map(_parameter, SUITE_SETTINGS)]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    described = "\n".join(f"    {each.suite_key}: {each.field.description}" for each in SUITE_SETTINGS)
    function.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{described}"  # Prefect takes its descriptions from there
    return function


def _parameter(setting: Setting) -> inspect.Parameter:
    """Returns the parameter for a setting. Its value is None or one value; for an axis it may be a list of values."""
    value: Any = str if setting.is_duration else setting.value_type  # a duration such as 12h
    several = value | list[value] if setting.is_axis else value
    return inspect.Parameter(setting.suite_key, inspect.Parameter.KEYWORD_ONLY, annotation=several | None, default=None)


def _name() -> str:
    """Names a flow run after its run if it has one, else after its launch or its suite."""
    run_ids: list[str] = flow_run.parameters.get("run_ids") or []
    if not run_ids:
        return str(flow_run.parameters["suite"])
    try:
        spec = RunDir(Settings.load().runs / run_ids[0]).spec
    except A2rlError:  # the flow itself says so
        return run_ids[0]
    return run_ids[0] if len(run_ids) == 1 else spec.launch or spec.suite


@flow(name="a2rl", flow_run_name=_name, persist_result=False, validate_parameters=True)
@with_suite_parameters
@reason_in_workers_log()
def a2rl(suite: str = "smoke", *, run_ids: list[str] | None = None, pool: str | None = None, **given: Any) -> list[str]:
    """Runs a suite of params.yaml, with any of its settings replaced, or continues the runs named in `run_ids`.

    With `pool`, a suite is only submitted: the workers of that pool do its runs.

    Returns:
        The ids of the runs.

    Raises:
        UsageError: a setting is wrong; nothing was started.
        RunFailedError: some runs could not be finished; all have a result.
        InterruptedByUserError: the user stopped the flow; `a2rl resume` continues it.
    """
    settings = Settings.load()
    params = load_params(settings.root)
    chosen = choose_suite(params, suite, **given)
    if run_ids is None:
        specs = plan_runs(chosen, suite, params, settings)
        if pool:
            return submit_runs(specs, pool, a2rl, settings)
        require_ready(specs, settings)
        runs = [create_run(spec, settings) for spec in specs]
    else:
        runs = [RunDir(settings.runs / run_id) for run_id in dict.fromkeys(run_ids)]
        if pool:  # a submitted run comes from the claims and the store
            require_ready_here(run_ids, settings)
        else:
            require_made_here(runs, settings)
    if chosen.concurrency > 1 and len(runs) > 1:
        runs.sort(key=lambda run: -run.spec.budget_s)  # the longest first, so that the last runs end at similar times
    outcomes = _run_side_by_side(runs, chosen.concurrency, settings)
    errors = {run_id: outcome for run_id, outcome in outcomes.items() if isinstance(outcome, BaseException)}
    _raise_failures(errors, len(runs))
    return [run.id for run in runs]


def _run_side_by_side(runs: list[RunDir], concurrency: int, settings: Settings) -> dict[str, object]:
    """Executes the runs, each on its share of the cores, and returns what each one returned or raised."""
    tracker, slots = Tracker(settings), SimpleQueue[list[int]]()
    mirror = mirrors_of(runs, tracker, settings)
    side_by_side = min(concurrency, len(runs))
    for cores in shares_of_cores(os.sched_getaffinity(0), side_by_side):
        slots.put(cores)
    tracker.store.connect_soon()
    futures: dict[str, PrefectFuture[None]] = {}
    with stop_runs_on_exit():
        for run in runs:
            cores = slots.get()
            futures[run.id] = benchmark_run.submit(run, settings, mirror, cores, side_by_side, len(runs) == 1)
            futures[run.id].add_done_callback(partial(_give_back, slots, cores))
        outcomes: dict[str, object] = {key: future.result(raise_on_failure=False) for key, future in futures.items()}
    mirror.close()
    with suppress(Exception):  # the runs have their results, whatever happens to Prefect's page
        show_results(runs, tracker)
    return outcomes


def mirrors_of(runs: Sequence[RunDir], tracker: Tracker, settings: Settings) -> Mirrors:
    """Returns what follows the runs: MLflow, and the anchor if the settings name one."""
    mlflow, ours = Mirror(tracker.sync, tracker.store.alive_at), {run.id for run in runs}
    mlflow.catch_up(run for run in left_behind(settings.runs) if run.id not in ours)
    followers = [mlflow]
    params = load_params(settings.root).anchor
    if params.is_used:
        anchor = Anchor(params, settings.root)
        # Each of its attempts has a time limit, so it is waited for at the end as if it answered.
        followers.append(Mirror(anchor.update, time.monotonic, mark=ANCHOR_NOTE.mark))
    return Mirrors(*followers)


def show_results(runs: Sequence[RunDir], tracker: Tracker) -> None:
    """Adds the leaderboard of the runs, and a link to MLflow, to the artifacts of this flow run in Prefect."""
    found, _ = summaries(runs)
    tables = [table for board in boards(found) for table in (standings(board), table_of_runs(board))]
    texts = ["\n".join(table_lines(table)) for table in tables]
    if page := tracker.results_page(runs[0]):
        texts.append(f"[All runs in MLflow]({page})")
    create_markdown_artifact("\n\n".join(texts), "leaderboard", _sync=True)  # type: ignore[call-arg]


@contextmanager
def stop_runs_on_exit() -> Iterator[None]:
    """Ends agents and services properly if the flow ends early, by Ctrl-C or because the deployment was cancelled."""
    try:
        yield
    except BaseException:
        STOP.set()
        raise


def _give_back(slots: SimpleQueue[list[int]], cores: list[int], _: object) -> None:
    """Makes the cores of a run that has ended available to the next one."""
    slots.put(cores)


def _raise_failures(errors: dict[str, BaseException], total: int) -> None:
    if not errors:
        return
    if any(isinstance(error, InterruptedByUserError) for error in errors.values()):
        raise InterruptedByUserError("stopped by the user")
    listing: Sequence[str] = [f"{run_id}: {error}" for run_id, error in errors.items()]
    if total == 1 and isinstance(next(iter(errors.values())), A2rlError):
        raise next(iter(errors.values()))
    raise RunFailedError(f"{len(errors)} of {total} runs could not be finished. " + "; ".join(listing))
