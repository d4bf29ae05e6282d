"""The command line `a2rl`: all commands, in the panels and in the order of `a2rl --help`."""

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


START, AGAIN, LOOK, CHECK = "Start here", "Continue or repeat runs", "Look at results", "Check results"
ALONE, SET_UP = "Grade without a run", "Set up and try out"
"""The panels of `a2rl --help`, in order."""

app.command(rich_help_panel=START)(machine.doctor)
app.command(rich_help_panel=START)(launching.run)
app.command(rich_help_panel=START)(watching.watch)
app.command(rich_help_panel=START)(stored_runs.runs)
app.command(rich_help_panel=START)(stored_runs.report)
app.command(rich_help_panel=START)(launching.bench)

app.command(rich_help_panel=AGAIN)(launching.resume)
app.command(rich_help_panel=AGAIN)(repeating.rerun)
app.add_typer(suites.app, name="suite", rich_help_panel=AGAIN)

app.command(rich_help_panel=LOOK)(outputs.outputs)
app.command(rich_help_panel=LOOK)(comparing.compare)
app.command(rich_help_panel=LOOK)(labelling.label)

app.command(rich_help_panel=CHECK)(stored_runs.verify)
app.command(rich_help_panel=CHECK)(repeating.regrade)
app.command(rich_help_panel=CHECK)(auditing.bundle)
app.command(rich_help_panel=CHECK)(auditing.audit)

app.command(rich_help_panel=ALONE, context_settings=PASS_ON)(grading.grade)
app.command(rich_help_panel=ALONE)(grading.score)

app.command(rich_help_panel=SET_UP)(grading.tasks)
app.add_typer(agents.app, name="agents", rich_help_panel=SET_UP)
app.add_typer(models.app, name="models", rich_help_panel=SET_UP)
app.command(rich_help_panel=SET_UP)(grading.prepare)
app.command(rich_help_panel=SET_UP)(machine.driver)
app.command(
    rich_help_panel=SET_UP,
    context_settings={**PASS_ON, "help_option_names": []},
    short_help=machine.REDTEAM_HELP,
)(machine.redteam)
