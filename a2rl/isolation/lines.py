"""Lines through pipes whose other end may sleep: neither reading nor writing them ever waits.

Only the standard library is imported.
"""

import contextlib
import os

MAX_WAITING = 16 << 20
BLOCK = 1 << 16


class LineReader:
    """Whole lines of a file, as they arrive."""

    def __init__(self, file: int, rest: bytes = b"") -> None:
        self._file, self._rest = file, rest
        self.is_over = False
        """Whether no more will come."""
        os.set_blocking(file, False)

    def read(self) -> list[bytes]:
        """Those that have arrived, without their ends; to be called when the file can be read."""
        with contextlib.suppress(BlockingIOError):
            block = os.read(self._file, BLOCK)
            self.is_over = not block
            *lines, self._rest = (self._rest + block).split(b"\n")
            return lines
        return []


class Feed:
    """Lines for somebody who reads when it likes. What it does not read waits here; of that there is a limit."""

    def __init__(self, file: int) -> None:
        self._file: int | None = file
        self._waiting = bytearray()
        self._ends = False
        os.set_blocking(file, False)

    @property
    def is_open(self) -> bool:
        return self._file is not None

    @property
    def waits_for(self) -> int | None:
        """The file to write to as soon as that is possible; None: there is nothing to write."""
        return self._file if self._waiting else None

    def put(self, line: bytes) -> bool:
        """Hands a line on, now or later; False: too much waits already, and the line is dropped."""
        if self._ends or self._file is None or len(self._waiting) + len(line) >= MAX_WAITING:
            return False
        self._waiting += line + b"\n"
        self.push()
        return True

    def end(self) -> None:
        """No more will come; the file is closed when all is handed on."""
        self._ends = True
        self.push()

    def push(self) -> None:
        """Writes what can be written now."""
        try:
            while self._waiting and self._file is not None:
                del self._waiting[: os.write(self._file, self._waiting[:BLOCK])]
        except BlockingIOError:
            return
        except OSError:  # nobody reads any more
            self._waiting.clear()
            self._ends = True
        if self._ends:
            self.close()

    def close(self) -> None:
        """Now, whatever still waits."""
        self._waiting.clear()
        if self._file is not None:
            os.close(self._file)
            self._file = None
