"""`a2rl regrade` and `a2rl rerun`: a grade of a run, or a whole run, again."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from a2rl.cli.options import Json
from a2rl.core.settings import Settings

if TYPE_CHECKING:
    from a2rl.grading.regrade import Regrade
    from a2rl.run.directory import RunDir

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
    from a2rl.cli.console import print_json
    from a2rl.cli.progress import progress_bar
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


def rerun(run_id: Annotated[str, typer.Argument(help="Run id.")], as_json: Json = False) -> None:
    """Start a new run with all settings of an earlier one, and compare their submissions.

    The scripted agent submits the same weights on the same machine if the run has a fixed number of steps (--steps).

    Example: `a2rl rerun gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.cli.flow_runner import run_flow, showing
    from a2rl.cli.models import fetch
    from a2rl.cli.results import find_run, show_run
    from a2rl.config.plan import plan_again
    from a2rl.execution.preflight import require_ready
    from a2rl.run.origin import create_run, require_made_here

    settings = Settings.load()
    first = find_run(run_id, settings)
    require_made_here([first], settings)
    spec = plan_again(first.spec, settings)
    fetch([spec.model], settings)
    require_ready([spec], settings)
    again = create_run(spec, settings)

    def show() -> None:
        show_run(again, as_json=False)
        _show_repetition(first, again, as_json)

    with showing(show):
        run_flow({"run_ids": [again.id]}, [again.id], settings)


def _show_repetition(first: "RunDir", again: "RunDir", as_json: bool) -> None:
    from a2rl.cli.console import out, print_json, print_table
    from a2rl.results.repetition import repetition

    found = repetition(first, again)
    if found.is_same:
        what = f"the same weights and scores in all {len(found.submissions)} submissions as {found.run_id}"
    elif not found.submissions:
        what = f"neither this run nor {found.run_id} has submissions that could be compared"
    else:
        what = f"this run differs from {found.run_id}"
    out.print(what, soft_wrap=True, markup=False)
    rows = [
        (
            str(each.number),
            each.weights[:16] or "-",
            each.weights_again[:16] or "-",
            str(each.score),
            str(each.score_again),
        )
        for each in found.submissions
        if not each.is_same
    ]
    if rows:
        print_table(("submission", "weights before", "weights now", "score before", "score now"), rows)
    for change in found.changed:
        out.print(change, soft_wrap=True, markup=False)
    if as_json:
        print_json(found.model_dump(mode="json") | {"same": found.is_same})


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
