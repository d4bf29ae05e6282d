"""The flow `a2rl`: the runs of a suite, in parallel up to a limit, each with its stages in order.

prefect deployment run a2rl/full-bench --param variant=full --param model=Qwen/Qwen2.5-7B

The stages are Prefect tasks with one policy on retries: only infrastructure failures are retried. A crash or a timeout
of the agent is a result, a retry cannot correct a wrong setting, and a stage that was interrupted waits for `a2rl
resume`. Prefect's caching is off, because a stage's record says whether the stage is done.
"""

import inspect
import os
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from queue import SimpleQueue
from typing import Any

from prefect import Task, flow, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.futures import PrefectFuture
from prefect.runtime import flow_run

from a2rl.anchor.follower import anchors_of, signing_of
from a2rl.cluster.holding import held
from a2rl.config.params import load_params
from a2rl.config.plan import choose_suite, plan_runs, shared_port
from a2rl.config.suite import SUITE_SETTINGS, Function, Setting, with_parameters
from a2rl.core.errors import (
    A2rlError,
    InfrastructureError,
    InterruptedByUserError,
    MissingInputError,
    RunFailedError,
    TaskDefinitionError,
    UsageError,
)
from a2rl.core.processes import STOP, is_stopped
from a2rl.core.settings import Settings
from a2rl.execution.preflight import require_ready
from a2rl.results.mirror import Mirror, left_behind
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.suite.leaderboard import boards
from a2rl.results.suite.run_summary import summaries
from a2rl.results.suite.tables import runs as table_of_runs
from a2rl.results.suite.tables import standings
from a2rl.results.table import table_lines
from a2rl.run.directory import Record, RunDir
from a2rl.run.failure import forget_failure, is_unfinished, mark_refused, record_failure
from a2rl.run.gpu_share import allocated_gpus
from a2rl.run.owner import create_run, require_made_here
from a2rl.validity.checks import could_not_check
from a2rl.validity.record import lower
from flows.submission import reason_in_workers_log, require_ready_here, submit_runs
from stages.baseline import baseline
from stages.execute import execute
from stages.grade import grade
from stages.report import report
from stages.setup import setup
from stages.validity import validity

RETRIES = 2
RETRY_DELAYS_S = [2, 10]
END_WITHIN_S = 4.0
"""How long the stages have to end properly when the only run of a process was lost."""
EXIT_LOST = 75


async def is_infrastructure_failure(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    """Returns whether a failed stage should be retried."""
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, InfrastructureError) and not is_stopped()


def stage_task(stage: Callable[..., Record]) -> Task[..., Record]:
    """Makes a Prefect task from a stage."""
    return Task(
        stage,
        name=stage.__name__,
        task_run_name=stage.__name__ + " {run.id}",
        retries=RETRIES,
        retry_delay_seconds=list(RETRY_DELAYS_S),
        retry_condition_fn=is_infrastructure_failure,
        cache_policy=NO_CACHE,
        persist_result=False,
    )


STAGE_TASKS = {stage.__name__: stage_task(stage) for stage in (setup, baseline, execute, grade, validity, report)}
"""The stages of a run, in order."""


@task(name="run", task_run_name="{run.id}", cache_policy=NO_CACHE, persist_result=False)
def benchmark_run(
    run: RunDir,
    settings: Settings,
    mirrors: Sequence[Mirror],
    cores: Collection[int],
    is_only: bool = True,
    sign: Callable[[RunDir], object] | None = None,
) -> None:
    """Executes one benchmark run, from its spec to its report. Stages that are already done return their records.

    If a stage could not be finished after all retries, that is a result, too: the run has failed.

    Args:
        mirrors: What follows the run: one copies it to MLflow, others anchor its ledger.
        cores: The processor cores that its processes may use, so that parallel runs do not slow each other down.
        is_only: Whether this process has no other run to do.
        sign: Signs the end of the ledger before its last copy: one who takes the run over may come too late for that.

    Raises:
        UsageError: Another process works on the run, or its settings are wrong.
        ClaimLostError: Another machine has taken the run over, or it was cancelled; no report is written.
        InterruptedByUserError: The user stopped the run; it can be resumed.
        RunFailedError: The run has failed, and its records say so.
    """
    tenure = None
    on_stored = partial(sign, run) if sign else None
    try:
        with held(run, settings, end_soon if is_only else lambda: None, on_stored=on_stored) as tenure, on_cores(cores):
            forget_failure(run)
            for each in mirrors:
                each.follow(run)
            _run_stages(run, settings)
    finally:
        if tenure is not None and not tenure.is_lost:
            for each in mirrors:
                each.leave(run)  # only now all of it is safe in the store, if there is one


def end_soon() -> None:
    """Ends this process, and the agent with it, if the run that it has lost does not end by itself."""
    timer = threading.Timer(END_WITHIN_S, os._exit, [EXIT_LOST])
    timer.daemon = True
    timer.start()


