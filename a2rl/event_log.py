"""A log of JSON lines that whoever causes its lines cannot make endless."""

import time
from pathlib import Path
from typing import Any

from a2rl.printable import printable_json
from a2rl.secrets import scrub_bytes

MAX_BYTES = 64 << 20


class EventLog:
    """Appends a JSON object a line, with the time `t` (seconds since 1970), until the file is as large as it may be."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._left = max_bytes - (path.stat().st_size if path.exists() else 0)

    def write(self, **fields: Any) -> None:
        """Writes a line; once there is no room, none."""
        line = scrub_bytes(f"{printable_json({'t': round(time.time(), 3), **fields})}\n".encode())
        self._left -= len(line)
        if self._left >= 0:
            with self.path.open("ab", buffering=0) as file:
                file.write(line)
