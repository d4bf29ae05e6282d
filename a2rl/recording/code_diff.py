"""What changed in the agent's code between two recorded states, as a unified diff.

    code_diff(run.code, before=None, after=revision)   # None: the folder was still empty

Git compares the contents only: no attributes, no external programs and no conversions apply. Names and lines are those
of the agent, so they are hostile text.
"""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

from a2rl.recording.code_history import git_environment

EMPTY_TREE = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
"""Git's name for a folder without files."""
REVISION = re.compile(r"[0-9a-f]{40}")
MAX_BYTES = 256 << 10
"""What is read of one diff."""
TIMEOUT_S = 20
OPTIONS = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--unified=3")


class CodeDiff(NamedTuple):
    """The difference between two states of the code."""

    lines: tuple[str, ...]
    """As git prints it."""
    is_whole: bool
    """False if there is more than was read."""


def code_diff(repository: Path, before: str | None, after: str) -> CodeDiff | None:
    """Returns what changed from one revision to another; None if git cannot tell, as after the code was deleted."""
    names = (before or EMPTY_TREE, after)
    if not all(REVISION.fullmatch(name) for name in names) or not (repository / ".git").is_dir():
        return None
    environment = git_environment(repository / ".git")
    command = ["git", "--no-replace-objects", "diff", *OPTIONS, *names, "--"]
    try:
        with subprocess.Popen(
            command, cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:  # fmt: skip
            return _read(process)
    except (OSError, subprocess.SubprocessError):
        return None


def _read(process: "subprocess.Popen[bytes]") -> CodeDiff | None:
    """Reads so much of the diff as is kept, and ends git if there is more."""
    assert process.stdout is not None
    try:
        data = process.stdout.read(MAX_BYTES + 1)
        if len(data) <= MAX_BYTES and process.wait(TIMEOUT_S) != 0:
            return None
    finally:
        process.kill()
    text = data[:MAX_BYTES].decode("utf-8", "replace")
    return CodeDiff(tuple(text.split("\n")[: -1 if text.endswith("\n") else None]), len(data) <= MAX_BYTES)
