"""`python -P -m a2rl.grading RUN_DIR FD`: the grading service of a run, on a socket that its parent listens on.

The parent keeps the socket, so that a restarted service takes over the same address and waiting clients are served. The
end of stdin (the parent is gone) ends the service and its workers.
"""

import sys
from pathlib import Path

from a2rl.event_log import EventLog
from a2rl.grading.app import create_app
from a2rl.grading.pool import CPU, GraderPool, devices_here
from a2rl.grading.service import GradingService
from a2rl.keys import listen
from a2rl.run import RunDir
from a2rl.serving import serve_for_parent
from a2rl.settings import Settings
from a2rl.supervisor import die_with_parent


def main() -> None:
    """Serves until stdin closes."""
    die_with_parent()
    listen(sys.stdin)
    run, settings = RunDir(Path(sys.argv[1])), Settings.load()
    devices = devices_here(settings)
    with GraderPool(settings, devices) as pool:
        service = GradingService(run, settings.root, pool)
        gpus = [device for device in devices if device != CPU]
        app = create_app(service, run.spec.task, gpus, EventLog(run.logs / "api.jsonl"))
        serve_for_parent(app, int(sys.argv[2]), lifespan="off")


if __name__ == "__main__":
    main()
