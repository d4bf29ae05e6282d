"""`a2rl bundle`, `a2rl audit`, `a2rl leaderboard` and `a2rl export`: results that somebody else can check, or read with
other tools."""

import json
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from a2rl.agent_systems.definition import recorded_agent
from a2rl.cli.catalogs import fetch
from a2rl.cli.console import print_error, print_json, say
from a2rl.cli.options import Json, RunId, Source, Submission, Task, Variant, finite, one_of
from a2rl.cli.progress import progress_bar
from a2rl.cli.stored_runs import PublicKey, find_run
from a2rl.core.errors import InfrastructureError, InvalidSubmissionError, UsageError
from a2rl.core.files import write_atomically
from a2rl.core.settings import Settings
from a2rl.grading.outputs import OnProgress, ignore_progress
from a2rl.llm.keys import register_run_secrets
from a2rl.run.budget import parse_duration

if TYPE_CHECKING:
    from a2rl.bundle.audit import Audit
    from a2rl.results.verify import Trust


GIB = 1 << 30


def bundle(
    run_id: RunId,
    out_file: Annotated[Path | None, typer.Option("-o", "--out", help="The file; RUN.tar.gz unless given.")] = None,
    with_weights: Annotated[
        bool, typer.Option(help="Include the weights of the checkpoint that counts, to grade it anew.")
    ] = False,
) -> None:
    """Make one file of a run that a stranger can check with `a2rl audit`, without secrets.

    Example: `a2rl bundle gsm8k-scripted-20260412-093015-a1b2 --with-weights`
    """
    from a2rl.bundle.archive import SUFFIX, pack

    settings = Settings.load()
    found = find_run(run_id, settings)
    register_run_secrets(recorded_agent(found.spec.agent, settings.root), settings)
    target = out_file or Path(f"{found.id}{SUFFIX}")
    index = pack(found, target, with_weights)
    for path, why in index.left_out.items():
        say(f"left out {path}: {why}", style="yellow")
    size = target.stat().st_size / (1 << 20)
    say(f"{target}: {len(index.files)} files, {size:.1f} MiB")


def audit(
    run: Annotated[str, typer.Argument(help="Run id, or a bundle.")],
    regrade: Annotated[bool, typer.Option(help="Grade the kept checkpoint of a sound run anew, item by item.")] = False,
    public_key: PublicKey = None,
    published: Annotated[
        Path | None, typer.Option(help="File with published heads, one JSON object in each line.")
    ] = None,
    max_gb: Annotated[
        float, typer.Option(min=0, callback=finite, help="The most that a bundle may unpack to, in GiB.")
    ] = 64.0,
    as_json: Json = False,
) -> None:
    """Check a run or a bundle independently: every digest, signature and score, and its validity with the evidence.

    It ends with 0 (sound and valid), 1 (not sound), 2 (it could not be audited or graded anew), 3 (flagged), 4 (void,
    or no result) or 5 (an item differs when it is graded anew).

    Examples: `a2rl audit gsm8k-scripted-20260412-093015-a1b2`,
    `a2rl audit result.tar.gz --public-key signer.pub --regrade --json`
    """
    from a2rl.bundle.audit import NOT_DONE
    from a2rl.cli.results import show_audit, show_checks, show_regrade
    from a2rl.results.verify import trust_of

    settings = Settings.load()
    trust = trust_of(settings, public_key or ())
    try:
        with progress_bar("grading anew") if regrade else nullcontext(ignore_progress) as on_progress:
            found = _audit(run, settings, trust, published, regrade, int(max_gb * GIB), on_progress)
    except InfrastructureError as error:
        print_error(str(error))
        sys.exit(NOT_DONE)  # not 1, which says that the run is not sound: nothing is known of it
    show_checks(found.checks)
    for each in found.regrades:
        show_regrade(each)
    show_audit(found)
    if as_json:
        checks = [check._asdict() for check in found.checks]
        known = {"sound": found.sound, "exit_code": found.exit_code, "checks": checks}
        print_json(found.model_dump(mode="json") | known)
    sys.exit(found.exit_code)


leaderboard = typer.Typer(help="Make a static site of bundles from anywhere.", no_args_is_help=True)


@leaderboard.callback()
def _commands() -> None:
    """Keeps `build` a command of its own."""


