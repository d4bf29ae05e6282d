"""`a2rl run`, `a2rl bench` and `a2rl resume`: the commands that start runs or continue them."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import typer

from a2rl.cli.options import Json, with_replaced_settings, with_settings
from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.run.spec import RunSpec
from a2rl.scoring.seeds import DIFFERENCE

if TYPE_CHECKING:
    from a2rl.run.directory import RunDir


@with_settings
def run(*, as_json: Json = False, **given: Any) -> None:
    """Run the benchmark once, from the base model to the report.

    Example: `a2rl run --task gsm8k --agent scripted --budget 2m`
    """
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.models import fetch
    from a2rl.cli.results import show_run
    from a2rl.config.params import load_params
    from a2rl.config.plan import plan_runs
    from a2rl.config.suite import single_run
    from a2rl.run.origin import create_run

    settings = Settings.load()
    suite = single_run(given)
    [spec] = plan_runs(suite, "runs", load_params(settings.root), settings)
    _warn([spec], settings)
    fetch([spec.model], settings)
    _check([spec], settings)
    created = create_run(spec, settings)
    with showing(lambda: show_run(created, as_json)):
        run_flow({"run_ids": [created.id]}, [created.id], settings)


@with_replaced_settings
def bench(
    suite: Annotated[str, typer.Argument(help="A suite of params.yaml.")] = "full-bench",
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Start nothing: print the runs, what they take and what they can show.")
    ] = False,
    difference: Annotated[
        float, typer.Option(min=0.1, help="With --dry-run: points between two stacks for which seeds are counted.")
    ] = DIFFERENCE,
    pool: Annotated[
        str | None,
        typer.Option(help="Only submit the runs: the workers of this Prefect work pool do them (docs/cluster.md)."),
    ] = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Run a suite: an experiment of params.yaml, such as every task with every agent and every seed.

    An option replaces what the suite says; give it several times to run each value.

    Examples: `a2rl bench smoke --seed 0 --seed 1 --concurrency 2`, `a2rl bench paper-main --dry-run`
    """
    from a2rl.cli.dry_run import show_dry_run
    from a2rl.cli.suites import submit
    from a2rl.config.params import load_params
    from a2rl.config.plan import choose_suite, plan_runs

    settings = Settings.load()
    params = load_params(settings.root)
    chosen = choose_suite(params, suite, **given)
    if dry_run:
        show_dry_run(suite, chosen, params, settings, difference, as_json)
    elif pool is not None:
        submit(plan_runs(chosen, suite, params, settings), pool, settings, as_json)
    else:
        _run_here(plan_runs(chosen, suite, params, settings), chosen.concurrency, settings, as_json)


def _run_here(specs: list[RunSpec], concurrency: int, settings: Settings, as_json: bool) -> None:
    """Does the runs of a suite on this machine, and reports on them."""
    from a2rl.cli.console import err, print_json
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.models import fetch
    from a2rl.cli.results import run_object
    from a2rl.cli.run_table import list_runs, show_list
    from a2rl.run.origin import create_run

    err.print(f"launch {specs[0].launch}; list its runs with: a2rl runs --launch {specs[0].launch}", soft_wrap=True)
    _warn(specs, settings)
    fetch([spec.model for spec in specs], settings)
    _check(specs, settings)
    created = [create_run(spec, settings) for spec in specs]
    ids = [each.id for each in created]
    with showing(lambda: print_json([run_object(each) for each in created]) if as_json else None):
        try:
            run_flow({"suite": specs[0].suite, "run_ids": ids, "concurrency": concurrency}, ids, settings)
        finally:
            show_list(list_runs(created))
            _report_on_launch(created, settings)


def resume(
    run_id: Annotated[list[str], typer.Argument(help="Run ids.")],
    trust: Annotated[
        bool, typer.Option("--trust", help="Continue runs that were made elsewhere, with their settings and your keys.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue runs that were interrupted or whose machine failed, with the rest of their budget.

    Example: `a2rl resume gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.results import show_run
    from a2rl.cli.suites import find_or_fetch
    from a2rl.cluster.holding import reserved
    from a2rl.run import origin

    settings = Settings.load()
    runs = [find_or_fetch(each, settings) for each in dict.fromkeys(run_id)]
    if trust:
        for each in runs:
            origin.trust(each, settings)
    origin.require_made_here(runs, settings)

    def show() -> None:
        for each in runs:
            show_run(each, as_json)

    with ExitStack() as locks, showing(show):
        for each in runs:
            locks.enter_context(reserved(each, settings))
        _check([each.spec for each in runs if not each.record_path("execute").exists()], settings)
        run_flow({"run_ids": [each.id for each in runs]}, [each.id for each in runs], settings)


def _report_on_launch(runs: "Sequence[RunDir]", settings: Settings) -> None:
    """Writes the report over the runs of this launch, as far as they have come."""
    from a2rl.cli.console import err, out
    from a2rl.results.suite.files import write_suite_report

    try:
        page = write_suite_report(runs[0].spec.launch, runs, settings)
    except (A2rlError, OSError) as error:  # the runs are what matters; `a2rl report --suite` draws it again
        err.print(f"the report over all runs could not be written: {error}", style="yellow", soft_wrap=True)
    else:
        out.print(f"report over all runs: {page}", soft_wrap=True, markup=False)


def _check(specs: Sequence[RunSpec], settings: Settings) -> None:
    """Checks what the runs need; if they cannot start, this is said before anything of them exists."""
    from a2rl.cli.console import err
    from a2rl.execution.preflight import require_ready

    with err.status("checking that the runs can start"):
        require_ready(specs, settings)


def _warn(specs: Sequence[RunSpec], settings: Settings) -> None:
    """Says what the runs cannot do with these keys and drivers, before any of them starts."""
    from a2rl.agent_systems.catalog import find_agent
    from a2rl.cli.console import err
    from a2rl.llm.keys import keys_too_short_to_hide
    from a2rl.llm.relay.prices import ADD_PRICE, price_unknown

    texts = set()
    for spec in {(each.agent, each.driver, each.base_url): each for each in specs}.values():
        agent = find_agent(spec.agent, settings.root)
        for name in keys_too_short_to_hide(agent, settings):
            texts.add(f"{name} is too short to recognise in texts, so it is not removed from logs")
        if unknown := price_unknown(spec, agent, settings):
            texts.add(f"{unknown}; to count it, {ADD_PRICE}")
    for text in sorted(texts):
        err.print(text, style="yellow", soft_wrap=True, markup=False)
