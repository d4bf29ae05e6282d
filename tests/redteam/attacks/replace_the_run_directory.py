"""Renames, locks, links and replaces its run's directory and what lies beside its workspace.

The run's directory is the grader's: the agent changes nothing in it but its own workspace.
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
    reasons = set()
    for number, way in enumerate(ways):
        try:
            way()
        except OSError as error:
            reasons.add(type(error).__name__)
        else:
            return f"way {number} worked"
    raise PermissionError(", ".join(sorted(reasons)))
