"""`python -m stages`: prepares what runs start from, for DVC.

python -m stages data --task gsm8k --variant mini
python -m stages corpus --task gsm8k
python -m stages tiny
python -m stages model --model smollm2-135m
python -m stages graders
python -m stages baseline --task gsm8k --variant mini
"""

import argparse
import sys
from pathlib import Path

from a2rl.config.params import load_params
from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.models.pretrained import CATALOGUE
from a2rl.models.pretrained_store import PretrainedStore
from a2rl.task_api.data import prepare_data


def main() -> None:
    """Runs one stage; an error is printed in one line, with exit code 1 or 2."""
    parser = argparse.ArgumentParser(prog="python -m stages", description="Run one stage of dvc.yaml.")
    parser.add_argument("stage", choices=("data", "corpus", "tiny", "model", "graders", "baseline"))
    parser.add_argument("--task")
    parser.add_argument("--variant", default="mini", choices=("mini", "full"))
    parser.add_argument("--source", type=Path)
    parser.add_argument("--model", choices=sorted(CATALOGUE))
    arguments = parser.parse_args()
    if arguments.stage in ("data", "corpus", "baseline") and not arguments.task:
        parser.error(f"{arguments.stage} needs --task")
    if arguments.stage == "model" and not arguments.model:
        parser.error("model needs --model")
    try:
        sys.stdout.write(_run(arguments, Settings.load()) + "\n")
    except A2rlError as error:
        sys.exit(f"error: {error}")


def _run(arguments: argparse.Namespace, settings: Settings) -> str:
    """Runs a stage and returns the text to print."""
    from stages import task_baseline, tiny

    if arguments.stage == "data":
        prepare_data(arguments.task, arguments.variant, arguments.source, settings)
        return f"data: {arguments.task} {arguments.variant}"
    if arguments.stage == "model":
        return f"model: {PretrainedStore(settings).make_again(CATALOGUE[arguments.model])}"
    params = load_params(settings.root)
    if arguments.stage == "corpus":
        tiny.corpus(arguments.task, params, settings)
        return f"corpus: the pretraining text of {arguments.task}"
    if arguments.stage == "tiny":
        sys.stderr.write("tiny: pretraining the base model takes about two minutes\n")
        built = tiny.tiny(params, settings)
        return f"tiny: {built.parameters:,} parameters, loss {built.final_loss:.2f}, {built.seconds:.0f} s"
    if arguments.stage == "graders":
        return f"graders: {task_baseline.graders(params, settings)}"
    metrics = task_baseline.task_baseline(arguments.task, arguments.variant, params, settings)
    return f"baseline: {arguments.task} {metrics.score:.1f} [{metrics.ci_low:.1f}, {metrics.ci_high:.1f}]"


if __name__ == "__main__":
    main()
