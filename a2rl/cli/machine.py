"""`a2rl init`, `a2rl doctor`, `a2rl rehearse`, `a2rl redteam` and `a2rl driver`: a project, checks of this machine, and
a scripted LLM."""

import re
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

import a2rl
from a2rl.cli.console import print_json, say
from a2rl.cli.options import Json, with_replaced_settings, with_settings
from a2rl.core.errors import UsageError
from a2rl.core.files import machine_failure
from a2rl.core.settings import MADE_BY, Settings

REDTEAM_HELP = "Attack the pipeline as hostile agents would, in every sandbox of this machine."


def driver(
    scenario: Annotated[str, typer.Argument(help="gsm8k, or a YAML file: see docs/adding-an-agent.md.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port.")] = 0,
    log: Annotated[Path | None, typer.Option(help="Log of the answers, JSON Lines: tokens, turns, status.")] = None,
) -> None:
    """Serve a scripted LLM on this machine that any agent system can use: offline, repeatable, at no cost.

    Example: `a2rl driver gsm8k --port 8765 --log served.jsonl`
    """
    from a2rl.mock_llm.app import serve
    from a2rl.mock_llm.scenario import load_scenario

    def announce(url: str) -> None:
        say(
            f"serving {scenario}; point an agent system to it with one of\n  ANTHROPIC_BASE_URL={url}\n"
            f"  OPENAI_BASE_URL={url}/v1\n  GOOGLE_GEMINI_BASE_URL={url}"
        )

    serve(load_scenario(scenario), port, log, announce)


def redteam(context: typer.Context) -> None:
    """Run the attacks of tests/redteam/ and report what stopped each; `a2rl redteam --help` lists the options."""
    settings = Settings.load()
    root = settings.root
    if not (root / "tests" / "redteam").is_dir():
        raise UsageError(f"{root} has no tests/redteam: run this in a checkout of a2rl")
    environment = {**settings.environ, "PYTHONPATH": str(root)}
    done = subprocess.run([sys.executable, "-m", "tests.redteam", *context.args], env=environment, check=False)
    raise typer.Exit(done.returncode)


@with_settings
def doctor(*, as_json: Json = False, **given: Any) -> None:
    """Check what this machine has for benchmark runs, and say how to get what is missing.

    With the options of a run, also make the checks that `a2rl run` makes before it starts.

    Examples: `a2rl doctor`, `a2rl doctor --task gsm8k --agent claude-code --model Qwen/Qwen2.5-7B`
    """
    from a2rl.cli.doctor import examine, examine_run

    settings = Settings.load()
    given = {name: value for name, value in given.items() if value is not None}
    findings = [*examine(settings), *(examine_run(given, settings) if given else ())]
    if as_json:
        print_json([finding._asdict() for finding in findings])
    for finding in () if as_json else findings:
        if finding.ok:
            mark = ("ok       ", "green")
        elif finding.optional:
            mark = ("missing  ", "yellow")
        else:
            mark = ("PROBLEM  ", "bold red")
        say(Text.assemble(mark, (f"{finding.what:<14}", "bold"), finding.found))
        if finding.mend:
            say(Text(f"{'':23}{finding.mend}", "dim"))
    if any(not finding.ok and not finding.optional for finding in findings):
        sys.exit(1)


@with_replaced_settings
def rehearse(
    *,
    only: Annotated[
        list[str] | None, typer.Option(help="Try only model, checks, copy, grades, together or run.")
    ] = None,
    as_json: Json = False,
    **given: Any,
) -> None:
    """Try each link of a real run once: a few minutes that find what would break in the first hours of a run.

    The run is that of the options, made short, with the scripted agent. What is not installed is skipped.

    Examples: `a2rl rehearse --model smollm2-135m`, `a2rl rehearse --model Qwen/Qwen2.5-7B --task gsm8k --json`
    """
    from a2rl.cli.rehearsal_links import GROUPS
    from a2rl.cli.rehearse import rehearse_here

    report = rehearse_here(given, GROUPS, only or (), Settings.load())
    if as_json:
        print_json(report)
    if not report["passed"]:
        sys.exit(1)


SHIPPED = Path(a2rl.__file__).resolve().parent / "project"
"""What an installed package has of the application (setup.py); a checkout has it at its own root."""
ON_OUR_CODE = re.compile(r"^ +deps:\n(?: +- a2rl/.*\n)+(?! +- )|^ +- a2rl/.*\n", re.MULTILINE)
"""The dependencies of DVC's stages on files of a2rl. A project has no such files: it stays with one version of a2rl."""


def init(
    folder: Annotated[Path, typer.Argument(help="The folder of the project; it must not exist yet.")],
) -> None:
    """Make a project: a folder with tasks, agents and settings, which are yours to change, and later with your runs.

    Example: `a2rl init my-project`
    """
    if not SHIPPED.is_dir():
        raise UsageError(f"this a2rl belongs to the checkout {SHIPPED.parents[1]}, which is a project: work there")
    make_project(SHIPPED, folder)
    say(f"{folder} is a project of a2rl; continue with: cd {folder} && a2rl doctor")


def make_project(shipped: Path, folder: Path) -> None:
    """Copies the application into a new folder, which exists only when it is complete.

    Args:
        shipped: The application as the package has it.

    Raises:
        UsageError: The folder exists.
        InfrastructureError: The disk failed.
    """
    folder = folder.absolute()
    if folder.exists():
        raise UsageError(f"{folder} exists: give a folder that does not exist yet")
    making = folder.with_name(f".{folder.name}-{uuid.uuid4().hex}")
    try:
        shutil.copytree(shipped, making, ignore=shutil.ignore_patterns("__pycache__"))
        for path in (making / "dvc.yaml", making / "models" / "dvc.yaml"):
            path.write_text(ON_OUR_CODE.sub("", path.read_text(encoding="utf-8")), encoding="utf-8")
        with (making / ".dvc" / "config").open("a", encoding="utf-8") as config:
            config.write("    no_scm = true\n")  # a project need not be a git repository
        (making / MADE_BY).write_text(f"{a2rl.__version__}\n", encoding="utf-8")
        making.replace(folder)
    except OSError as error:
        raise machine_failure(f"make {folder}", error) from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
