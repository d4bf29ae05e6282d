"""`a2rl compare`, `a2rl label` and `a2rl outputs`: a closer look at what runs did and what their models wrote."""

from typing import TYPE_CHECKING, Annotated

import typer

from a2rl.cli.options import Json
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings

if TYPE_CHECKING:
    from a2rl.grading.outputs import Turn
    from a2rl.labels.records import LabelsRecord
    from a2rl.results.outputs import GradedOutput
    from a2rl.run.directory import RunDir

ALL = "every run of this checkout"
SHOWN_EVIDENCE = 5
"""The pieces of evidence that are shown for each label; `--json` has all of them."""
SHOWN_OUTPUTS = 20
"""The number of items that are listed; `--json` has all of them."""
WHOLE = 10_000_000
"""Characters of a prompt or an answer that is shown in full."""
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

    Example: `a2rl compare codex "claude-code · claude-opus-4-6" --suite paper-main`
    """
    from a2rl.cli.console import out, print_json, print_table
    from a2rl.results.suite import tables
    from a2rl.results.suite.files import runs_of
    from a2rl.results.suite.leaderboard import compare_stacks
    from a2rl.results.suite.run_summary import summaries
    from a2rl.run.directory import RunDir

    settings = Settings.load()
    runs = runs_of(suite, settings) if suite else RunDir.all(settings.runs)
    rows = compare_stacks(one, other, summaries(runs).runs)
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    table = tables.comparison("comparison", rows)
    print_table(table.columns, [[cell.text for cell in row] for row in table.rows], right=table.right)
    out.print(
        f"Difference: the gain of {rows[0].other} minus that of {rows[0].stack}, in points. A run without a result "
        "counts as a gain of zero. p is corrected for the number of tasks.",
        soft_wrap=True, markup=False,
    )  # fmt: skip


def label(
    run_id: Annotated[list[str], typer.Argument(help="Run ids.")],
    *,
    judge: Annotated[
        str | None, typer.Option(help="A second rater: a judge of params.yaml, which reads the same code.")
    ] = None,
    max_usd: Annotated[
        float, typer.Option(min=0, help="What the second rater may cost for each run, in dollars.")
    ] = 1.0,
    as_json: Json = False,
) -> None:
    """Label runs anew: the route of training (SFT, DPO, GRPO ...) and the reasons of failures, with their evidence.

    Every run is labelled when it ends; this command does it again, after an update for example.

    Example: `a2rl label gsm8k-scripted-20260412-093015-a1b2 --judge gpt-4.1`
    """
    from a2rl.cli.console import print_json
    from a2rl.cli.results import find_run

    settings = Settings.load()
    records: dict[str, LabelsRecord] = {}
    for name in dict.fromkeys(run_id):
        found = find_run(name, settings)
        records[found.id] = _labelled(found, settings, judge, max_usd)
        _show_labels(found.id, records[found.id])
    kappa = _show_agreement(list(records.values()))
    if as_json:
        print_json({"kappa": kappa, "runs": {key: each.model_dump(mode="json") for key, each in records.items()}})


def _labelled(run: "RunDir", settings: Settings, judge: str | None, max_usd: float) -> "LabelsRecord":
    from a2rl.config.params import load_params
    from a2rl.labels.rater import rate
    from a2rl.labels.records import write_labels

    record = write_labels(run, settings)
    if judge is None:
        return record
    params = load_params(settings.root).named_judge(judge)
    params = params if params.model else params.resolved(params.annotator)
    return run.write("labels", record.model_copy(update={"second": rate(run, params, settings, max_usd)}))


def _show_agreement(records: "list[LabelsRecord]") -> float | None:
    """Prints how far both raters agree and returns Cohen's kappa; None if it is not defined."""
    from a2rl.cli.console import out
    from a2rl.labels.rater import cohens_kappa, pair_of

    pairs = [pair for record in records if (pair := pair_of(record)) is not None]
    kappa = cohens_kappa(pairs)
    if pairs:
        agreement = sum(one == other for one, other in pairs)
        shown = "not defined" if kappa is None else f"{kappa:.2f}"
        out.print(f"both raters agree on the last step of {agreement} of {len(pairs)} runs; Cohen's kappa: {shown}")
    return kappa


