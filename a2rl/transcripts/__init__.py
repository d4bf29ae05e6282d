"""Reads what agent systems record of their own work; a format is a module of this folder.

reading = read_transcript("claude-code", path)      # transcripts/claude_code.py: read(lines)
print(trajectory([reading], Agent(name="claude-code", version="2.1.330")).to_json())

Adding a format adds a module with `read(lines: Iterable[str]) -> Reading`; no list of them is kept.
"""

import importlib
import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

from a2rl.errors import unknown
from a2rl.transcripts.atif import Agent, Trajectory
from a2rl.transcripts.failure import why
from a2rl.transcripts.reading import MAX_LINE_CHARS, Reading, trajectory

__all__ = ["Agent", "Reading", "Trajectory", "formats", "read_transcript", "trajectory", "why"]

MAX_BYTES = 256 << 20
NO_FORMATS = {"__init__", "atif", "reading", "failure"}


def formats() -> list[str]:
    """The formats that can be read."""
    modules = (path.stem for path in Path(__file__).parent.glob("*.py"))
    return sorted(name.replace("_", "-") for name in modules if name not in NO_FORMATS)


def read_transcript(transcript_format: str, *paths: Path) -> Reading:
    """The reading of a transcript, which may lie in several files; files that are not there hold nothing.

    Raises:
        UsageError: there is no such format.
    """
    if transcript_format not in (known := formats()):
        raise unknown("transcript format", transcript_format, known)
    module = importlib.import_module(f"a2rl.transcripts.{transcript_format.replace('-', '_')}")
    read = cast(Callable[[Iterable[str]], Reading], module.read)
    return read(line for path in paths for line in _lines(path))


def _opened(path: Path) -> io.BufferedReader:
    """The agent may have put anything at this path: links are not followed, pipes do not block."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(f"{path} is no file")
    return file


def _lines(path: Path) -> Iterator[str]:
    """Lines in pieces of limited size: no line can fill the memory."""
    left = MAX_BYTES
    with suppress(OSError), _opened(path) as file:
        while left > 0 and (line := file.readline(min(MAX_LINE_CHARS, left))):
            left -= len(line)
            yield line.decode("utf-8", "replace")
