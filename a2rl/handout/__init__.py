"""What interactive tasks hand to agents as files: the environment as a package, and rollouts of many episodes."""

import shutil
from pathlib import Path

import a2rl.sampling

HERE = Path(__file__).parent


def hand_out(task: Path, package: str, visible: Path) -> None:
    """Copies a task's package, its `workspace/rollout.py`, and what that stands on.

    Args:
        task: the task's folder.
        package: the name of the folder in it that is the environment.
        visible: the data folder that the agent gets.
    """
    shutil.copytree(task / package, visible / package, ignore=shutil.ignore_patterns("__pycache__"))
    decoder = Path(a2rl.sampling.__file__).with_name("decoder.py")
    for path in (task / "workspace" / "rollout.py", HERE / "episodes.py", HERE / "players.py", decoder):
        shutil.copyfile(path, visible / path.name)
