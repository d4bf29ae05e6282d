"""`python -P -m a2rl.grading RUN_DIR SOCKET CHANNEL`: the grading service of a run.

Its parent listens on the socket and keeps it, so that a restarted service takes over the same address and waiting
clients are served. The end of stdin (the parent is gone) ends the service and its workers; a line on it says that the
agent is gone. The channel is a pipe to the parent, which nobody else can write to: a line of JSON every second says
that the service works, whatever goes on at the door.
"""

import asyncio
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from a2rl.errors import A2rlError
from a2rl.event_log import EventLog
from a2rl.grading.app import create_app
from a2rl.grading.door import MAX_HEAD_BYTES, Connection
from a2rl.grading.pool import GraderPool, devices_here
from a2rl.grading.refusals import MAX_REASON
from a2rl.grading.service import GradingService
from a2rl.grading.worker_process import CPU
from a2rl.isolation.start import die_with_parent
from a2rl.keys import listen
from a2rl.run import RunDir
from a2rl.serving import serve_for_parent
from a2rl.settings import Settings

ALIVE_EVERY_S = 1
MAX_LOG_BYTES = 8 << 20


def raise_file_limit() -> None:
    """As many open files as this user may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Serves until stdin closes."""
    die_with_parent()
    raise_file_limit()
    listen(sys.stdin)
    run, settings, channel = RunDir(Path(sys.argv[1])), Settings.load(), int(sys.argv[3])
    os.set_blocking(channel, False)
    devices = devices_here(settings)
    with GraderPool(settings, devices) as pool:
        service = GradingService(run, settings.root, pool)
        gpus = [device for device in devices if device != CPU]
        app = create_app(service, run.spec.task, gpus, EventLog(run.logs / "api.jsonl", MAX_LOG_BYTES))

        async def say_alive() -> None:
            with suppress(OSError):  # the parent is busy, or gone
                os.write(channel, json.dumps({"problem": service.problem[:MAX_REASON]}).encode() + b"\n")
            with suppress(A2rlError):
                await asyncio.to_thread(service.look_after)

        def finish() -> None:
            with suppress(A2rlError):  # the parent will ask again
                service.finish()

        serve_for_parent(
            app,
            int(sys.argv[2]),
            lifespan="off",
            on_line=finish,
            http=Connection,
            ws="none",  # its connections would not be counted
            log_level="error",  # a warning for every bad request would fill the disk
            access_log=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            callback_notify=say_alive,
            timeout_notify=ALIVE_EVERY_S,
        )


if __name__ == "__main__":
    main()
