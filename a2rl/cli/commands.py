"""The command line `a2rl`: all commands, in the order in which `a2rl --help` lists them."""

from typing import Annotated

import typer

from a2rl import __version__
from a2rl.cli import (
    agents,
    auditing,
    comparing,
    grading,
    labelling,
    launching,
    machine,
    models,
    outputs,
    repeating,
    signing,
    stored_runs,
    suites,
    watching,
)

app = typer.Typer(
    name="a2rl",
    help="Agent2 RL-Bench: can an LLM agent, alone and on a budget, engineer the RL post-training of a base model?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
"""Settings for commands that accept options which they do not define themselves."""


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"a2rl {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Defines the options of `a2rl` without a command. Its help is that of `app`."""


app.command()(launching.run)
app.command()(launching.bench)
app.command()(launching.resume)
app.command(context_settings=PASS_ON)(grading.grade)
app.command()(grading.score)
app.command()(grading.prepare)
app.command()(stored_runs.verify)
app.command()(auditing.bundle)
app.command()(auditing.audit)
app.command()(outputs.outputs)
app.command()(repeating.regrade)
app.command()(repeating.rerun)
app.command()(labelling.label)
app.command()(grading.tasks)
app.command()(stored_runs.runs)
app.command()(watching.watch)
app.command()(stored_runs.report)
app.command()(comparing.compare)
app.command()(machine.driver)
app.command()(signing.signer)
app.command(context_settings={**PASS_ON, "help_option_names": []}, short_help=machine.REDTEAM_HELP)(machine.redteam)
app.command()(machine.doctor)
app.add_typer(suites.app, name="suite")
app.add_typer(models.app, name="models")
app.add_typer(agents.app, name="agents")