def _run_stages(run: RunDir, settings: Settings) -> None:
    """Runs the stages in order. The run holds its GPUs from its baseline to its result, if these are not yet known."""
    with ExitStack() as gpus:
        for name, stage in STAGE_TASKS.items():
            is_begun = False
            try:
                if name == "baseline" and not run.record_path("validity").exists():
                    gpus.enter_context(allocated_gpus(run, settings))
                elif name == "report":
                    gpus.close()
                is_begun = True
                stage(run, settings)
            except (UsageError, TaskDefinitionError, MissingInputError, InterruptedByUserError) as error:
                if name == "setup" and isinstance(error, UsageError | TaskDefinitionError):
                    mark_refused(run, error)
                raise
            except Exception as error:  # any other error means that this run has failed; the other runs continue
                if is_stopped():
                    raise InterruptedByUserError("stopped by the user") from error
                # If it was begun and its record exists, it is done, and Prefect itself failed; the last stage also
                # closes the ledger. Without the GPUs that it was to hold, a run must not go on.
                if not is_begun or name == "report" or not run.record_path(name).exists():
                    _fail(run, settings, name, error)


def _fail(run: RunDir, settings: Settings, stage: str, error: Exception) -> None:
    """Records the failure, and judges and shows the run all the same if possible.

    Raises:
        RunFailedError: The run has failed, or has a result and is not finished.
    """
    record = record_failure(run, stage, error)
    if stage == "validity" and record.is_final and not isinstance(error, InfrastructureError):
        with suppress(Exception):  # another try would fail in the same way, so it is decided without the checks
            lower(run, [could_not_check("the checks", error)])
    for last in (validity, report):
        with suppress(Exception):  # the failed stage may be one of these; only the record is essential
            last(run, settings)
    if record.is_final:
        if not is_unfinished(run):
            return
        raise RunFailedError(
            f"{stage}: {error}; the result stands, and `a2rl resume {run.id}` finishes the run"
        ) from error
    raise RunFailedError(f"{record.reason}; the run has failed, and `a2rl resume {run.id}` tries it again") from error


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """Limits the calling thread, and all processes and threads that it starts, to these processor cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def shares_of_cores(cores: Collection[int], runs: int) -> list[list[int]]:
    """Divides the cores among parallel runs. Each run gets all of them if there are more runs than cores."""
    count, ordered = len(cores) // max(runs, 1), sorted(cores)
    return [ordered[place * count : (place + 1) * count] if count else ordered for place in range(runs)]


def with_suite_parameters(function: Function) -> Function:
    """Replaces `**given` in a function's signature by one parameter for each setting of a suite.

    The function gets the values by the suite's keys. None keeps the suite's value.
    """
    with_parameters(function, map(_parameter, SUITE_SETTINGS))
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
    if run_ids is None:
        chosen = choose_suite(params, suite, **given)
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
    concurrency = 1 if pool else _concurrency_of(runs)
    if concurrency > 1 and len(runs) > 1:
        runs.sort(key=lambda run: -run.spec.budget_s)  # the longest first, so that the last runs end at similar times
    outcomes = _run_side_by_side(runs, concurrency, settings)
    errors = {run_id: outcome for run_id, outcome in outcomes.items() if isinstance(outcome, BaseException)}
    _raise_failures(errors, len(runs))
    return [run.id for run in runs]


def _concurrency_of(runs: Sequence[RunDir]) -> int:
    """Returns how many of some runs go on at a time: as many as when they were planned."""
    return 1 if shared_port(run.spec for run in runs) else max((run.spec.side_by_side for run in runs), default=1)


def _run_side_by_side(runs: list[RunDir], concurrency: int, settings: Settings) -> dict[str, object]:
    """Executes the runs, each on its share of the cores, and returns what each one returned or raised.

    A run that is resumed alone has no more cores than before.
    """
    tracker, slots = Tracker(settings), SimpleQueue[list[int]]()
    mirrors = mirrors_of(runs, tracker, settings)
    signing = signing_of(load_params(settings.root).anchor, settings.root)
    sign = signing.catch_up if signing else None
    shares = shares_of_cores(os.sched_getaffinity(0), concurrency)
    for cores in random.sample(shares, len(shares)):  # runs that are resumed one by one should not all have the first
        slots.put(cores)
    futures: dict[str, PrefectFuture[None]] = {}
    with stop_runs_on_exit():
        for run in runs:
            cores = slots.get()
            futures[run.id] = benchmark_run.submit(run, settings, mirrors, cores, len(runs) == 1, sign)
            futures[run.id].add_done_callback(partial(_give_back, slots, cores))
        outcomes: dict[str, object] = {key: future.result(raise_on_failure=False) for key, future in futures.items()}
    with ThreadPoolExecutor() as closing:  # all at once, so that none waits for another
        list(closing.map(Mirror.close, mirrors))
    with suppress(Exception):  # the runs have their results, whatever happens to Prefect's page
        show_results(runs, tracker)
    return outcomes


def mirrors_of(runs: Sequence[RunDir], tracker: Tracker, settings: Settings) -> list[Mirror]:
    """Returns what follows the runs: MLflow, and the parts of the anchor that the settings name."""
    mlflow, ours = Mirror(tracker.sync, tracker.store.alive_at), {run.id for run in runs}
    mlflow.catch_up(run for run in left_behind(settings) if run.id not in ours)
    # Each of their attempts has a time limit, so they are waited for at the end as if they answered.
    anchors = [
        Mirror(each.update, time.monotonic, mark=each.note.mark, every_s=each.every_s)
        for each in anchors_of(load_params(settings.root).anchor, settings.root)
    ]
    return [mlflow, *anchors]


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
