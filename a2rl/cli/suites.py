"""`a2rl suite`: the runs that were submitted to the workers of several machines."""

import os
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from a2rl.cli.console import print_json, print_table, say, say_aside
from a2rl.cli.options import Json, RunId, finite
from a2rl.cli.stored_runs import find_run, run_name
from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.settings import Settings
from a2rl.core.urls import require_proxies
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.owner import create_run, trust
from a2rl.run.spec import RunSpec

if TYPE_CHECKING:
    from a2rl.cluster.claims import RunRow
    from a2rl.cluster.holding import Cluster

app = typer.Typer(
    help="See, restart and end the runs that `a2rl bench --pool` has submitted to several machines.",
    no_args_is_help=True,
)
EVERY_S = 30.0
SuiteName = Annotated[str | None, typer.Argument(help="A suite or a launch; all runs unless given.")]


def _cluster() -> "Cluster":
    from a2rl.cluster.holding import Cluster

    return Cluster.needed(Settings.load())


def _rows(cluster: "Cluster", suite: str | None) -> "list[RunRow]":
    """Returns the runs of a suite or launch, or all.

    Raises:
        UsageError: It has none.
    """
    rows = cluster.claims.rows(suite)
    if suite is not None and not rows:
        raise UsageError(f"no run of {suite!r} was submitted: `a2rl suite status --json` lists all runs")
    return rows


@app.command()
def status(suite: SuiteName = None, as_json: Json = False) -> None:
    """Show how many runs are done, running, waiting or stuck, and what they have used.

    Example: `a2rl suite status paper-main`
    """
    _show(_cluster(), suite, as_json)


@app.command()
def watch(
    suite: SuiteName = None,
    every: Annotated[float, typer.Option(min=1, callback=finite, help="Seconds between two looks.")] = EVERY_S,
    as_json: Json = False,
) -> None:
    """Show the state again and again, and start again what nobody works on, until no run goes on.

    Example: `a2rl suite watch paper-main`
    """
    cluster, said = _cluster(), list[str]()
    while True:
        try:
            said = _reconcile(cluster, suite, said)
            if _show(cluster, suite, as_json):
                return
        except UsageError:
            raise
        except A2rlError as error:  # a service is being restarted
            say_aside(str(error), style="yellow")
        time.sleep(every)


@app.command()
def reconcile(suite: SuiteName = None) -> None:
    """Look once for runs that nobody works on, and start them again; a timer calls this every 30 seconds.

    Example: `a2rl suite reconcile`
    """
    _rows(cluster := _cluster(), suite)
    _reconcile(cluster, suite)


@app.command()
def cancel(suite: Annotated[str, typer.Argument(help="A suite or a launch.")]) -> None:
    """End all runs of a suite that are not done; their agents end within seconds.

    Example: `a2rl suite cancel smoke-20260412-093015-a1b2`
    """
    from flows.submission import cancel as cancel_suite

    _rows(cluster := _cluster(), suite)
    ended = cancel_suite(cluster, suite)
    say(f"runs cancelled: {len(ended)}")


@app.command()
def reopen(run_id: RunId) -> None:
    """Allow a run that was cancelled or given up to be continued, here or by a worker.

    Example: `a2rl suite reopen gsm8k-scripted-20260412-093015-a1b2`
    """
    cluster, name = _cluster(), run_name(run_id, Settings.load())
    if cluster.claims.row(name) is None:
        raise UsageError(f"no run {name!r} was submitted: `a2rl suite status --json` lists all runs")
    cluster.claims.reopen(name)
    say(f"{name} can be continued: `a2rl resume {name}`, or by a worker after `a2rl suite reconcile`")


@app.command()
def worker(
    pool: Annotated[str, typer.Argument(help="The work pool of `a2rl bench --pool`.")],
    once: Annotated[bool, typer.Option("--once", help="Take one run that waits now, then end (for SLURM).")] = False,
) -> None:
    """Work on one run at a time. What waits is checked first: a machine that cannot do it takes nothing.

    Example: `CUDA_VISIBLE_DEVICES=0 a2rl suite worker a2rl`
    """
    from a2rl.cluster.status import waiting_specs
    from a2rl.execution.preflight import require_ready

    settings = Settings.load()
    require_proxies(settings.environ)
    require_ready(waiting_specs(_cluster(), pool), settings)
    prefect = str(settings.python_bin / "prefect")
    command = [prefect, "worker", "start", "--pool", pool, "--type", "process", "--limit", "1"]
    if once:
        if (flow_run := _take_one(pool)) is None:
            return
        command = [prefect, "flow-run", "execute", flow_run]
    ours = {"A2RL_ROOT": str(settings.root), "PYTHONPATH": str(settings.root)}
    os.chdir(settings.root)
    # Prefect turns SIGTERM into SIGINT, which a shell script makes ignored in what it starts with &.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execve(prefect, command, settings.environ | ours)


