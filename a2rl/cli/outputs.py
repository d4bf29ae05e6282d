"""`a2rl outputs`: what a model wrote for the items of a grade, in full."""

from typing import TYPE_CHECKING, Annotated

import typer

from a2rl.cli.options import Json
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings

if TYPE_CHECKING:
    from a2rl.grading.outputs import Turn
    from a2rl.results.outputs import GradedOutput

SHOWN = 20
"""The number of items that are listed; `--json` has all of them."""
WHOLE = 10_000_000
"""Characters of a prompt or an answer that is shown in full."""
BEGINNING = 60
"""Characters of an answer in the list."""


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
        _list(found)
        out.print(f"{len(found)} outputs; --item ID shows one of them, --json all.", style="dim", soft_wrap=True)
    else:
        for each in found:
            _show(each)
    if as_json:
        print_json([each.model_dump(mode="json") for each in found])


def _list(found: "list[GradedOutput]") -> None:
    from a2rl.cli.console import print_table

    rows = [
        (
            each.item or "-", each.verdict or "-", "-" if each.value is None else f"{each.value:g}",
            str(len(each.turns)), str(each.tokens), _beginning(each),
        )
        for each in found[:SHOWN]
    ]  # fmt: skip
    print_table(("item", "verdict", "value", "turns", "tokens", "answer"), rows, right=("value", "turns", "tokens"))


def _beginning(output: "GradedOutput") -> str:
    from a2rl.core.printable import printable

    return printable(output.turns[0].answer[:BEGINNING]) if output.turns else "-"


def _show(output: "GradedOutput") -> None:
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
