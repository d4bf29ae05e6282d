"""`a2rl compare`: the difference between two stacks, task by task."""

from typing import Annotated

import typer

from a2rl.cli.options import Json
from a2rl.core.settings import Settings

ALL = "every run of this checkout"


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
    from a2rl.results.suite.comparison import compare_stacks
    from a2rl.results.suite.files import runs_of
    from a2rl.results.suite.run_summary import summaries
    from a2rl.run.directory import RunDir

    settings = Settings.load()
    runs = runs_of(suite, settings) if suite else RunDir.all(settings.runs)
    rows = compare_stacks(one, other, summaries(runs).runs)
    if as_json:
        print_json([row.model_dump(mode="json") for row in rows])
        return
    columns = ("variant", "task", "gain", "other's gain", "difference", "95% interval", "p, Holm", "runs")
    shown = [
        (
            row.variant, row.task, f"{row.gain:+.1f}", f"{row.other_gain:+.1f}", f"{row.difference:+.1f}",
            f"[{row.ci.low:+.1f}, {row.ci.high:+.1f}]", f"{row.holm_p:.2g}", f"{row.runs} and {row.other_runs}",
        )
        for row in rows
    ]  # fmt: skip
    print_table(columns, shown, right=("gain", "other's gain", "difference"))
    out.print(
        f"Difference: the gain of {rows[0].other} minus that of {rows[0].stack}, in points. A run without a result "
        "counts as a gain of zero. p is corrected for the number of tasks.",
        soft_wrap=True, markup=False,
    )  # fmt: skip
