"""Tries once whether trained copies of a base model can be submitted, before an agent spends hours on one.

A process of its own (`python -m a2rl.grading.base_trial <base model> <empty folder>`) loads the base model, saves it
with save_pretrained, and checks the result as a submission is checked. It writes `result.json` (a `BaseTrial`) last.
The outcome is kept under the model's digest, so a second run with the same model does not repeat it.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from a2rl.core.errors import InvalidSubmissionError, UsageError, first_line
from a2rl.core.files import FrozenModel, write_model
from a2rl.core.settings import Settings
from a2rl.grading.model_process import ModelSize, run_model_process
from a2rl.grading.submission_checks import Requirements, check_tied_head, complete_copy, is_tied, name_as_submitted
from a2rl.linux.process_tree import die_with_parent
from a2rl.models.caps import MAX_CONFIG_BYTES, read_json

EDITION = "1"
"""Part of the outcome's file name: a later edition of the trial repeats what earlier ones found."""


class BaseTrial(FrozenModel):
    """What the trial of a base model found."""

    complete_config: dict[str, Any] = Field(default_factory=dict)
    """Its configuration with all defaults, as transformers completes it."""
    problem: str = ""
    """Why trained copies cannot be submitted; empty if they can."""
    not_tried: str = ""
    """Why this machine could not try it; empty if it did."""


def try_base_model(folder: Path, digest: str, settings: Settings) -> BaseTrial:
    """Tries a base model, or returns what an earlier trial found.

    A machine that lacks the memory, the disk space or the time says so in `not_tried`: agents may still be able to
    train the model there, on a GPU or in parts.

    Raises:
        UsageError: Trained copies would be refused; the message says why.
        InterruptedByUserError: The user stopped the pipeline meanwhile.
    """
    known = settings.base_trials / f"{digest}-{EDITION}.json"
    trial = _read(known)
    if trial is None:
        trial = _try_apart(folder, settings)
        if not trial.not_tried:
            write_model(known, trial)
    if trial.problem:
        raise UsageError(
            f"the base model {folder} cannot be used, since no trained copy could be submitted: {trial.problem}"
        )
    return trial


def _read(path: Path) -> BaseTrial | None:
    try:
        return BaseTrial.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _try_apart(folder: Path, settings: Settings) -> BaseTrial:
    model = ModelSize.of(folder)
    settings.base_trials.mkdir(parents=True, exist_ok=True)
    if why := model.lack_of_memory:
        return BaseTrial(not_tried=why)
    if 2 * model.size > shutil.disk_usage(settings.base_trials).free:
        return BaseTrial(not_tried=f"saving it takes {model.size >> 19} MiB of disk space, which are not free")
    with tempfile.TemporaryDirectory(dir=settings.base_trials, prefix=".trial-") as name:
        scratch = Path(name)
        arguments = [str(folder), str(scratch)]
        failure = run_model_process(__name__, arguments, scratch / "log", model.timeout_s, settings)
        return _read(scratch / "result.json") or BaseTrial(not_tried=failure or "its process left no result")


def main(folder: Path, scratch: Path) -> None:
    """Tries the base model, in the process for that."""
    from a2rl.sampling.transformers_backend import UNLOADABLE

    complete: dict[str, Any] = {}
    problem = ""
    try:
        complete = _complete_config(folder)
        _try(folder, scratch / "saved", complete)
    except InvalidSubmissionError as error:
        problem = str(error)
    except (*UNLOADABLE, RuntimeError) as error:
        problem = f"transformers cannot load or save it: {first_line(error)}"
    write_model(scratch / "result.json", BaseTrial(complete_config=complete, problem=problem))


def _complete_config(folder: Path) -> dict[str, Any]:
    from transformers import AutoConfig

    config: dict[str, Any] = AutoConfig.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    ).to_dict()
    return config


def _try(folder: Path, saved: Path, complete: dict[str, Any]) -> None:
    """Saves the model as an agent would, and checks the result as a submission is checked.

    Raises:
        InvalidSubmissionError: It would be refused.
    """
    from a2rl.sampling.loading import load_model, load_tokenizer

    config = read_json(folder / "config.json", "config.json", MAX_CONFIG_BYTES)
    check_tied_head(folder, is_tied(config, complete))
    model = load_model(folder)
    model.save_pretrained(saved)
    load_tokenizer(folder).save_pretrained(saved)
    name_as_submitted(saved)
    complete_copy(saved, Requirements(folder, complete))


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
