"""The agent's own summary of its run: files that the reference tells agents to write, kept and shown as its claims.

The reference's agents keep `summary.md` (bench/agents/claude/AGENTS.md:5, where `bench` is as in
docs/paper-preset.md), or `summary.md` and `summary.jsonl` in `reports/` (bench/core/skill.md:1,37).
They decide nothing.
"""

import json
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from a2rl.core.files import write_atomically
from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.run.directory import RunDir

PATHS = ("summary.md", "reports/summary.md", "summary.jsonl", "reports/summary.jsonl")
MAX_BYTES = 256 << 10
"""What is kept of each file."""
COLUMNS = (
    "iteration", "timestamp", "duration_s", "status", "exit_code", "score", "improvement", "train_type", "failure_type",
)  # fmt: skip
"""The fields of a line that the reference asks for; others are not shown."""
MAX_ROWS = 200
MAX_LINE = 4_000
"""Characters of a line that is parsed; a longer one is not."""
MAX_CELL = 80
"""Characters of a value that are shown."""


class AgentSummary(NamedTuple):
    """What an agent wrote about its run."""

    texts: dict[str, str]
    """The Markdown files by path, as they are."""
    rows: list[list[str]]
    """The lines of the JSON files, a cell for each of `COLUMNS`."""
    unread: int
    """Lines that are not shown: no JSON object, too long, or beyond the limit."""


def keep_summary(run: RunDir) -> None:
    """Copies the beginnings of the files from the workspace, as far as they are regular files."""
    with suppress(OSError), UntrustedFolder.at(run.workspace) as workspace:
        for path in PATHS:
            with suppress(OSError):
                found = workspace.read(path, MAX_BYTES)
                write_atomically(run.root / "claims" / path, found.decode("utf-8", "replace"))


def read_summary(run: RunDir) -> AgentSummary:
    """Returns what was kept; nothing if the agent wrote no summary."""
    found = {path: text for path in PATHS if (text := _kept(run, path)).strip()}
    lines = [line for path, text in found.items() if path.endswith("l") for line in text.split("\n") if line.strip()]
    rows = list(_rows(lines[:MAX_ROWS]))
    return AgentSummary(
        {path: text for path, text in found.items() if path.endswith("d")}, rows, len(lines) - len(rows)
    )


def _kept(run: RunDir, path: str) -> str:
    try:
        return (run.root / "claims" / path).read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _rows(lines: list[str]) -> Iterator[list[str]]:
    for line in lines:
        with suppress(ValueError, RecursionError):
            if len(line) <= MAX_LINE and isinstance(row := json.loads(line), dict):
                yield [_cell(row.get(name)) for name in COLUMNS]


def _cell(value: object) -> str:
    return str(value)[:MAX_CELL] if isinstance(value, str | int | float) else ""
