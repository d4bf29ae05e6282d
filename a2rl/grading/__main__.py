"""`python -P -m a2rl.grading RUN_DIR FD`: the grading service of a run, on a socket that its parent listens on.

The parent keeps the socket, so that a restarted service takes over the same address and waiting clients are served. The
end of stdin (the parent is gone) ends the service and its workers.
"""

import sys
import threading
from pathlib import Path


def main() -> None:
    import socket

    import uvicorn

    from a2rl.grading.app import create_app
    from a2rl.grading.pool import GraderPool, devices_here
    from a2rl.grading.service import GradingService
    from a2rl.run import RunDir
    from a2rl.settings import Settings
    from a2rl.supervisor import die_with_parent

    die_with_parent()
    run, listener = RunDir(Path(sys.argv[1])), socket.socket(fileno=int(sys.argv[2]))
    settings = Settings.load()
    devices = devices_here(settings)
    with GraderPool(settings, devices) as pool:
        service = GradingService(run, settings.root, pool)
        app = create_app(service, run.spec.task, [device for device in devices if device != "cpu"])
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off", timeout_graceful_shutdown=5))

        def end_with_parent() -> None:
            sys.stdin.read()
            server.should_exit = True

        threading.Thread(target=end_with_parent, daemon=True).start()
        server.run(sockets=[listener])


if __name__ == "__main__":
    main()
