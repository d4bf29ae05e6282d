"""Replaces its HOME by a link to the operator's, so that the pipeline writes the next attempt's settings there.

The pipeline writes an agent's files into the agent's workspace or nowhere; the operator's files stay unchanged.
"""

from pathlib import Path

LEVEL = "run"
SPEC = {"mode": "multi", "trials": 2, "budget": "75s"}


def attack(scene):
    operator = Path(scene.home).parent.parent
    if Path("second").exists():
        raise PermissionError("the second attempt has a HOME of its own again")
    Path("second").touch()
    Path(".home").rename("old-home")
    Path(".home").symlink_to(operator)
    Path("run_meta.json").unlink(missing_ok=True)
    Path("run_meta.json").symlink_to(operator / "run_meta")
    raise PermissionError("waits for the next attempt")


def held(after):
    home = Path(after.scene.facts["home"]).parent.parent
    found = sorted(path.name for path in home.iterdir() if path.name != ".ssh")
    for name in found:
        if (home / name).is_file():
            (home / name).unlink()
    return f"the pipeline wrote {found} into the operator's home" if found else ""
