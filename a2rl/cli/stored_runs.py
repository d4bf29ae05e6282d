"""`a2rl runs`, `a2rl report`, `a2rl verify`, `a2rl outputs`, `a2rl compare` and `a2rl label`: what was run before, and
a closer look at what runs did and what their models wrote."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from a2rl.anchor.params import AnchorParams
from a2rl.cli.console import out, print_json, print_table, say, say_aside
from a2rl.cli.options import Json, RunId, RunIds, Submission, finite
from a2rl.config.params import load_params
from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.printable import printable
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import RunClosed
from a2rl.run.owner import is_made_here, owned
from a2rl.run.records import RunVerdict
from a2rl.run.spec import Mode
from a2rl.validity.record import Word

if TYPE_CHECKING:
    from a2rl.grading.outputs import Turn
    from a2rl.labels.records import LabelsRecord
    from a2rl.results.outputs import GradedOutput


PublicKey = Annotated[
    list[Path] | None,
    typer.Option(help="Public key of the signer that must have signed the ledger, instead of those in params.yaml."),
]


def run_name(run_id: str, settings: Settings) -> str:
    """Returns the id of a run of this checkout, given the id or the path of its directory.

    Raises:
        UsageError: The path is not that of a run in this checkout.
    """
    path = Path(run_id)
    if os.sep in run_id and path.resolve().parent != settings.runs.resolve():
        raise UsageError(f"{run_id} is not a run of this checkout, whose runs are in {settings.runs}")
    return path.name


def find_run(run_id: str, settings: Settings) -> RunDir:
    """Returns a run, given its id or the path of its directory.

    Raises:
        UsageError: There is no such run.
        IntegrityError: Its directory has links, pipes or devices.
    """
    name = run_name(run_id, settings)
    if not (settings.runs / name / "spec.json").is_file():
        raise unknown_name("run", name, [each.id for each in RunDir.all(settings.runs)])
    found = RunDir(settings.runs / name)
    found.check_plain()
    return found


def verify(run_id: str, public_key: PublicKey = None, as_json: Json = False) -> None:
    """Check that a run is what it claims to be: its ledger, signatures, files, scores, records and MLflow entries.

    Example: `a2rl verify gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.results import show_checks
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


ONLY = typer.Option(help="Only the runs with this value.")
Only = Annotated[str | None, ONLY]


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
    mode: Annotated[Mode | None, ONLY] = None,
    state: Only = None,
    verdict: Annotated[RunVerdict | None, ONLY] = None,
    validity: Annotated[Word | None, ONLY] = None,
    sort: Annotated[str, typer.Option(help="run, created, suite, task, agent, driver, seed, gain, submissions.")] = (
        "run"
    ),
    reverse: Annotated[bool, typer.Option("--reverse", help="The largest first.")] = False,
    as_json: Json = False,
) -> None:
    """List the runs and the state of each, or show one.

    Examples: `a2rl runs --task gsm8k --sort gain --reverse`, `a2rl runs gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.results import list_runs, run_object, show_list, show_run

    wanted = {
        "suite": suite, "launch": launch, "task": task, "agent": agent, "driver": driver, "mode": mode, "state": state,
        "verdict": verdict, "validity": validity,
    }  # fmt: skip
    if run_id is not None:
        if given := [f"--{name}" for name, value in wanted.items() if value is not None]:
            raise UsageError(f"{', '.join(given)}: only for the list of runs, so leave out {run_id}")
        shown = find_run(run_id, Settings.load())
        print_json(run_object(shown)) if as_json else show_run(shown, as_json=False)
        return
    found = list_runs(RunDir.all(Settings.load().runs), sort, reverse, **wanted)
    if as_json:
        print_json([{"id": each.run.id, "state": each.state, **each.facts} for each in found])
    elif found:
        show_list(found)
    else:
        say("no such runs: `a2rl runs` lists all" if any(wanted.values()) else "no runs yet: `a2rl run` starts one")


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
    if run_id is not None and suite:
        raise UsageError(f"leave out {run_id}, or give it as a further --suite: a report is of one run or over several")
    if run_id is not None:
        _report_on_run(run_id)
    elif suite:
        from a2rl.results.suite.files import report_name, write_suite_report

        settings = Settings.load()
        found, missing = _runs_of(suite, settings)
        say(str(write_suite_report(report_name(suite), found, settings, missing)))
    else:
        raise UsageError("name a run, or several with --suite: `a2rl runs` lists what there is")


def _runs_of(suite: list[str], settings: Settings) -> tuple[list[RunDir], dict[str, str]]:
    """Returns the runs of suites, and those that are missing, of which it tells the user."""
    from a2rl.results.suite.files import not_there, runs_of

    found = runs_of(suite, settings)
    if missing := not_there(suite, found, settings):
        count = f"{len(missing)} of {len(found) + len(missing)} runs"
        say_aside(f"Left out: {count}, which were submitted, and are neither here nor in the store.", style="yellow")
    return found, missing


