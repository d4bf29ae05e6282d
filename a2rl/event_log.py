"""A log of JSON lines that whoever causes its lines cannot make endless."""

import json
import time
from pathlib import Path
from typing import Any

MAX_BYTES = 64 << 20


class EventLog:
    """Appends a JSON object a line, with the time `t` (seconds since 1970), until the file is as large as it may be."""

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self._left = max_bytes - (path.stat().st_size if path.exists() else 0)

    def write(self, **fields: Any) -> None:
        """Writes a line; once there is no room, none."""
        text = json.dumps({"t": round(time.time(), 3), **fields}, ensure_ascii=False)
        line = f"{text}\n".encode("utf-8", "replace")
        self._left -= len(line)
        if self._left >= 0:
            with self.path.open("ab", buffering=0) as file:
                file.write(line)
