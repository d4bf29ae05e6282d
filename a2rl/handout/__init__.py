"""The files that tasks hand to agents: their environments and prompts, and rollouts of many episodes."""

import re
import shutil
from pathlib import Path
from types import ModuleType

import a2rl.sampling

HERE = Path(__file__).parent
DECODER = Path(a2rl.sampling.__file__).parent / "decoder"
_IMPORT = re.compile(r"^from (?:a2rl|tasks)\.(?:\w+\.)*?((?:decoder\.)?\w+) import", re.MULTILINE)


def hand_out(visible: Path, *parts: Path | ModuleType) -> None:
    """Copies parts of a task for the agent, and the modules for rollouts.

    Args:
        visible: The data folder that the agent gets.
        parts: Packages that import nothing of ours, and modules (by their path, or as modules that are loaded) that
            import nothing of ours but each other.
    """
    for part in (*parts, HERE / "episodes.py", HERE / "rollout_workers.py"):
        path = part if isinstance(part, Path) else Path(str(part.__file__))
        if path.is_dir():
            shutil.copytree(path, visible / path.name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            _copy(path, visible / path.name)
    (visible / DECODER.name).mkdir()
    for path in sorted(DECODER.glob("*.py")):
        _copy(path, visible / DECODER.name / path.name)


def _copy(path: Path, target: Path) -> None:
    """Copies a module; the agent has the modules that it imports without the packages that they are part of."""
    target.write_text(_IMPORT.sub(r"from \1 import", path.read_text(encoding="utf-8")), encoding="utf-8")