def _show_labels(name: str, record: "LabelsRecord") -> None:
    from a2rl.cli.console import out
    from a2rl.labels.records import in_words

    out.print(f"{name}: {in_words(record.chain)}", soft_wrap=True, markup=False)
    for each in record.chain:
        out.print(f"  {each.route} (confidence {each.confidence:.2f})", markup=False)
        for piece in each.evidence[:SHOWN_EVIDENCE]:
            where = f"{piece.file}:{piece.line}" if piece.file else piece.source
            commit = f" in {piece.commit[:8]}" if piece.commit else ""
            out.print(f"    {where}{commit}: {piece.what}", soft_wrap=True, markup=False)
    for failure in record.failures:
        out.print(f"  failure: {failure.kind} (confidence {failure.confidence:.2f})", markup=False)
        for piece in failure.evidence[:SHOWN_EVIDENCE]:
            out.print(f"    {piece.file or piece.source}: {piece.what}", soft_wrap=True, markup=False)
    if record.second is not None:
        routes = " > ".join(record.second.routes) or f"no answer: {record.second.reason}"
        out.print(f"  second rater {record.second.model}: {routes}", soft_wrap=True, markup=False)


def outputs(
    run_id: Annotated[str, typer.Argument(help="Run id.")],
    submission: Annotated[
        int | None, typer.Argument(min=1, help="Number of a submission; unless given, the one that counts.")
    ] = None,
    item: Annotated[str | None, typer.Option(help="Show all prompts and answers of this item.")] = None,
    base_model: Annotated[bool, typer.Option("--base-model", help="Show those of the base model.")] = False,
    as_json: Json = False,
) -> None:
    """Show what a model wrote for the items of a grade, in full: every prompt and every answer.

    Examples: `a2rl outputs gsm8k-scripted-20260412-093015-a1b2 --item 17`, `a2rl outputs RUN 2 --json > outputs.json`
    """
    from a2rl.cli.console import out, print_json
    from a2rl.cli.results import find_run
    from a2rl.results.outputs import outputs_of

    run = find_run(run_id, Settings.load())
    found = [each for each in outputs_of(run, submission, of_base_model=base_model) if item in (None, each.item)]
    if not found:
        raise UsageError(f"this grade has no item {item!r}: `a2rl outputs {run.id}` lists its items")
    if item is None:
        _list_outputs(found)
        out.print(f"{len(found)} outputs; --item ID shows one of them, --json all.", style="dim", soft_wrap=True)
    else:
        for each in found:
            _show_output(each)
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])


def _list_outputs(found: "list[GradedOutput]") -> None:
    from a2rl.cli.console import print_table

    rows = [
        (
            each.item or "-", each.verdict or "-", "-" if each.value is None else f"{each.value:g}",
            str(len(each.turns)), str(each.tokens), _beginning_of(each),
        )
        for each in found[:SHOWN_OUTPUTS]
    ]  # fmt: skip
    print_table(("item", "verdict", "value", "turns", "tokens", "answer"), rows, right=("value", "turns", "tokens"))


def _beginning_of(output: "GradedOutput") -> str:
    from a2rl.core.printable import printable

    return printable(output.turns[0].answer[:BEGINNING]) if output.turns else "-"


def _show_output(output: "GradedOutput") -> None:
    from a2rl.cli.console import out
    from a2rl.core.printable import printable

    sample = f", answer {output.sample + 1}" if output.sample else ""
    out.print(f"item {output.item}{sample}: {output.verdict}, {output.tokens} tokens", style="bold", markup=False)
    for turn in output.turns:
        out.print(
            printable(_prompt(turn), WHOLE, lines=True), style="dim", soft_wrap=True, markup=False, highlight=False
        )
        cut = " [cut off at the limit of tokens]" if turn.finish == "length" else ""
        out.print(printable(turn.answer, WHOLE, lines=True) + cut, soft_wrap=True, markup=False, highlight=False)


def _prompt(turn: "Turn") -> str:
    if isinstance(turn.prompt, str):
        return turn.prompt
    return "\n".join(f"{message.role}: {message.content}" for message in turn.prompt)
