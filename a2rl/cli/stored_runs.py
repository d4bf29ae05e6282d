"""`a2rl runs`, `a2rl verify` and `a2rl report`: what was run before."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from a2rl.cli.options import Json
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings

PublicKey = Annotated[
    list[Path] | None,
    typer.Option(help="Public key of the signer that must have signed the ledger, instead of those in params.yaml."),
]


def verify(run_id: str, public_key: PublicKey = None, as_json: Json = False) -> None:
    """Check that a run is what it claims to be: its ledger, signatures, files, scores, records and MLflow entries.

    Example: `a2rl verify gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.console import print_json
    from a2rl.cli.results import find_run, show_checks
    from a2rl.results.mlflow.tracking import Tracker
    from a2rl.results.verify import trust_of, verify_run

    settings = Settings.load()
    checks = verify_run(find_run(run_id, settings), Tracker(settings), trust_of(settings, public_key or ()))
    show_checks(checks)
    failed = [check for check in checks if check.problem]
    if as_json:
        print_json(
            {
                "run_id": run_id,
                "sound": not failed,
                "problems": [check.problem for check in failed],
                "not_checked": [f"{check.what}: {check.not_checked}" for check in checks if check.not_checked],
            }
        )
    if failed:
        sys.exit(1)


Only = Annotated[str | None, typer.Option(help="Only the runs with this value.")]


def runs(
    run_id: Annotated[str | None, typer.Argument(help="One run: its result, findings and refused submissions.")] = None,
    *,
    suite: Only = None,
    launch: Annotated[
        str | None, typer.Option(help="Only the runs of one launch, by the id that `a2rl bench` prints.")
    ] = None,
    task: Only = None,
    agent: Only = None,
    driver: Only = None,
    mode: Only = None,
    state: Only = None,
    verdict: Only = None,
    validity: Only = None,
    sort: Annotated[str, typer.Option(help="run, created, suite, task, agent, driver, seed, gain, submissions.")] = (
        "run"
    ),
    reverse: Annotated[bool, typer.Option("--reverse", help="The largest first.")] = False,
    as_json: Json = False,
) -> None:
    """List the runs and the state of each, or show one.

    Examples: `a2rl runs --task gsm8k --sort gain --reverse`, `a2rl runs gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.console import print_json
    from a2rl.cli.results import find_run, run_object, show_run
    from a2rl.cli.run_table import list_runs, show_list
    from a2rl.run.directory import RunDir

    if run_id is not None:
        shown = find_run(run_id, Settings.load())
        print_json(run_object(shown)) if as_json else show_run(shown, as_json=False)
        return
    found = list_runs(
        RunDir.all(Settings.load().runs), sort, reverse, suite=suite, launch=launch, task=task, agent=agent,
        driver=driver, mode=mode, state=state, verdict=verdict, validity=validity,
    )  # fmt: skip
    if as_json:
        print_json([{"id": each.run.id, "state": each.state, **each.facts} for each in found])
    else:
        show_list(found)


def report(
    run_id: Annotated[str | None, typer.Argument(help="Run id.")] = None,
    *,
    suite: Annotated[
        list[str] | None,
        typer.Option(help="Report over all runs of a suite, a launch, or with this run id; may be repeated."),
    ] = None,
) -> None:
    """Regenerate a run's report and bring MLflow up to date, or write a report over many runs.

    Examples: `a2rl report gsm8k-scripted-20260412-093015-a1b2`, `a2rl report --suite full-bench`
    """
    if suite:
        _report_on_suites(suite)
    elif run_id is None:
        raise UsageError("name a run, or several with --suite: `a2rl runs` lists what there is")
    else:
        _report_on_run(run_id)


def _report_on_suites(names: list[str]) -> None:
    from a2rl.cli.console import out
    from a2rl.results.suite.files import report_name, runs_of, write_suite_report

    settings = Settings.load()
    page = write_suite_report(report_name(names), runs_of(names, settings), settings)
    out.print(str(page), soft_wrap=True)


def _report_on_run(run_id: str) -> None:
    from a2rl.anchor.follower import Anchor, anchor_behind, catch_up
    from a2rl.cli.console import out
    from a2rl.cli.results import find_run
    from a2rl.config.params import load_params
    from a2rl.results.mirror import mark_behind
    from a2rl.results.mlflow.tracking import Tracker
    from a2rl.results.report import draw_report
    from a2rl.run.events import RunClosed
    from a2rl.run.owner import owned
    from stages.report import report as stage_report

    settings = Settings.load()
    found, params = find_run(run_id, settings), load_params(settings.root).anchor
    is_finished = found.record_path("labels").exists() and found.ledger.events(RunClosed)
    if found.record_path("validity").exists() and not is_finished:
        with owned(found):
            stage_report(found, settings)  # it could not be finished when the run ended
    draw_report(found, settings)
    out.print(str(found.report), soft_wrap=True)
    if params.is_used:
        catch_up(found, Anchor(params, settings.root))
        if late := anchor_behind(found):
            out.print(late, style="yellow", soft_wrap=True, markup=False)
    Tracker(settings).sync(found)
    mark_behind(found, "")
