"""Reads the transcripts that agent systems write of their own work. Each format is a module in this folder.

reading = read_transcript("claude-code", path)      # transcripts/claude_code.py: read(lines)
print(trajectory([reading], Agent(name="claude-code", version="2.1.330"), FinalMetrics()).to_json())

To add a format, add a module with `read(lines: Iterable[str]) -> Reading`. There is no list of formats to edit.
"""

import importlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from a2rl.agent_systems.transcripts.atif import Agent, FinalMetrics, Trajectory
from a2rl.agent_systems.transcripts.ending import Account, ending
from a2rl.agent_systems.transcripts.reading import MAX_LINE_CHARS, Reading, trajectory
from a2rl.core.errors import unknown_name

__all__ = [
    "Account",
    "Agent",
    "FinalMetrics",
    "Reading",
    "Trajectory",
    "ending",
    "formats",
    "read_transcript",
    "trajectory",
]

MAX_BYTES = 256 << 20
NO_FORMATS = {"__init__", "atif", "reading", "ending"}


def formats() -> list[str]:
    """Returns the names of the formats that can be read."""
    modules = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name.replace("_", "-") for name in modules if name not in NO_FORMATS)


def read_transcript(transcript_format: str, *paths: Path) -> Reading:
    """Reads a transcript, which may consist of several files. Missing files count as empty.

    Raises:
        UsageError: There is no such format.
    """
    if transcript_format not in (known := formats()):
        raise unknown_name("transcript format", transcript_format, known)
    module = importlib.import_module(f"a2rl.agent_systems.transcripts.{transcript_format.replace('-', '_')}")
    read = cast(Callable[[Iterable[str]], Reading], module.read)
    return read(line for path in paths for line in _lines(path))


def _opened(path: Path) -> io.BufferedReader:
    """Opens a regular file. The agent may have put anything at this path: links are not followed, and pipes do not
    block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path} is no file")
    return file


def _lines(path: Path) -> Iterator[str]:
    """Yields lines. Long ones are split, so that no line can fill the memory."""
    left = MAX_BYTES
    with suppress(OSError), _opened(path) as file:
        while left > 0 and (line := file.readline(min(MAX_LINE_CHARS, left))):
            left -= len(line)
            yield line.decode("utf-8", "replace")
