"""Reads and writes lines through pipes without blocking, even if the process at the other end hangs.

Standard library only: the supervisor imports this module. It does not use asyncio, because the supervisor forks, and
waits for everything in one `select`.
"""

import contextlib
import os

MAX_WAITING = 16 << 20
BLOCK = 1 << 16


class LineReader:
    """Reads complete lines of a file as they arrive."""

    def __init__(self, file: int, rest: bytes = b"") -> None:
        self._file, self._rest = file, rest
        self.is_over = False
        """Whether the end of the file was reached."""
        os.set_blocking(file, False)

    def read(self) -> list[bytes]:
        """Returns the lines that have arrived, without line ends; call it when the file is readable."""
        with contextlib.suppress(BlockingIOError):
            block = os.read(self._file, BLOCK)
            self.is_over = not block
            *lines, self._rest = (self._rest + block).split(b"\n")
            return lines
        return []


class LineWriter:
    """Writes lines to a reader that may be slow. Unread lines are buffered here, up to MAX_WAITING bytes."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file
        self._waiting = bytearray()
        self._ends = False
        os.set_blocking(file, False)

    @property
    def is_open(self) -> bool:
        """Whether lines can still be written."""
        return self._file is not None

    @property
    def waits_for(self) -> int | None:
        """The file descriptor to wait for before `push`; None if there is nothing to write."""
        return self._file if self._waiting else None

    def put(self, line: bytes) -> bool:
        """Writes a line, now or later; returns False if the buffer is full and the line was dropped."""
        if self._ends or self._file is None or len(self._waiting) + len(line) >= MAX_WAITING:
            return False
        self._waiting += line + b"\n"
        self.push()
        return True

    def end(self) -> None:
        """Closes the file once everything is written; no more lines are accepted."""
        self._ends = True
        self.push()

    def push(self) -> None:
        """Writes as much as possible without blocking."""
        try:
            while self._waiting and self._file is not None:
                del self._waiting[: os.write(self._file, self._waiting[:BLOCK])]
        except BlockingIOError:
            return
        except OSError:  # the reader is gone
            self._waiting.clear()
            self._ends = True
        if self._ends:
            self.close()

    def close(self) -> None:
        """Closes the file now and drops buffered lines."""
        self._waiting.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None