def _report_on_run(run_id: str) -> None:
    from a2rl.results.mirror import MLFLOW_NOTE
    from a2rl.results.mlflow.tracking import Tracker
    from a2rl.results.report.page import draw_report
    from stages.report import report as stage_report

    settings = Settings.load()
    found, params = find_run(run_id, settings), load_params(settings.root).anchor
    is_finished = found.record_path("labels").exists() and found.ledger.events(RunClosed)
    if found.record_path("validity").exists() and not is_finished:
        with owned(found):
            stage_report(found, settings)  # it could not be finished when the run ended
    try:
        draw_report(found, settings)
        say(str(found.report))
    finally:  # a run without a page is in MLflow, too
        _anchor(found, params, settings)
        Tracker(settings).sync(found)
        MLFLOW_NOTE.mark(found, "")


def _anchor(run: RunDir, params: AnchorParams, settings: Settings) -> None:
    """Signs and publishes what is missing of a run that was made here: this key says nothing of the runs of others."""
    from a2rl.anchor.follower import anchors_of
    from a2rl.anchor.signatures import FILE

    parts = anchors_of(params, settings.root)
    if not is_made_here(run, settings):
        return
    behind = [late for part in parts if (late := part.catch_up(run))]
    if params.key and not behind and not (run.root / FILE).exists():
        behind = ["The ledger was not signed while the run went on, and stays unsigned."]
    for line in behind:
        say(line, style="yellow")


ALL = "every run of this checkout"
SHOWN_EVIDENCE = 5
"""The pieces of evidence that are shown for each label; `--json` has all of them."""
SHOWN_OUTPUTS = 20
"""The number of items that are listed; `--json` has all of them."""
BEGINNING = 60
"""Characters of an answer in the list."""


