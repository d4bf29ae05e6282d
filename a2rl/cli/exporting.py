"""`a2rl export`: runs and tasks in the formats of other tools."""

from pathlib import Path
from typing import Annotated

import typer

from a2rl.core.settings import Settings

app = typer.Typer(no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def export() -> None:
    """Write a run or a task in the format of another tool."""


@app.command("inspect")
def inspect_log(
    run_id: Annotated[str, typer.Argument(help="Run id.")],
    submission: Annotated[
        int | None, typer.Argument(min=1, help="Number of a submission; unless given, the one that counts.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The file; unless given, a new one here, named by time.")
    ] = None,
) -> None:
    """Write a log for Inspect View: the items of a grade with answers and scores, and the agent's steps.

    Example: `a2rl export inspect gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.agent_systems.catalog import find_agent
    from a2rl.cli.console import out
    from a2rl.cli.results import find_run
    from a2rl.export.inspect_log import inspect_log_name, write_inspect_log
    from a2rl.llm.keys import register_run_secrets

    settings = Settings.load()
    run = find_run(run_id, settings)
    register_run_secrets(find_agent(run.spec.agent, settings.root), settings)
    target = output or Path(inspect_log_name(run))
    samples = write_inspect_log(run, target, submission)
    out.print(
        f"{target}: {samples} samples. It has items of the eval set, which no agent may see.\n"
        "Open it with `inspect view start --log-dir FOLDER` (the package inspect_ai).",
        soft_wrap=True,
        markup=False,
    )
