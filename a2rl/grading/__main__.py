"""`python -P -m a2rl.grading RUN_DIR SOCKET CHANNEL`: the grading service of a run.

Its parent owns the listening socket, so that a restarted service takes over the same address and waiting clients are
served. When stdin closes (the parent has ended), the service and its workers end; a line on stdin says that the agent
has ended. The channel is a pipe to the parent. Every second, the service writes a line of JSON to it to say that it is
alive, however busy its HTTP side is.
"""

import asyncio
import json
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path

from a2rl.core.errors import A2rlError
from a2rl.core.event_log import EventLog
from a2rl.core.serving import serve_for_parent
from a2rl.core.settings import Settings
from a2rl.grading.agent_services import services_of
from a2rl.grading.app import create_app
from a2rl.grading.devices import describe_gpus, devices_of
from a2rl.grading.http_limits import MAX_HEAD_BYTES, Connection
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.grading.throttling import MAX_REASON
from a2rl.linux.process_tree import die_with_parent
from a2rl.llm.keys import receive_keys
from a2rl.run.directory import RunDir
from a2rl.run.gpu_share import share_of
from a2rl.run.records import SetupRecord

ALIVE_EVERY_S = 1
MAX_LOG_BYTES = 8 << 20


def raise_file_limit() -> None:
    """Raises the limit of open files to the maximum for this user."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def main() -> None:
    """Serves the run in the arguments until stdin closes."""
    die_with_parent()
    raise_file_limit()
    receive_keys(sys.stdin)
    run, settings, channel = RunDir(Path(sys.argv[1])), Settings.load(), int(sys.argv[3])
    os.set_blocking(channel, False)
    share = share_of(run, settings)
    devices = devices_of(share.graders, run.spec.gpus_for_one)
    with GraderPool(settings, devices) as pool, services_of(run, settings) as services:
        service = GradingService(run, pool)
        log = EventLog(run.logs / "api.jsonl", MAX_LOG_BYTES)
        gpus = devices if share.graders else []
        told = describe_gpus(share, run.need("setup", SetupRecord).memory)
        app = create_app(service, run.spec.task, gpus, log, told, services)

        async def report_alive() -> None:
            with suppress(OSError):  # the parent is busy or has ended
                os.write(channel, json.dumps({"problem": service.problem[:MAX_REASON]}).encode() + b"\n")
            with suppress(A2rlError):
                await asyncio.to_thread(service.submissions.refusals.flush, only_if_due=True)

        def finish() -> None:
            with suppress(A2rlError):  # the parent asks again
                service.finish()

        serve_for_parent(
            app,
            int(sys.argv[2]),
            lifespan="off",
            on_line=finish,
            http=Connection,
            ws="none",  # websocket connections would not be counted
            log_level="error",  # a warning for every malformed request would fill the disk
            access_log=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            callback_notify=report_alive,
            timeout_notify=ALIVE_EVERY_S,
        )


if __name__ == "__main__":
    main()
