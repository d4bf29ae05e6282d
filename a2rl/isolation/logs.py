"""Keeping what an agent prints. Only the standard library is imported."""

import contextlib
import os
from pathlib import Path
from typing import IO

MAX_LOG_BYTES = 256 << 20


def keep_log(source: IO[bytes], path: str) -> None:
    """Writes what the agent prints to its log, up to a limit, and goes on reading so that the agent never blocks."""
    left = MAX_LOG_BYTES
    with contextlib.ExitStack() as stack:
        log = None
        with contextlib.suppress(OSError):
            log = stack.enter_context(Path(path).open("ab", buffering=0))
        while block := os.read(source.fileno(), 1 << 16):
            if log is None or left <= 0:
                continue
            with contextlib.suppress(OSError):  # the disk is full; the agent can do without its log
                log.write(block[:left])
                left -= len(block)
                if left <= 0:
                    log.write(b"\n[a2rl: the log is full; the rest is dropped]\n")