@leaderboard.command()
def build(
    folder: Annotated[Path, typer.Argument(help="Folder with bundles.")],
    site: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder of the site; reports/leaderboard unless given.")
    ] = None,
    public_key: Annotated[
        list[Path] | None, typer.Option(help="Public key of a signer, in a file with the signer's name.")
    ] = None,
    regrade: Annotated[bool, typer.Option(help="Grade every checkpoint anew; bundles without weights fail.")] = False,
    max_gb: Annotated[
        float, typer.Option(min=0, callback=finite, help="The most that each bundle may unpack to, in GiB.")
    ] = 16.0,
    jobs: Annotated[int, typer.Option(min=1, help="Audits that run at once.")] = 1,
    as_json: Json = False,
) -> None:
    """Audit bundles and write a page with the runs that pass, and the reasons why others do not.

    The site keeps what the audits found, so that the next build audits only new bundles.

    Example: `a2rl leaderboard build bundles --public-key alice.pub --out site --regrade`
    """
    from a2rl.anchor.signatures import load_public_key
    from a2rl.bundle.leaderboard import Builder

    settings = Settings.load()
    signers = {load_public_key(path): path.stem for path in public_key or ()}
    builder = Builder(site or settings.reports / "leaderboard", settings, signers, regrade, int(max_gb * GIB))
    with progress_bar("auditing") as on_progress:
        found = builder.build(folder, jobs, on_progress)
    for name, why in found.refused.items():
        say(f"refused {name}: {why}", style="yellow")
    counts = f"{found.shown} shown, {len(found.refused)} refused, {found.audited} audited now"
    say(f"{found.page}: {counts}")
    if as_json:
        print_json({**found._asdict(), "page": str(found.page)})


def _audit(
    name: str,
    settings: Settings,
    trust: "Trust",
    published: Path | None,
    regrade: bool,
    max_bytes: int,
    on_progress: OnProgress,
) -> "Audit":
    from a2rl.bundle.audit import audit as audited
    from a2rl.bundle.audit import graded_anew
    from a2rl.bundle.confined import audit_bundle
    from a2rl.results.mlflow.tracking import Tracker
    from a2rl.results.verify import read_published

    if Path(name).is_file():
        # The key of this checkout has signed nothing of the runs of others.
        return audit_bundle(Path(name), settings, trust.keys, published, regrade, max_bytes, on_progress).audit
    if name.endswith((".gz", ".tar")):
        raise UsageError(f"there is no file {name}: give a bundle or the id of a run")
    run = find_run(name, settings)
    if published is not None:
        trust = trust._replace(published=read_published(published, run.id))
    found = audited(run, trust, Tracker(settings))
    return graded_anew(found, run, settings, on_progress=on_progress) if regrade and found.sound else found


export_app = typer.Typer(no_args_is_help=True)


@export_app.callback()
def export() -> None:
    """Write a run or a task in the format of another tool."""


@export_app.command("inspect")
def inspect_log(
    run_id: RunId,
    submission: Submission = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the log.")] = Path(),
) -> None:
    """Write a log for Inspect View: the items of a grade with answers and scores, and the agent's steps.

    Example: `a2rl export inspect gsm8k-scripted-20260412-093015-a1b2`
    """
    from a2rl.export.inspect_log import inspect_log_name, write_inspect_log

    settings = Settings.load()
    run = find_run(run_id, settings)
    register_run_secrets(recorded_agent(run.spec.agent, settings.root), settings)
    target = output / inspect_log_name(run, submission)
    samples = write_inspect_log(run, target, submission)
    say(
        f"{target}: {samples} samples. It has items of the eval set, which no agent may see.\n"
        f"Open it with `inspect view start --log-dir {output}` (the package inspect_ai)."
    )


@export_app.command("harbor")
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
    from a2rl.export.harbor_task import write_harbor_task
    from a2rl.task_api.contract import Variant as Known

    settings, target = Settings.load(), output or Path(f"{Path(task).name}-{variant}")
    write_harbor_task(
        settings, task=task, variant=one_of("variant", variant, Known), source=source, model=model,
        budget_s=parse_duration(budget), gpus=gpus, solution=solution, target=target,
        fetch=lambda: fetch([model], settings),
    )  # fmt: skip
    say(f"{target}: `harbor lint {target}`, `harbor run -p {target} -a AGENT`")


@export_app.command("grade-for-harbor", hidden=True)
def grade_for_harbor(
    task: Task,
    base_model: Annotated[Path, typer.Option(help="The folder of the base model.")],
    submitted: Annotated[Path, typer.Option(help="The folder that the agent left.")],
    reward: Annotated[Path, typer.Option(help="The file that Harbor reads.")],
    variant: Variant = "mini",
) -> None:
    """Grade a checkpoint in Harbor's verifier: the share of the score, 0 to 1, or 0 for what cannot be graded."""
    from a2rl.cli.scoring import GradeRequest, grade_checkpoint
    from a2rl.grading.submission_checks import Requirements, copy_submission
    from a2rl.grading.submitted_files import Source

    settings, rewards = Settings.load(), {"reward": 0.0, "valid": 0.0}
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch, "model")
        try:
            copy_submission(Source(submitted.parent, submitted.name), model, Requirements(base_model))
        except InvalidSubmissionError as error:
            print_error(str(error))
        else:
            score = grade_checkpoint(settings, GradeRequest(task, str(model), variant), ignore_progress).score
            if score.score is None:
                raise InfrastructureError(f"there is no score: {score.reason}")
            rewards = {"reward": score.score / 100, "valid": 1.0}
    write_atomically(reward, json.dumps(rewards))
