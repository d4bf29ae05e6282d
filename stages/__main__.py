"""`python -m stages`: the stages without Prefect, for DVC and for debugging.

python -m stages data --task gsm8k --variant mini
python -m stages corpus --task gsm8k
python -m stages tiny
python -m stages baseline --task gsm8k --variant mini
python -m stages setup|baseline|execute|grade|report --run RUN
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from a2rl.errors import A2rlError
from a2rl.owner import owned
from a2rl.params import load_params
from a2rl.run import Record, RunDir
from a2rl.settings import Settings

RUN_STAGES = ("setup", "baseline", "execute", "grade", "report")


def main() -> None:
    """Runs one stage; an error is one line and exit code 1 or 2."""
    parser = argparse.ArgumentParser(prog="python -m stages", description="Run one stage of the pipeline.")
    parser.add_argument("stage", choices=("data", "corpus", "tiny", *RUN_STAGES))
    parser.add_argument("--task")
    parser.add_argument("--variant", default="mini", choices=("mini", "full"))
    parser.add_argument("--source", type=Path)
    parser.add_argument("--run", help="run id, for the stages of a run")
    arguments = parser.parse_args()
    if arguments.stage in ("data", "corpus") and not arguments.task:
        parser.error(f"{arguments.stage} needs --task")
    if arguments.stage in RUN_STAGES and not (arguments.run or (arguments.stage == "baseline" and arguments.task)):
        parser.error(f"{arguments.stage} needs --run")
    try:
        sys.stdout.write(_run_stage(arguments, Settings.load()) + "\n")
    except A2rlError as error:
        sys.exit(f"error: {error}")


def _run_stage(arguments: argparse.Namespace, settings: Settings) -> str:
    """What there is to say of it."""
    from stages import data, task_baseline, tiny

    if arguments.stage == "data":
        data.data(arguments.task, arguments.variant, arguments.source, settings)
        return f"data: {arguments.task} {arguments.variant}"
    if arguments.stage == "corpus":
        tiny.corpus(arguments.task, load_params(settings.root), settings)
        return f"corpus: what the base model reads of {arguments.task}"
    if arguments.stage == "tiny":
        sys.stderr.write("tiny: pretraining the base model, two minutes\n")
        built = tiny.tiny(load_params(settings.root), settings)
        return f"tiny: {built.parameters:,} parameters, loss {built.final_loss:.2f}, {built.seconds:.0f} s"
    if arguments.run is None:
        params = load_params(settings.root)
        metrics = task_baseline.task_baseline(arguments.task, arguments.variant, params, settings)
        return f"baseline: {arguments.task} {metrics.score:.1f} [{metrics.ci_low:.1f}, {metrics.ci_high:.1f}]"
    from stages import baseline, execute, grade, report, setup

    run_stages: dict[str, Callable[[RunDir, Settings], Record]] = {
        "setup": setup.setup,
        "baseline": baseline.baseline,
        "execute": execute.execute,
        "grade": grade.grade,
        "report": report.report,
    }
    run = RunDir(settings.runs / arguments.run)
    with owned(run):
        return run_stages[arguments.stage](run, settings).model_dump_json(indent=2)


if __name__ == "__main__":
    main()
