"""`a2rl agents`: the available agent systems, what each needs on this machine, and how to install it."""

import sys
from typing import Annotated

import typer

from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings

app = typer.Typer(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})


@app.callback()
def agents(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on the last line.")] = False,
) -> None:
    """List available agent systems; `a2rl agents install ID` installs one.

    Example: `a2rl agents`
    """
    if context.invoked_subcommand is not None:
        return
    from a2rl.agent_systems.catalog import agent_ids, find_agent
    from a2rl.agent_systems.installation import Installation
    from a2rl.cli.console import out, print_json, print_table

    settings = Settings.load()
    found = [find_agent(agent_id, settings.root) for agent_id in agent_ids(settings.root)]
    installations = [Installation(agent, settings) for agent in found]
    if as_json:
        print_json(
            [
                each.agent.model_dump(mode="json", by_alias=True)
                | {
                    "installed": each.version is not None or not each.is_needed,
                    "version": each.version,
                    "missing": each.missing(None),
                }
                for each in installations
            ]
        )
        return
    rows = [
        (
            each.agent.id,
            each.agent.title,
            each.version or ("no" if each.is_needed else "built in"),
            each.agent.driver or "-",
            "; ".join(each.missing(None)) or "nothing",
        )
        for each in installations
    ]
    print_table(("agent", "description", "installed", "driver", "missing"), rows)
    out.print("\nWith `--base-url` an agent uses an LLM of your own and needs no key.", style="dim", markup=False)


@app.command()
def install(ids: Annotated[list[str], typer.Argument(help="Agent ids.")]) -> None:
    """Install agent systems at their pinned versions, into `.agents/` of this checkout.

    Example: `a2rl agents install claude-code codex`
    """
    from rich.text import Text

    from a2rl.agent_systems.catalog import find_agent
    from a2rl.agent_systems.installation import Installation
    from a2rl.cli.console import err, out

    settings = Settings.load()
    failed = 0
    for agent in [find_agent(each, settings.root) for each in ids]:
        with err.status(Text(f"installing {agent.id}: about a minute")):
            try:
                Installation(agent, settings).install(lambda text: out.print(text, markup=False))
            except A2rlError as error:
                failed += 1
                err.print(f"{agent.id}: {error}", style="red", markup=False, soft_wrap=True)
    if failed:
        sys.exit(1)
