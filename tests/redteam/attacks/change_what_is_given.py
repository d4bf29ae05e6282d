"""Changes the base model and the data that it was given, so that the comparison or the training uses other files.

The given files stay unchanged: their contents, their permissions and their folder.
"""

import os
import shutil
from pathlib import Path

LEVEL = "sandbox"
WEIGHTS = "weights"


def attack(scene):
    given = Path(scene.workspace).parent / "given"
    weights = given / "models" / "tiny" / "model.safetensors"
    steps = (
        lambda: weights.chmod(0o666),
        lambda: weights.write_text("others"),
        lambda: os.truncate(weights, 0),
        weights.unlink,
        lambda: (given / "data").rename(given / "old"),
        lambda: (given / "data" / "planted.jsonl").write_text("{}"),
        lambda: os.link(weights, Path(scene.workspace) / "linked"),
        lambda: weights.rename(Path(scene.workspace) / "taken"),
        lambda: shutil.rmtree(given),
    )
    done = []
    for number, step in enumerate(steps):
        try:
            step()
            done.append(number)
        except OSError:
            continue
    if not done:
        raise PermissionError(f"all of {len(steps)} ways are closed")
    return f"ways {done} are open"


def held(after):
    weights = after.run.given / "models" / "tiny" / "model.safetensors"
    names = (
        sorted(path.name for path in (after.run.given / "data").iterdir())
        if (after.run.given / "data").exists()
        else []
    )
    problems = []
    if not weights.exists() or weights.read_text() != WEIGHTS:
        problems.append("the weights are others")
        weights.parent.mkdir(parents=True, exist_ok=True)
        weights.write_text(WEIGHTS)
    if weights.stat().st_nlink > 1:
        problems.append("the weights have a second name")
    if "planted.jsonl" in names or not names:
        problems.append("the data are others")
    return "; ".join(problems)
