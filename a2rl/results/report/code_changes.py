"""The report's section on the agent's code: what changed in it before each submission."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from a2rl.recording.code_reading import CodeDiff, code_diff
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry

MAX_LINES = 400
"""Lines of one submission's diff on the page."""
MAX_ALL_LINES = 4_000
"""Lines of all diffs on the page. Later submissions only have their counts."""
MAX_CHARS = 300
"""Characters of a line."""
Kind = Literal["file", "place", "added", "removed", "same"]
IN_HEADER = ("index ", "--- ", "+++ ", "new file", "deleted file", "old mode", "new mode", "Binary files")


class Line(NamedTuple):
    """A line of a diff."""

    kind: Kind
    text: str


class Change(NamedTuple):
    """What changed in the code since the submission before."""

    number: int
    """The submission."""
    revision: str
    added: int
    removed: int
    files: int
    lines: tuple[Line, ...]
    note: str
    """What is not shown; empty if all is."""


def code_changes(code: Path, entries: Sequence[Entry]) -> list[Change]:
    """Returns what changed before each submission whose code was recorded and is not that of the one before."""
    found: list[Change] = []
    before, left = None, MAX_ALL_LINES
    for event in (entry.event for entry in entries):
        if not isinstance(event, SubmissionAccepted) or not event.code_revision or event.code_revision == before:
            continue
        if (diff := code_diff(code, before, event.code_revision)) is not None and diff.lines:
            found.append(_change(event.submission_id, event.code_revision, diff, min(MAX_LINES, left)))
            left -= len(found[-1].lines)
        before = event.code_revision
    return found


def _change(number: int, revision: str, diff: CodeDiff, most: int) -> Change:
    lines = list(_lines(diff.lines))
    kinds = [line.kind for line in lines]
    hidden = len(lines) - most
    note = "" if diff.is_whole else "the difference is too large to be counted as a whole"
    if hidden > 0:
        note = "; ".join(filter(None, (f"{hidden:,} more lines are in code/", note)))
    return Change(
        number, revision[:8], kinds.count("added"), kinds.count("removed"), kinds.count("file"),
        tuple(lines[: max(0, most)]), note,
    )  # fmt: skip


def _lines(lines: Sequence[str]) -> Iterator[Line]:
    """Yields the lines with their kinds. Only the header of a file is told from its contents by what it begins with."""
    in_header = False
    for line in lines:
        text = line[:MAX_CHARS]
        if line.startswith("diff --git "):
            in_header = True
            yield Line("file", text.removeprefix("diff --git "))
        elif line.startswith("@@ "):
            in_header = False
            yield Line("place", text)
        elif in_header:
            if not line.startswith(IN_HEADER[:3]):
                yield Line("place", text)
        else:
            yield Line("added" if line[:1] == "+" else "removed" if line[:1] == "-" else "same", text)
