"""Renames, locks, links and replaces its run's directory and the files beside its workspace.

The agent can change nothing in the run directory except its own workspace.
"""

import os
from pathlib import Path

LEVEL = "run"


def attack(scene):
    run = Path(scene.workspace).parent
    ways = (
        lambda: run.rename(run.with_name("mine")),
        lambda: (run / "workspace").rename(run / "old"),
        lambda: (run / "ledger.db").rename(Path(scene.workspace, "ledger.db")),
        lambda: run.chmod(0),
        lambda: (run / "ledger.db").chmod(0),
        lambda: (run / "logs").chmod(0),
        (run / "planted").touch,
        (run / ".workspace").mkdir,
        lambda: (run / "code").symlink_to("/tmp"),
        lambda: os.link(run / "ledger.db", Path(scene.workspace, "ledger")),
        (run / "spec.json").unlink,
        lambda: os.utime(run / "spec.json", (0, 0)),
    )
    worked, reasons = [], set()
    for number, way in enumerate(ways):
        try:
            way()
        except OSError as error:
            reasons.add(type(error).__name__)
        else:
            worked.append(number)
    # In its own file system (bwrap) the agent may change the mode of the empty folders above its workspace: `held`
    # looks from outside.
    raise PermissionError(", ".join([*sorted(reasons), *(f"way {number} changed its own view" for number in worked)]))


def held(after):
    run = after.run.root
    names = {path.name for path in run.iterdir()} if run.is_dir() else set()
    changed = [name for name in ("workspace", "ledger.db", "spec.json", "logs") if name not in names]
    changed += sorted(names & {"planted", ".workspace", "old"})
    changed += [name for name in sorted(names) if (run / name).is_symlink()]
    if not changed:
        changed += [str(path) for path in (run, run / "ledger.db", run / "logs") if not path.stat().st_mode & 0o400]
        changed += ["the time of spec.json"] if (run / "spec.json").stat().st_mtime == 0 else []
    return f"changed from inside: {changed}" if changed else ""
