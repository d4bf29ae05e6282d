"""What an agent prints, as it is kept: without secrets, limited in size and, in logs for people, made visible.

with AgentLog(path) as log:
    log.write(b"loss 0.1\\r\\x1b[2K")              # loss 0.1, then on the next line \\x1b[2K as it stands here

Only the standard library is imported.
"""

import codecs
import io
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from a2rl.printable import printable
from a2rl.secrets import scrubbed_stream

MAX_BYTES = 256 << 20
FULL = b"\n[a2rl: the log is full; the rest is dropped]\n"


class AgentLog:
    """Appends to a file; a full disk is nobody's reason to stop the agent, and is passed over.

    Args:
        as_it_is: for transcripts, which programs read; else what a terminal would obey is escaped, and a carriage
            return (a progress bar's) begins a new line.
    """

    def __init__(self, path: Path, as_it_is: bool = False, max_bytes: int = MAX_BYTES) -> None:
        self._file: io.FileIO | None = None
        with suppress(OSError):
            self._file = path.open("ab", buffering=0)
        self._secrets = scrubbed_stream()
        text = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._lines = None if as_it_is else io.IncrementalNewlineDecoder(text, translate=True)
        self._left = max_bytes

    def write(self, block: bytes) -> None:
        """Takes the next piece; some of it may be held back until more is known."""
        if self._file is not None and self._left > 0:
            self._append(self._secrets.feed(block))

    def __enter__(self) -> "AgentLog":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
