"""The files that tasks hand to agents: their environments and prompts, what counts of a model's text, and rollouts of
many episodes."""

import re
import shutil
from pathlib import Path
from types import ModuleType

import a2rl.sampling
from a2rl.core import model_text

HERE = Path(__file__).parent
DECODER = Path(a2rl.sampling.__file__).parent / "decoder"
_IMPORT = re.compile(r"^from (?:a2rl|tasks)\.(?:\w+\.)*?((?:decoder\.)?\w+) import", re.MULTILINE)


def hand_out(visible: Path, *parts: Path | ModuleType) -> None:
    """Copies parts of a task for the agent, and the modules for reading a model's text and for rollouts.

    Args:
        visible: The data folder that the agent gets.
        parts: Packages and modules (by their path, or as modules that are loaded) that import nothing of ours but each
            other.
    """
    for part in (*parts, model_text, HERE / "episodes.py", HERE / "rollout_workers.py"):
        path = part if isinstance(part, Path) else Path(str(part.__file__))
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(path, visible / path.name, ignore=ignored, copy_function=_copy)
        else:
            _copy(path, visible / path.name)
    (visible / DECODER.name).mkdir()
    for path in sorted(DECODER.glob("*.py")):
        _copy(path, visible / DECODER.name / path.name)


def _copy(path: str | Path, target: str | Path) -> None:
    """Copies a module; the agent has the modules that it imports without the packages that they are part of."""
    text = Path(path).read_text(encoding="utf-8")
    Path(target).write_text(_IMPORT.sub(r"from \1 import", text), encoding="utf-8")