def _take_one(pool: str) -> str | None:
    """Returns a flow run that now waits for this process; None if nothing waits."""
    from flows.submission import prefect_client, take_flow_run

    with prefect_client() as client:
        flow_run = take_flow_run(client, pool)
    say(f"nothing waits in {pool}" if flow_run is None else f"takes {flow_run.name}")
    return None if flow_run is None else str(flow_run.id)


def submit(specs: Sequence[RunSpec], pool: str, settings: Settings, as_json: bool) -> None:
    """Submits runs to a pool and says how to follow them."""
    from flows.pipeline import a2rl
    from flows.submission import submit_runs

    launch = specs[0].launch
    try:
        ids = submit_runs(specs, pool, a2rl, settings)
    except BaseException:
        with suppress(A2rlError):
            if rows := _cluster().claims.rows(launch):
                say_aside(
                    f"{len(rows)} runs are registered, and workers will do them: `a2rl suite watch {launch}` follows "
                    f"them, `a2rl suite cancel {launch}` ends them",
                    style="yellow",
                )
        raise
    say(f"runs submitted to {pool}: {len(ids)}; follow them with: a2rl suite watch {launch}")
    if as_json:
        print_json({"launch": launch, "pool": pool, "runs": ids})


def find_or_fetch(run_id: str, settings: Settings) -> RunDir:
    """Returns a run of this checkout, or of the store, whose settings are then fetched.

    Raises:
        UsageError: There is no such run, or another machine works on it.
    """
    from a2rl.cluster.claims import taken
    from a2rl.cluster.copies import read_spec
    from a2rl.cluster.holding import Cluster

    if (cluster := Cluster.of(settings)) is not None:
        name = run_name(run_id, settings)
        row = cluster.claims.row(name)
        if row is not None and (row.live or row.done):
            raise taken(row)
        stored = read_spec(cluster.store, name)
        if stored is not None and not (settings.runs / name / "spec.json").exists():
            return create_run(stored, settings)
        found = find_run(run_id, settings)
        if row is not None and found.spec == stored:  # one of ours, and its settings here are those of the store
            trust(found, settings)
        return found
    return find_run(run_id, settings)


def _reconcile(cluster: "Cluster", suite: str | None, said: Sequence[str] = ()) -> list[str]:
    """Reconciles once, says what was done unless it has just been said, and returns all of it."""
    from flows.submission import reconcile as reconcile_once

    acted = reconcile_once(cluster, suite).items()
    lines = [*_told((run_id, f"{decision.act}: {decision.why}") for run_id, decision in acted)]
    for line in lines:
        if line not in said:
            say_aside(line)
    return lines


def _told(about: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yields a line for each text about runs, given as run id and text; a machine lacks the same for many runs."""
    runs_by_text: dict[str, list[str]] = {}
    for run_id, text in about:
        runs_by_text.setdefault(text, []).append(run_id)
    for text, run_ids in runs_by_text.items():
        runs = run_ids[0] if len(run_ids) == 1 else f"{len(run_ids)} runs, the first of which is {run_ids[0]}"
        yield f"{runs}: {text}"


def _show(cluster: "Cluster", suite: str | None, as_json: bool) -> bool:
    """Shows the state; returns whether no run goes on."""
    from a2rl.cluster.holding import REFUSED
    from a2rl.cluster.status import goes_on, host_of, state_of_row, status_of

    rows = _rows(cluster, suite)
    found, is_over = status_of(rows), not any(map(goes_on, rows))
    if as_json:
        runs = [{**row.model_dump(mode="json"), "state": state_of_row(row), "host": host_of(row)} for row in rows]
        print_json({**found.model_dump(mode="json"), "list": runs})
        return is_over
    shown = [row for row in rows if state_of_row(row) in {"running", "stuck", "failed"}]
    cells = (
        (row.run_id, state_of_row(row), host_of(row), str(row.attempts), row.progress.stage, row.outcome)
        for row in shown
    )
    if shown:
        print_table(("run", "state", "machine", "attempts", "stage", "note"), cells, right=("attempts",))
    refused = (
        (row.run_id, f"waiting: {row.outcome.removeprefix(REFUSED)}")
        for row in rows
        if state_of_row(row) == "waiting" and row.outcome
    )
    left_alone = (
        (row.run_id, "stuck: no worker has it, because it was begun without --pool; `a2rl resume RUN` continues it")
        for row in rows
        if not (row.done or goes_on(row))
    )
    for line in _told([*refused, *left_alone]):
        say(line)
    left = "time left unknown" if found.left_s is None else f"about {format_duration(found.left_s)} left"
    spent = "spent" if found.agent_usd is not None else "spent on judges, and an unknown sum on drivers"
    silent = "-" if found.oldest_beat_s is None else format_duration(found.oldest_beat_s)
    say(
        f"{found.runs} run{'s' if found.runs != 1 else ''}: "
        f"{found.done} done, {found.running} running, {found.waiting} waiting, {found.stuck} stuck, "
        f"{found.failed} failed; budget {format_duration(found.used_s)} of {format_duration(found.budget_s)}, "
        f"${(found.agent_usd or 0.0) + found.judge_usd:.2f} {spent}"
        + ("" if is_over else f"; {left}; longest silence {silent}")
    )
    return is_over