def compare(
    one: Annotated[str, typer.Argument(help="A stack as the report names it, or a part of its name: codex.")],
    other: Annotated[str, typer.Argument(help="The other stack.")],
    *,
    suite: Annotated[
        list[str] | None, typer.Option(help=f"Suite, launch or run id; may be repeated. Default: {ALL}.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare two stacks on the tasks that both have runs of, on the same items.

    A stack is an agent, with its driver and the other settings that differ between the runs.

    Example: `a2rl compare copy-base scripted --suite full-bench`
    """
    from a2rl.results.suite import tables
    from a2rl.results.suite.leaderboard import compare_stacks, unfinished_of
    from a2rl.results.suite.run_summary import summaries

    settings = Settings.load()
    runs = _runs_of(suite, settings)[0] if suite else RunDir.all(settings.runs)
    found = summaries(runs)
    for name, why in found.unreadable.items():
        say_aside(f"Left out: {name}, which cannot be read: {why}", style="yellow")
    rows = compare_stacks(one, other, found.runs)
    for name in unfinished_of((rows[0].stack, rows[0].other), found.runs):
        say_aside(f"Left out: {name}, which has not finished: see `a2rl runs {name}`", style="yellow")
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    table = tables.comparison("comparison", rows)
    print_table(table.columns, [[cell.text for cell in row] for row in table.rows], right=table.right)
    say(f"Difference: the gain of {rows[0].other} minus that of {rows[0].stack}, in points. A run without a result "
        "counts as a gain of zero; runs on other items are left out, as in `2 of 3`. p is corrected for the number of "
        "tasks. Where a stack has one run, the interval and p hold for that run, not for the stack.")  # fmt: skip


def label(
    run_id: RunIds,
    *,
    judge: Annotated[
        str | None, typer.Option(help="A second rater: a judge of params.yaml, which reads the same code.")
    ] = None,
    max_usd: Annotated[
        float, typer.Option(min=0, callback=finite, help="What the second rater may cost for each run, in dollars.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Label runs anew: the route of training (SFT, DPO, GRPO ...) and the reasons of failures, with their evidence.

    Every run is labelled when it ends; this command does it again, after an update for example. It exits with 1 if the
    second rater did not answer for every run.

    Example: `a2rl label gsm8k-scripted-20260412-093015-a1b2 --judge gpt-4.1`
    """
    settings = Settings.load()
    records: dict[str, LabelsRecord] = {}
    for name in dict.fromkeys(run_id):
        found = find_run(name, settings)
        records[found.id] = _labelled(found, settings, judge, max_usd)
        _show_labels(found.id, records[found.id])
    kappa = _show_agreement(list(records.values()))
    if as_json:
        print_json({"kappa": kappa, "runs": {key: each.model_dump(mode="json") for key, each in records.items()}})
    if judge is not None and any(each.second is None or not each.second.routes for each in records.values()):
        raise typer.Exit(1)


def _labelled(run: RunDir, settings: Settings, judge: str | None, max_usd: float) -> "LabelsRecord":
    from a2rl.labels.rater import rate
    from a2rl.labels.records import labels_of, write_labels

    record = write_labels(run, settings)
    if judge is None:
        return record
    params = load_params(settings.root).named_judge(judge)
    params = params if params.model else params.resolved(params.annotator)
    second = rate(run, params, settings, max_usd)
    kept = labels_of(run) or record  # not what was computed now, if the run could not be read
    if second.routes or kept.second is None or not kept.second.routes:  # a rating was paid for: no failure replaces it
        run.write("labels", kept.model_copy(update={"second": second}))
    return record.model_copy(update={"second": second})


def _show_agreement(records: "list[LabelsRecord]") -> float | None:
    """Prints how far both raters agree and returns Cohen's kappa; None if it is not defined."""
    from a2rl.labels.rater import cohens_kappa, pair_of

    pairs = [pair for record in records if (pair := pair_of(record)) is not None]
    kappa = cohens_kappa(pairs)
    if pairs:
        agreement = sum(one == other for one, other in pairs)
        shown = "not defined" if kappa is None else f"{kappa:.2f}"
        out.print(f"both raters agree on the last step of {agreement} of {len(pairs)} runs; Cohen's kappa: {shown}")
    return kappa


def _show_labels(name: str, record: "LabelsRecord") -> None:
    from a2rl.labels.records import in_words

    say(f"{name}: {in_words(record.chain)}{f' ({record.reason})' if record.reason else ''}")
    for each in record.chain:
        out.print(f"  {each.route} (confidence {each.confidence:.2f})", markup=False)
        for piece in each.evidence[:SHOWN_EVIDENCE]:
            where = f"{piece.file}:{piece.line}" if piece.file else piece.source
            commit = f" in {piece.commit[:8]}" if piece.commit else ""
            say(f"    {where}{commit}: {piece.what}")
    for failure in record.failures:
        out.print(f"  failure: {failure.kind} (confidence {failure.confidence:.2f})", markup=False)
        for piece in failure.evidence[:SHOWN_EVIDENCE]:
            say(f"    {piece.file or piece.source}: {piece.what}")
    if record.second is not None:
        routes = " > ".join(record.second.routes) or f"no answer: {record.second.reason}"
        say(f"  second rater {record.second.model}: {routes}")


def outputs(
    run_id: RunId,
    submission: Submission = None,
    item: Annotated[str | None, typer.Option(help="Show all prompts and answers of this item.")] = None,
    base_model: Annotated[bool, typer.Option("--base-model", help="Show those of the base model.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a model wrote for the items of a grade, in full: every prompt and every answer.

    Examples: `a2rl outputs gsm8k-scripted-20260412-093015-a1b2 --item 17`, `a2rl outputs RUN 2 --json > outputs.json`
    """
    from a2rl.results.outputs import outputs_of

    if base_model and submission is not None:
        raise UsageError(f"leave out {submission} or --base-model: the outputs are those of one model")
    run = find_run(run_id, Settings.load())
    found = [each for each in outputs_of(run, submission, of_base_model=base_model) if item in (None, each.item)]
    if not found:
        raise UsageError(f"this grade has no item {item!r}: `a2rl outputs {run.id}` lists its items")
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])
    elif item is None:
        _list_outputs(found)
        say(f"{len(found)} outputs; --item ID shows one of them, --json all.", style="dim")
    else:
        for each in found:
            _show_output(each)


def _list_outputs(found: "list[GradedOutput]") -> None:
    rows = [
        (
            each.item or "-", each.verdict or "-", "-" if each.value is None else f"{each.value:g}",
            str(len(each.turns)), str(each.tokens),
            printable(each.turns[0].answer[:BEGINNING]) if each.turns else "-",
        )
        for each in found[:SHOWN_OUTPUTS]
    ]  # fmt: skip
    print_table(("item", "verdict", "value", "turns", "tokens", "answer"), rows, right=("value", "turns", "tokens"))


def _show_output(output: "GradedOutput") -> None:
    sample = f", answer {output.sample + 1}" if output.sample else ""
    out.print(f"item {output.item}{sample}: {output.verdict}, {output.tokens} tokens", style="bold", markup=False)
    for turn in output.turns:
        say(_whole(_prompt(turn)), style="dim")
        cut = " [cut off at the limit of tokens]" if turn.finish == "length" else ""
        say(_whole(turn.answer + cut))


def _whole(text: str) -> Text:
    """Returns a text for the console, which would cut a long string."""
    return Text(printable(text, sys.maxsize, lines=True))


def _prompt(turn: "Turn") -> str:
    if isinstance(turn.prompt, str):
        return turn.prompt
    return "\n".join(f"{message.role}: {message.content}" for message in turn.prompt)
