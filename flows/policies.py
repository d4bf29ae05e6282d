"""The stages as Prefect tasks, with the one policy on retries: only what the machine did wrong is tried again.

A crash or a timeout of the agent is a result, a bad setting stays bad, and a stage that was interrupted waits for
`a2rl resume`. Prefect's caching is off: a stage's record says whether it is done.
"""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from prefect import Task, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun

from a2rl.errors import InfrastructureError, Interrupted, MissingInput, RunFailed, TaskDefinitionError, UsageError
from a2rl.failure import forget_failure, record_failure
from a2rl.mirror import Mirror
from a2rl.owner import owned
from a2rl.process import STOP
from a2rl.run import Record, RunDir
from a2rl.settings import Settings
from stages.baseline import baseline
from stages.execute import execute
from stages.grade import grade
from stages.report import report
from stages.setup import setup

RETRIES = 2
RETRY_DELAYS_S = [2, 10]


async def is_infrastructure_failure(_: Task[..., Any], __: TaskRun, state: State[Any]) -> bool:
    """Whether a failed stage is worth another try."""
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, InfrastructureError) and not STOP.is_set()


def stage_task(name: str, stage: Callable[..., Record]) -> Task[..., Record]:
    """A stage as a Prefect task."""
    return Task(
        stage,
        name=name,
        task_run_name=name + " {run.id}",
        retries=RETRIES,
        retry_delay_seconds=list(RETRY_DELAYS_S),
        retry_condition_fn=is_infrastructure_failure,
        cache_policy=NO_CACHE,
        persist_result=False,
    )


setup_stage = stage_task("setup", setup)
baseline_stage = stage_task("baseline", baseline)
execute_stage = stage_task("execute", execute)
grade_stage = stage_task("grade", grade)
report_stage = stage_task("report", report)


@task(name="run", task_run_name="{run.id}", cache_policy=NO_CACHE, persist_result=False)
def benchmark_run(run: RunDir, settings: Settings, mirror: Mirror, cores: Collection[int]) -> None:
    """One benchmark run, from its spec to its report; stages that are done already answer from their records.

    A stage that could not be finished, however often it was tried, is a result as well: the run has failed.

    Args:
        cores: what its processes keep to, so that runs side by side do not slow each other down.

    Raises:
        UsageError: another process works on the run, or its settings are wrong.
        Interrupted: the user stopped it; it can be resumed.
        RunFailed: it has failed, and its records say so.
    """
    with owned(run), on_cores(cores):
        forget_failure(run)
        try:
            _run_stages(run, settings, mirror)
        finally:
            mirror.changed(run)


def _run_stages(run: RunDir, settings: Settings, mirror: Mirror) -> None:
    stages: dict[str, Callable[[], Record]] = {
        "setup": lambda: setup_stage(run, settings),
        "baseline": lambda: baseline_stage(run, settings),
        "execute": lambda: execute_stage(run, settings, mirror.look),
        "grade": lambda: grade_stage(run, settings),
        "report": lambda: report_stage(run, settings),
    }
    for name, stage in stages.items():
        try:
            stage()
        except (UsageError, TaskDefinitionError, MissingInput, Interrupted):
            raise
        except Exception as error:
            if STOP.is_set():
                raise Interrupted("stopped by the user") from error
            if not run.record_path(name).exists():  # if it is there, it was Prefect that failed
                _fail(run, settings, name, error)
        mirror.changed(run)


def _fail(run: RunDir, settings: Settings, stage: str, error: Exception) -> NoReturn:
    """Records the failure, draws the report if that can be done, and says so."""
    record = record_failure(run, stage, error)
    with suppress(Exception):  # the report may be what failed; the record is what counts
        report(run, settings)
    raise RunFailed(f"{record.reason}; the run counts as failed until `a2rl resume {run.id}` succeeds") from error


@contextmanager
def on_cores(cores: Collection[int]) -> Iterator[None]:
    """The calling thread, and every process and thread that it starts, keep to these processor cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def shares_of_cores(cores: Collection[int], runs: int) -> list[list[int]]:
    """The cores dealt out to runs side by side; all to each where there are more runs than cores."""
    count, ordered = len(cores) // max(runs, 1), sorted(cores)
    return [ordered[place * count : (place + 1) * count] if count else ordered for place in range(runs)]
