"""Logs of what an agent prints: without secrets, limited in size and, in logs for people, with visible escapes.

with AgentLog(path) as log:
    log.write(b"loss 0.1\\r\\x1b[2K")              # loss 0.1, then \\x1b[2K as visible text on the next line

Standard library only: the supervisor imports this module.
"""

import codecs
import io
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO

from a2rl.core.printable import printable
from a2rl.core.secrets import scrubbing_stream

MAX_BYTES = 256 << 20
MAX_TAIL_BYTES, MAX_LINE_CHARS = 16 << 10, 1000
FULL = b"\n[a2rl: the log is full; the rest is dropped]\n"


class AgentLog:
    """Appends to a file. Write errors such as a full disk are ignored, because they must not stop the agent.

    Args:
        as_it_is: Whether to keep the bytes as they are, for transcripts that programs read. Otherwise control
            characters are escaped, and a carriage return (of a progress bar) begins a new line.
    """

    def __init__(self, path: Path, as_it_is: bool = False) -> None:
        self._file: io.FileIO | None = None
        with suppress(OSError):
            self._file = path.open("ab", buffering=0)
        self._secrets = scrubbing_stream()
        text = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._lines = None if as_it_is else io.IncrementalNewlineDecoder(text, translate=True)
        self._left = MAX_BYTES

    def write(self, block: bytes) -> None:
        """Writes the next piece; the end of it may be held back until it is known not to begin a secret."""
        if self._file is not None and self._left > 0:
            self._append(self._secrets.feed(block))

    def __enter__(self) -> "AgentLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._append(self._secrets.close(), final=True)
        if self._file is not None:
            with suppress(OSError):
                self._file.close()

    def _append(self, data: bytes, final: bool = False) -> None:
        if self._file is None or self._left <= 0:
            return
        if self._lines is not None:
            data = printable(self._lines.decode(data, final), sys.maxsize, lines=True).encode("utf-8", "replace")
        with suppress(OSError):
            self._file.write(data[: self._left])
            self._left -= len(data)
            if self._left <= 0:
                self._file.write(FULL)


def last_lines(path: Path, start: int) -> list[str]:
    """Returns the last lines that a log for people got after it had `start` bytes, without empty ones."""
    with suppress(OSError), path.open("rb") as log:
        log.seek(max(start, log.seek(0, os.SEEK_END) - MAX_TAIL_BYTES))
        lines = log.read(MAX_TAIL_BYTES).decode(errors="replace").splitlines()
        return [printable(line.strip(), MAX_LINE_CHARS) for line in lines if line.strip()]
    return []


def keep_log(source: IO[bytes], path: str, as_it_is: bool) -> None:
    """Copies what the agent prints to its log until the pipe closes.

    Reading continues after the log is full, so that the agent never blocks on a full pipe.

    Args:
        source: The read end of the agent's standard output or standard error.
        as_it_is: For transcripts: see `AgentLog`.
    """
    with AgentLog(Path(path), as_it_is) as log:
        while block := os.read(source.fileno(), 1 << 16):
            log.write(block)
