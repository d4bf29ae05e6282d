"""Refuses a checkpoint that lacks weights, before vLLM grades it.

vLLM stores some matrices of a model as one. If the files lack one of them, it computes with what was in the memory.
(The transformers back end refuses such a checkpoint when it loads it, and submissions are compared with their base
model.)
"""

import sys
import tempfile
from pathlib import Path

from pydantic import BaseModel

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.files import write_model
from a2rl.core.settings import Settings
from a2rl.grading.model_process import run_model_process
from a2rl.linux.process_tree import die_with_parent

TIMEOUT_S = 300.0


class Found(BaseModel):
    """What the process found."""

    missing: list[str]
    """Names of weights, in the words of transformers."""


def require_complete(folder: Path, settings: Settings) -> None:
    """Refuses a checkpoint that lacks weights. Only the headers of its files are read, in a process of its own.

    A checkpoint that transformers cannot load passes: vLLM knows models that transformers does not know.

    Raises:
        InvalidSubmissionError: It lacks weights.
        InterruptedByUserError: The user stopped the pipeline meanwhile.
    """
    with tempfile.TemporaryDirectory() as name:
        result, log = Path(name, "result.json"), Path(name, "log")
        if run_model_process(__name__, [str(folder), str(result)], log, TIMEOUT_S, settings):
            return
        missing = Found.model_validate_json(result.read_bytes()).missing
    if missing:
        raise InvalidSubmissionError(f"{folder} lacks weights: {', '.join(missing[:3])} ...")


def main(folder: Path, result: Path) -> None:
    """Writes a `Found`; an error of transformers ends the process."""
    from a2rl.models.loading import missing_weights

    write_model(result, Found(missing=missing_weights(folder)))


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
