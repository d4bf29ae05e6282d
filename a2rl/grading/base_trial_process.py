"""The process that tries a base model: `python -m a2rl.grading.base_trial_process <base model> <empty folder>`.

It writes `result.json` (a `BaseTrial`) into the folder, last of all.
"""

import sys
from pathlib import Path
from typing import Any

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.files import write_model
from a2rl.grading.base_trial import BaseTrial
from a2rl.grading.validation import check_tied_head, is_tied, keep, set_aside
from a2rl.linux.process_tree import die_with_parent
from a2rl.models.caps import MAX_CONFIG_BYTES
from a2rl.models.json_object import read_json
from a2rl.models.loading import UNLOADABLE, first_line, load_model, load_tokenizer


def main(folder: Path, scratch: Path) -> None:
    """Tries the base model."""
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
    config = read_json(folder / "config.json", "config.json", MAX_CONFIG_BYTES)
    check_tied_head(folder, is_tied(config, complete))
    model = load_model(folder, dtype="auto")
    model.save_pretrained(saved)
    load_tokenizer(folder).save_pretrained(saved)
    set_aside(saved)
    keep(saved, folder, complete)


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
