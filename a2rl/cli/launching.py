"""`a2rl run`, `a2rl bench`, `a2rl resume`, `a2rl rerun` and `a2rl regrade`: start, continue and repeat runs."""

import sys
from collections.abc import Sequence
from itertools import zip_longest
from typing import Annotated, Any

import typer

from a2rl.agent_systems.definition import find_agent
from a2rl.cli.catalogs import fetch
from a2rl.cli.console import err, print_json, print_table, say, say_aside
from a2rl.cli.options import Json, RunId, RunIds, Submission, with_replaced_settings, with_settings
from a2rl.cli.progress import progress_bar
from a2rl.cli.stored_runs import find_run, run_name
from a2rl.config.params import load_params
from a2rl.config.suite import single_run
from a2rl.core.errors import A2rlError, IntegrityError, UsageError
from a2rl.core.settings import Settings
from a2rl.core.urls import require_proxies
from a2rl.llm.keys import keys_too_short_to_hide
from a2rl.run.directory import UNREADABLE, RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.failure import is_unfinished
from a2rl.run.owner import create_run, queue, require_made_here
from a2rl.run.owner import trust as trust_run
from a2rl.run.spec import RunSpec

PREFECT_TIMEOUT_S = 10.0
NEEDS_PASSWORD = (401, 403)
"""What a proxy in front of a Prefect server may answer to a request without credentials."""


def _submissions(run: RunDir) -> list[tuple[str, float | None]]:
    grades = run.ledger.grades()
    digests = [each.weights_digest for each in run.ledger.events(SubmissionAccepted)]
    return [(digest, grades[digest].result.score if digest in grades else None) for digest in digests]


def _changed(run: RunDir, again: RunDir) -> list[str]:
    """Says what else differs: the commit of this checkout, and versions of packages."""
    before, after = (each.spec.versions | {"commit": each.spec.git_commit} for each in (run, again))
    names = sorted(before.keys() | after.keys())
    return [
        f"{name}: {before.get(name) or 'unknown'} before, {after.get(name) or 'unknown'} now"
        for name in names
        if before.get(name) != after.get(name)
    ]


@with_settings
def run(*, as_json: Json = False, **given: Any) -> None:
    """Run the benchmark once, from the base model to the report.

    Example: `a2rl run --task gsm8k --agent scripted --budget 2m`
    """
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.results import show_run
    from a2rl.config.plan import plan_runs

    settings = Settings.load()
    suite = single_run(given)
    [spec] = plan_runs(suite, "runs", load_params(settings.root), settings)
    [created] = _create([spec], settings)
    with showing(lambda: show_run(created, as_json)):
        run_flow([created], settings)


@with_replaced_settings
def bench(
    suite: Annotated[str, typer.Argument(help="A suite of params.yaml.")] = "",
    *,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Start nothing: print the runs, what they take and what they can show.")
    ] = False,
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
    from a2rl.config.plan import choose_suite, plan_runs

    settings = Settings.load()
    params = load_params(settings.root)
    if not suite:
        known = ", ".join(params.suites)
        raise UsageError(f"name a suite: {known}; `a2rl bench SUITE --dry-run` shows its runs and what they take")
    chosen = choose_suite(params, suite, **given)
    if dry_run:
        show_dry_run(suite, chosen, params, settings, as_json)
    elif pool is not None:
        submit(plan_runs(chosen, suite, params, settings), pool, settings, as_json)
    else:
        _run_here(plan_runs(chosen, suite, params, settings), chosen.concurrency, settings, as_json)


def _run_here(specs: list[RunSpec], concurrency: int, settings: Settings, as_json: bool) -> None:
    """Does the runs of a suite on this machine, and reports on them."""
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.results import list_runs, run_objects, show_list

    say_aside(f"launch {specs[0].launch}; list its runs with: a2rl runs --launch {specs[0].launch}")
    created = _create(specs, settings, concurrency)
    with showing(lambda: print_json(run_objects(created)) if as_json else None):
        try:
            run_flow(created, settings, suite=specs[0].suite)
        finally:
            show_list(list_runs(created))
            _report_on_launch(created, settings)


