"""Runs one of our modules that loads a model, in a process of its own with a limit on its time.

The service and the stages never load a model themselves: it takes memory, libraries and time.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from a2rl.core.cgroup_folders import free_memory
from a2rl.core.errors import InfrastructureError, InvalidSubmissionError, last_words
from a2rl.core.processes import child_environment, module_command, run_child
from a2rl.core.settings import Settings
from a2rl.linux.gpu_locks import hold_for_grade
from a2rl.linux.gpus import CPU
from a2rl.linux.process_tree import die_with_parent
from a2rl.models.checkpoint import unpacked_bytes

START_S, MIN_BYTES_PER_S = 300.0, 20 << 20
"""The process may take this time, plus the model's size divided by this rate."""
SHARE_OF_MEMORY = 0.8
LOG_CHARS = 300


class ModelSize(NamedTuple):
    """What a model takes once it is loaded."""

    size: int
    """In bytes."""

    @classmethod
    def of(cls, folder: Path) -> "ModelSize":
        """Returns the size of a model by the headers of its files."""
        return cls(unpacked_bytes(folder))

    @property
    def lack_of_memory(self) -> str:
        """Why it cannot be loaded now; empty if it can."""
        if self.size <= SHARE_OF_MEMORY * free_memory():
            return ""
        return f"loading it takes {self.size >> 20} MiB of memory, which are not free"

    @property
    def timeout_s(self) -> float:
        """How long a process may take that loads and saves it."""
        return START_S + self.size / MIN_BYTES_PER_S


def run_model_process(
    module: str, arguments: list[str], log: Path, timeout_s: float, settings: Settings, device: str = CPU
) -> str:
    """Runs a module to its end, when it is its turn to compute on the device.

    Args:
        timeout_s: The process is killed after this time.

    Returns:
        What went wrong; empty if the process ended with exit code 0.

    Raises:
        InterruptedByUserError: The user stopped the pipeline meanwhile.
        InfrastructureError: A GPU that is shared with other runs did not become free.
    """
    gpus = [] if device == CPU else device.split(",")
    variables = {"CUDA_VISIBLE_DEVICES": ",".join(gpus), "TRANSFORMERS_VERBOSITY": "error"}
    command = module_command(module, *arguments)
    with hold_for_grade(gpus, settings.gpu_locks, f"the process {module}"):
        try:
            status = run_child(command, child_environment(settings) | variables, log, timeout_s, folder=settings.root)
        except InfrastructureError:
            return f"it took longer than {timeout_s:.0f} s"
    if status == 0:
        return ""
    said = log.read_text(errors="replace")[-LOG_CHARS:]
    return f"its process ended with exit code {status}: {last_words(said, 'it wrote nothing')}"


def require_complete(folder: Path, settings: Settings) -> None:
    """Refuses a checkpoint that lacks weights. Only the headers of its files are read, in a process of its own.

    vLLM stores some matrices of a model as one. If the files lack one of them, it computes with what was in the memory.
    (The transformers back end refuses such a checkpoint when it loads it, and submissions are compared with their base
    model.) A checkpoint that transformers cannot load passes: vLLM knows models that transformers does not know.

    Raises:
        InvalidSubmissionError: It lacks weights.
        InterruptedByUserError: The user stopped the pipeline meanwhile.
    """
    with tempfile.TemporaryDirectory() as name:
        result, log = Path(name, "result.json"), Path(name, "log")
        if run_model_process(__name__, [str(folder), str(result)], log, START_S, settings):
            return
        missing = json.loads(result.read_bytes())
    if missing:
        raise InvalidSubmissionError(f"{folder} lacks weights: {', '.join(missing[:3])} ...")


def main(folder: Path, result: Path) -> None:
    """Writes the names of missing weights, as transformers calls them; one of its errors ends the process."""
    from a2rl.sampling.loading import missing_weights

    result.write_text(json.dumps(missing_weights(folder)), encoding="utf-8")


if __name__ == "__main__":
    die_with_parent()
    main(Path(sys.argv[1]), Path(sys.argv[2]))
