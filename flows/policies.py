"""The stages as Prefect tasks, with one policy on retries: only infrastructure failures are retried.

A crash or a timeout of the agent is a result, a retry cannot correct a wrong setting, and a stage that was interrupted
waits for `a2rl resume`. Prefect's caching is off, because a stage's record says whether the stage is done.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from a2rl.cluster.holding import held
from a2rl.core.errors import (
    InfrastructureError,
    InterruptedByUserError,
    MissingInputError,
    RunFailedError,
    TaskDefinitionError,
    UsageError,
)
from a2rl.core.processes import is_stopped
from a2rl.core.settings import Settings
from a2rl.results.mirror import Mirrors
from a2rl.run.directory import Record, RunDir
from a2rl.run.events import RunClosed
from a2rl.run.failure import forget_failure, mark_refused, record_failure
from a2rl.run.gpu_share import allocated_gpus
from a2rl.validity.checks import could_not_check
from a2rl.validity.record import lower
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
    mirror: Mirrors,
    cores: Collection[int],
    side_by_side: int = 1,
    is_only: bool = True,
) -> None:
    """Executes one benchmark run, from its spec to its report. Stages that are already done return their records.

    If a stage could not be finished after all retries, that is a result, too: the run has failed.

    Args:
        mirror: Follows the run: copies it to MLflow, and anchors its ledger.
        cores: The processor cores that its processes may use, so that parallel runs do not slow each other down.
        side_by_side: The number of runs at a time, which share the GPUs.
        is_only: Whether this process has no other run to do.

    Raises:
        UsageError: Another process works on the run, or its settings are wrong.
        ClaimLostError: Another machine has taken the run over, or it was cancelled; no report is written.
        InterruptedByUserError: The user stopped the run; it can be resumed.
        RunFailedError: The run has failed, and its records say so.
    """
    with held(run, settings, end_soon if is_only else lambda: None) as tenure, on_cores(cores):
        forget_failure(run)
        try:
            _run_stages(run, settings, mirror, side_by_side)
        finally:
            if not tenure.is_lost:
                mirror.changed(run)


def end_soon() -> None:
    """Ends this process, and the agent with it, if the run that it has lost does not end by itself."""
    timer = threading.Timer(END_WITHIN_S, os._exit, [EXIT_LOST])
    timer.daemon = True
    timer.start()


def _run_stages(run: RunDir, settings: Settings, mirror: Mirrors, side_by_side: int) -> None:
    """Runs the stages in order. The run holds its GPUs from its baseline to its result, if these are not yet known."""
    with ExitStack() as gpus:
        for name, stage in STAGE_TASKS.items():
            try:
                if name == "baseline" and not run.record_path("validity").exists():
                    gpus.enter_context(allocated_gpus(run, settings, side_by_side))
                elif name == "report":
                    gpus.close()
                stage(run, settings, *([mirror.look] if name == "execute" else []))
            except (UsageError, TaskDefinitionError, MissingInputError, InterruptedByUserError) as error:
                if name == "setup" and isinstance(error, UsageError | TaskDefinitionError):
                    mark_refused(run, error)
                raise
            except Exception as error:  # any other error means that this run has failed; the other runs continue
                if is_stopped():
                    raise InterruptedByUserError("stopped by the user") from error
                # If its record exists, a stage is done, and Prefect itself failed; the last one also closes the ledger.
                if name == "report" or not run.record_path(name).exists():
                    _fail(run, settings, name, error)
            mirror.changed(run)


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
        if run.ledger.events(RunClosed):
            return
        raise RunFailedError(
            f"{stage}: {error}; the result stands, and `a2rl resume {run.id}` finishes the run"
        ) from error
    raise RunFailedError(f"{record.reason}; the run counts as failed until `a2rl resume {run.id}` succeeds") from error


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
