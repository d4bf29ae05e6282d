"""The files that interactive tasks hand to agents: the environment as a package, and rollouts of many episodes."""

import shutil
from pathlib import Path

import a2rl.sampling

HERE = Path(__file__).parent
DECODER = Path(a2rl.sampling.__file__).parent / "decoder"


def hand_out(task: Path, package: str, visible: Path) -> None:
    """Copies a task's package, its `workspace/rollout.py`, and the modules that these need.

    Args:
        task: The task's folder.
        package: The name of the folder in it that is the environment.
        visible: The data folder that the agent gets.
    """
    shutil.copytree(task / package, visible / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (task / "workspace" / "rollout.py", HERE / "episodes.py", HERE / "rollout_workers.py"):
        shutil.copyfile(path, visible / path.name)
    (visible / DECODER.name).mkdir()
    for path in sorted(DECODER.glob("*.py")):
        # The agent has the decoder as a package of its own, without the package a2rl.
        text = path.read_text(encoding="utf-8").replace("from a2rl.sampling.", "from ")
        (visible / DECODER.name / path.name).write_text(text, encoding="utf-8")
