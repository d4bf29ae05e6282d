"""Keeping what an agent prints. Only the standard library is imported."""

import os
from pathlib import Path
from typing import IO

from a2rl.agent_log import MAX_BYTES, AgentLog

MAX_LOG_BYTES = MAX_BYTES


def keep_log(source: IO[bytes], path: str, as_it_is: bool) -> None:
    """Writes what the agent prints to its log, up to a limit, and goes on reading so that the agent never blocks.

    Args:
        as_it_is: of transcripts; see a2rl/agent_log.py.
    """
    with AgentLog(Path(path), as_it_is) as log:
        while block := os.read(source.fileno(), 1 << 16):
            log.write(block)