def resume(
    run_id: RunIds,
    trust: Annotated[
        bool, typer.Option("--trust", help="Continue runs that were made elsewhere, with their settings and your keys.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Continue runs that were interrupted or whose machine failed, with the rest of their budget.

    The name of a launch or a suite stands for its unfinished runs, except for those that somebody else made.

    Example: `a2rl resume gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.results import run_objects, show_run

    settings = Settings.load()
    runs = list(dict.fromkeys(each for name in run_id for each in _meant(name, trust, settings)))
    if trust:
        for each in runs:
            trust_run(each, settings)
    require_made_here(runs, settings)

    def show() -> None:
        for each in runs:
            try:
                show_run(each, as_json=False)
            except UNREADABLE as error:  # the results of the others are shown
                say_aside(f"{each.id} is damaged: {error}", style="yellow")
        if as_json:
            print_json(run_objects(runs))

    for each in runs:  # who works on one is named before the checks; of two that begin now, the flow lets one go on
        queue(each)
    with showing(show):
        _check([each.spec for each in runs if not each.record_path("execute").exists()], settings)
        run_flow(runs, settings)


def _meant(name: str, trust: bool, settings: Settings) -> list[RunDir]:
    """Returns the runs that a name stands for: the run with this id, or the unfinished runs of a launch or a suite.

    Whoever makes a run can write any suite into it, so a run that somebody else made is continued only by its own id.

    Raises:
        UsageError: There is no such run, or it cannot be continued here.
    """
    from a2rl.cli.suites import find_or_fetch
    from a2rl.cluster.holding import Cluster

    is_run = (settings.runs / run_name(name, settings) / "spec.json").is_file()
    named = [] if is_run else [run for run in RunDir.all(settings.runs) if run.goes_by([name])]
    if not named:
        return [find_or_fetch(name, settings)]
    if trust:
        raise UsageError(f"--trust is for single runs, whose settings you have read; {name!r} stands for {len(named)}")
    cluster = Cluster.of(settings)  # where a run may still be open whose last state is not in the store
    still_open = {row.run_id for row in cluster.claims.rows(name) if not row.done} if cluster else set()
    if not (unfinished := [run for run in named if is_unfinished(run) or run.id in still_open]):
        by = "--suite" if named[0].spec.suite == name else "--launch"
        raise UsageError(f"all {len(named)} runs of {name!r} have ended: `a2rl runs {by} {name}` lists them")
    found = []
    for run in unfinished:
        try:
            require_made_here([run], settings)
            found.append(find_or_fetch(run.id, settings))
        except (UsageError, IntegrityError) as error:
            say_aside(f"left out: {error}", style="yellow")
    if not found:
        raise UsageError(f"no run of {name!r} can be continued here")
    return found


def _report_on_launch(runs: Sequence[RunDir], settings: Settings) -> None:
    """Writes the report over the runs of this launch, as far as they have come."""
    from a2rl.results.suite.files import write_suite_report

    try:
        page = write_suite_report(runs[0].spec.launch, runs, settings)
    except (A2rlError, OSError) as error:  # the runs are what matters; `a2rl report --suite` draws it again
        say_aside(f"the report over all runs could not be written: {error}", style="yellow")
    else:
        say(f"report over all runs: {page}")


def _create(specs: Sequence[RunSpec], settings: Settings, concurrency: int = 1) -> list[RunDir]:
    """Creates runs that can start, and gets their base models."""
    _warn(specs, settings, concurrency)
    _check(specs, settings)
    fetch([spec.model for spec in specs], settings)
    return [create_run(spec, settings) for spec in specs]


def _check(specs: Sequence[RunSpec], settings: Settings) -> None:
    """Checks what the runs need; if they cannot start, this is said before anything of them exists."""
    from a2rl.execution.preflight import require_ready

    with err.status("checking that the runs can start"):
        _require_prefect(settings)
        require_ready(specs, settings)


def _require_prefect(settings: Settings) -> None:
    """Requires that the user's own Prefect server answers. Whether it accepts their password, its client finds out."""
    require_proxies(settings.environ)
    if not (url := settings.environ.get("PREFECT_API_URL")):
        return
    import httpx  # takes a tenth of a second

    try:
        answer = httpx.get(f"{url.rstrip('/')}/health", timeout=PREFECT_TIMEOUT_S, follow_redirects=True)
        if answer.status_code in NEEDS_PASSWORD or (answer.status_code, answer.text.strip()) == (200, "true"):
            return
        problem = f"status {answer.status_code}, but not as Prefect does; the URL usually ends with /api"
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        problem = str(error)
    raise UsageError(
        f"PREFECT_API_URL is {url}, where no Prefect server answers ({problem}): start it, or unset the variable, and "
        "a2rl starts one of its own"
    )


def _warn(specs: Sequence[RunSpec], settings: Settings, concurrency: int) -> None:
    """Says what the runs cannot do with these keys, drivers and disk, before any of them starts."""
    from a2rl.config.estimate import disk_shortage
    from a2rl.llm.relay.prices import ADD_PRICE, price_unknown

    texts = {disk_shortage(specs, concurrency, settings)} - {""}
    for spec in {(each.agent, each.driver, each.base_url): each for each in specs}.values():
        agent = find_agent(spec.agent, settings.root)
        for name in keys_too_short_to_hide(agent, settings):
            texts.add(f"{name} is too short to recognise in texts, so it is not removed from logs")
        if unknown := price_unknown(spec, agent, settings):
            texts.add(f"{unknown}; to count it, {ADD_PRICE}")
    for text in sorted(texts):
        say_aside(text, style="yellow")


def regrade(
    run_id: RunId,
    submission: Submission = None,
    as_json: Json = False,
) -> None:
    """Grade a checkpoint of a run again, with the run's settings, and compare the results item by item.

    A submission by its number is graded on the items whose score the agent was told; without a number, the submission
    that counts is graded on the items that decided the result. The command fails if an item differs.

    Examples: `a2rl regrade gsm8k-scripted-20260412-093015-a1b2 2`, `a2rl regrade gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.results import show_regrade
    from a2rl.grading.regrade import regrade as grade_again

    settings = Settings.load()
    with progress_bar(f"grading {run_id} again") as on_progress:
        found = grade_again(find_run(run_id, settings), settings, submission, on_progress)
    show_regrade(found)
    if as_json:
        print_json(found.model_dump(mode="json") | {"same": found.is_same})
    if not found.is_same:
        sys.exit(1)


def rerun(run_id: RunId, as_json: Json = False) -> None:
    """Start a new run with all settings of an earlier one, and compare their submissions.

    The scripted agent submits the same weights on the same machine if the run has a fixed number of steps (--steps).

    Example: `a2rl rerun gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.results import show_run
    from a2rl.config.plan import plan_again

    settings = Settings.load()
    first = find_run(run_id, settings)
    require_made_here([first], settings)
    [again] = _create([plan_again(first.spec, settings)], settings)

    def show() -> None:
        show_run(again, as_json=False)
        _show_repetition(first, again, as_json)

    with showing(show):
        run_flow([again], settings)


def _show_repetition(first: RunDir, again: RunDir, as_json: bool) -> None:
    """Compares two runs, submission by submission. A run without any repeats nothing."""
    found = list(enumerate(zip_longest(_submissions(first), _submissions(again), fillvalue=("", None)), start=1))
    differing = [(number, before, after) for number, (before, after) in found if before != after]
    changed, is_same = _changed(first, again), bool(found) and not differing
    if is_same:
        say(f"the same weights and scores in all {len(found)} submissions as {first.id}")
    elif not found:
        say(f"neither this run nor {first.id} has submissions that could be compared")
    else:
        say(f"this run differs from {first.id}")
    if differing:
        rows = (
            (str(number), old[:16] or "-", new[:16] or "-", str(was), str(now))
            for number, (old, was), (new, now) in differing
        )
        print_table(("submission", "weights before", "weights now", "score before", "score now"), rows)
    for change in changed:
        say(change)
    if as_json:
        submissions = [
            {"number": number, "weights": old, "weights_again": new, "score": was, "score_again": now}
            for number, ((old, was), (new, now)) in found
        ]
        print_json(
            {"run_id": first.id, "again": again.id, "submissions": submissions, "changed": changed, "same": is_same}
        )
