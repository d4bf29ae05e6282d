"""`a2rl regrade`: a grade of a run, computed again."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from a2rl.cli.options import Json
from a2rl.core.settings import Settings

if TYPE_CHECKING:
    from a2rl.grading.regrade import Regrade

SHOWN = 20
"""The number of items that are listed; `--json` has all of them."""


def regrade(
    run_id: Annotated[str, typer.Argument(help="Run id.")],
    submission: Annotated[
        int | None, typer.Argument(min=1, help="Number of a submission; unless given, the one that counts.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Grade a checkpoint of a run again, with the run's settings, and compare the results item by item.

    A submission by its number is graded on the items whose score the agent was told; without a number, the submission
    that counts is graded on the items that decided the result. The command fails if an item differs.

    Examples: `a2rl regrade gsm8k-scripted-20260412-093015-a1b2 2`, `a2rl regrade gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.console import print_json, progress_bar
    from a2rl.cli.results import find_run
    from a2rl.grading.regrade import regrade as grade_again

    settings = Settings.load()
    with progress_bar(f"grading {run_id} again") as on_progress:
        found = grade_again(find_run(run_id, settings), settings, submission, on_progress)
    _show(found)
    if as_json:
        print_json(found.model_dump(mode="json") | {"same": found.is_same})
    if not found.is_same:
        sys.exit(1)


def _show(found: "Regrade") -> None:
    from a2rl.cli.console import out, print_table

    what = f"submission {found.submission}, {found.before.total} {found.split} items"
    if found.is_same:
        out.print(f"the same score, item by item: {found.after} ({what})", soft_wrap=True, markup=False)
    else:
        out.print(
            f"the scores differ: {found.before} before, {found.after} now ({what}); {len(found.differences)} items "
            "have another result",
            soft_wrap=True, markup=False,
        )  # fmt: skip
        rows = [
            (each.id, each.before, each.after, f"{each.value_before:g}", f"{each.value_after:g}")
            for each in found.differences[:SHOWN]
        ]
        print_table(("item", "before", "now", "value before", "value now"), rows)
    if found.other_answers:
        out.print(f"{found.other_answers} answers have another text", soft_wrap=True, markup=False)
