"""The flow `a2rl`: a grid of benchmark runs, side by side up to a limit.

prefect deployment run a2rl/full-bench --param variant=full --param model=Qwen/Qwen2.5-7B
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue

from prefect import flow
from prefect.futures import PrefectFuture

from a2rl.errors import A2rlError, Interrupted, RunFailed
from a2rl.mirror import Mirror
from a2rl.params import load_params
from a2rl.plan import choose_grid, plan_runs
from a2rl.process import STOP
from a2rl.run import RunDir
from a2rl.settings import Settings
from a2rl.tracking import Tracker
from flows.policies import benchmark_run, shares_of_cores


@flow(name="a2rl", flow_run_name="{suite}", persist_result=False, validate_parameters=True)
def a2rl(
    suite: str = "smoke",
    tasks: list[str] | None = None,
    agents: list[str] | None = None,
    seeds: list[int] | None = None,
    variant: str | None = None,
    model: str | None = None,
    mode: str | None = None,
    protocol: str | None = None,
    budget: str | None = None,
    driver: str | None = None,
    base_url: str | None = None,
    trials: int | None = None,
    max_turns: int | None = None,
    max_tokens: int | None = None,
    max_cost_usd: float | None = None,
    max_submissions: int | None = None,
    max_grading: str | None = None,
    source: str | None = None,
    concurrency: int | None = None,
    sandbox: str | None = None,
    run_ids: list[str] | None = None,
) -> list[str]:
    """Runs a suite of params.yaml, with any of its settings replaced; or goes on with the runs named in `run_ids`.

    Returns:
        The ids of the runs.

    Raises:
        UsageError: a setting is wrong; nothing was started.
        RunFailed: some runs could not be finished; all have a result.
        Interrupted: the user stopped the flow; `a2rl resume` goes on.
    """
    settings = Settings.load()
    params = load_params(settings.root)
    grid = choose_grid(
        params, suite, tasks=tasks, agents=agents, seeds=seeds, variant=variant, model=model, mode=mode,
        protocol=protocol, budget=budget, driver=driver, base_url=base_url, trials=trials, max_turns=max_turns,
        max_tokens=max_tokens, max_cost_usd=max_cost_usd, max_submissions=max_submissions,
        max_grading=max_grading, source=source, concurrency=concurrency, sandbox=sandbox,
    )  # fmt: skip
    if run_ids is None:
        runs = [RunDir.create(settings.runs, spec) for spec in plan_runs(grid, suite, params, settings)]
    else:
        runs = [RunDir(settings.runs / run_id) for run_id in dict.fromkeys(run_ids)]
    runs.sort(key=lambda run: -run.spec.budget_s if grid.concurrency > 1 else 0)  # so that the last ones end together
    tracker, slots = Tracker(settings), SimpleQueue[list[int]]()
    mirror = Mirror(tracker.sync, tracker.alive_at)
    for cores in shares_of_cores(os.sched_getaffinity(0), min(grid.concurrency, len(runs))):
        slots.put(cores)
    tracker.connect_soon()
    futures: dict[str, PrefectFuture[None]] = {}
    with stop_runs_on_exit():
        for run in runs:
            cores = slots.get()
            futures[run.id] = benchmark_run.submit(run, settings, mirror, cores)
            futures[run.id].add_done_callback(partial(_give_back, slots, cores))
        outcomes: dict[str, object] = {key: future.result(raise_on_failure=False) for key, future in futures.items()}
    mirror.close()
    errors = {run_id: outcome for run_id, outcome in outcomes.items() if isinstance(outcome, BaseException)}
    _raise_failures(errors, len(runs))
    return [run.id for run in runs]


@contextmanager
def stop_runs_on_exit() -> Iterator[None]:
    """However the flow's body is left early (Ctrl-C, a cancelled deployment), its agents and services end in order."""
    try:
        yield
    except BaseException:
        STOP.set()
        raise


def _give_back(slots: SimpleQueue[list[int]], cores: list[int], _: object) -> None:
    """A run is over: its cores are free for the next one."""
    slots.put(cores)


def _raise_failures(errors: dict[str, BaseException], total: int) -> None:
    if not errors:
        return
    if any(isinstance(error, Interrupted) for error in errors.values()):
        raise Interrupted("stopped by the user")
    listing: Sequence[str] = [f"{run_id}: {error}" for run_id, error in errors.items()]
    if total == 1 and isinstance(next(iter(errors.values())), A2rlError):
        raise next(iter(errors.values()))
    raise RunFailed(f"{len(errors)} of {total} runs could not be finished. " + "; ".join(listing))
