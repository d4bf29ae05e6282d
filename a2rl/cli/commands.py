"""The command line `a2rl`: all commands, in the panels and in the order of `a2rl --help`."""

from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from a2rl import __version__
from a2rl.cli import catalogs, grading, launching, machine, sharing, stored_runs, suites, watching
from a2rl.core.errors import UsageError

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


class SettingsCommand(TyperCommand):
    """A command that takes the settings of a run, all of them as options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the command line.

        Raises:
            UsageError: There is something else than options, such as the name of a task.
        """
        rest = super().parse_args(ctx, args)
        if rest:
            raise UsageError(f"{rest[0]}: the settings of a run are options, so a task is --task {rest[0]}")
        return rest


ONLY_SETTINGS: dict[str, Any] = {"cls": SettingsCommand, "context_settings": {"allow_extra_args": True}}


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


AGAIN, LOOK, SET_UP = "Continue or repeat runs", "Look at results", "Set up and try out"
PANELS: dict[str, tuple[Callable[..., None], ...]] = {
    "Start here": (
        machine.init, machine.doctor, launching.run, watching.watch, stored_runs.runs, stored_runs.report,
        launching.bench,
    ),
    AGAIN: (launching.resume, launching.rerun),
    LOOK: (stored_runs.outputs, stored_runs.compare, stored_runs.label),
    "Check results": (stored_runs.verify, launching.regrade, sharing.bundle, sharing.audit),
    "Grade without a run": (grading.grade, grading.score),
    SET_UP: (machine.rehearse, grading.prepare, machine.driver, machine.redteam),
}  # fmt: skip
"""The panels of `a2rl --help` with their commands, in order."""
SETTINGS: dict[Callable[..., None], dict[str, Any]] = {
    machine.doctor: ONLY_SETTINGS,
    launching.run: ONLY_SETTINGS,
    machine.rehearse: ONLY_SETTINGS,
    grading.grade: {"context_settings": PASS_ON},
    machine.redteam: {
        "context_settings": {**PASS_ON, "help_option_names": []}, "short_help": machine.REDTEAM_HELP,
    },
}  # fmt: skip

for panel, commands in PANELS.items():
    for command in commands:
        app.command(rich_help_panel=panel, **SETTINGS.get(command, {}))(command)
app.add_typer(suites.app, name="suite", rich_help_panel=AGAIN)
app.add_typer(sharing.export_app, name="export", rich_help_panel=LOOK)
app.add_typer(catalogs.tasks_app, name="tasks", rich_help_panel=SET_UP)
app.add_typer(catalogs.tasks_app, name="task", hidden=True)
app.add_typer(sharing.leaderboard, name="leaderboard", rich_help_panel="Check results")
app.add_typer(catalogs.agents_app, name="agents", rich_help_panel=SET_UP)
app.add_typer(catalogs.models_app, name="models", rich_help_panel=SET_UP)
