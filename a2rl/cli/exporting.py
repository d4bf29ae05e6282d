"""`a2rl export`: runs and tasks in the formats of other tools."""

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from a2rl.cli.options import Source, Task, Variant
from a2rl.core.errors import InfrastructureError
from a2rl.core.files import write_atomically
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


@app.command("harbor")
def harbor_task(
    task: Annotated[str, typer.Argument(help="Task id, or the folder of a task of your own.")],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="The new folder; TASK-VARIANT here unless given.")
    ] = None,
    variant: Variant = "mini",
    source: Source = None,
    model: Annotated[str, typer.Option(help="Base model: a name (`a2rl models`), a folder, or a hub id.")] = "tiny",
    budget: Annotated[str, typer.Option(help="Time that the agent has: 90s, 30m, 12h.")] = "30m",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs for the agent.")] = 0,
    solution: Annotated[
        Path | None, typer.Option(help="A checkpoint that Harbor's oracle hands in; the base model unless given.")
    ] = None,
) -> None:
    """Write a task as a folder for Harbor, whose verifier is our grader with the hidden items apart from the agent.

    Example: `a2rl export harbor gsm8k --model smollm2-135m --budget 2h`
    """
    from a2rl.cli.console import out
    from a2rl.cli.models import fetch
    from a2rl.cli.scoring import known_variant
    from a2rl.export.harbor_task import HarborTask, write_harbor_task
    from a2rl.run.budget import parse_duration

    settings, target = Settings.load(), output or Path(f"{Path(task).name}-{variant}")
    fetch([model], settings)
    wanted = HarborTask(task, known_variant(variant), source, model, parse_duration(budget), gpus, solution)
    write_harbor_task(settings, wanted, target)
    out.print(f"{target}: `harbor lint {target}`, `harbor run -p {target} -a AGENT`", soft_wrap=True, markup=False)


@app.command("grade-for-harbor", hidden=True)
def grade_for_harbor(
    task: Task,
    base_model: Annotated[Path, typer.Option(help="The folder of the base model.")],
    submitted: Annotated[Path, typer.Option(help="The folder that the agent left.")],
    reward: Annotated[Path, typer.Option(help="The file that Harbor reads.")],
    variant: Variant = "mini",
) -> None:
    """Grade a checkpoint in Harbor's verifier: the share of the score, 0 to 1, or 0 for what cannot be graded."""
    from a2rl.cli.console import print_error
    from a2rl.cli.scoring import GradeRequest, grade_checkpoint
    from a2rl.core.errors import InvalidSubmissionError
    from a2rl.grading.progress import ignore_progress
    from a2rl.grading.submission_checks import copy_submission

    settings, rewards = Settings.load(), {"reward": 0.0, "valid": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        try:
            copy_submission(submitted.parent, submitted.name, model, base_model)
        except InvalidSubmissionError as error:
            print_error(str(error))
        else:
            request = GradeRequest(task, str(model), variant, None, "all", None, None, "", None, {}, None)
            score = grade_checkpoint(settings, request, ignore_progress).score
            if score.score is None:
                raise InfrastructureError(f"there is no score: {score.reason}")
            rewards = {"reward": score.score / 100, "valid": 1.0}
    write_atomically(reward, json.dumps(rewards))
