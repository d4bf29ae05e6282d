"""How far a grade is: a small file beside its result, written by the process that grades, to be shown to users."""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

WRITTEN_EVERY_S = 0.5


class Progress(NamedTuple):
    """How far a grade is."""

    done: int
    """Items with a result."""
    total: int
    answers: int
    """Answers of the model. An item of an interactive task takes many."""
    most_answers: int
    """About the most answers that all items can take."""

    @property
    def most_answers_left(self) -> int:
        """About the most answers that the items without a result can still take."""
        return min(self.most_answers - self.answers, self.most_answers * (self.total - self.done) // max(1, self.total))


OnProgress = Callable[[Progress], None]
"""Called repeatedly while a grade lasts."""


def ignore_progress(_: Progress) -> None:
    """Shows nothing."""


class ProgressFile:
    """Counts, and writes the numbers to the file now and then."""

    def __init__(self, result: Path, total: int, steps: int) -> None:
        """Begins to count.

        Args:
            result: The result of the grade.
            total: The number of its items.
            steps: The most answers that an item takes.
        """
        self._file = progress_path(result)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._done, self._answers, self._total, self._most_answers = 0, 0, total, total * steps
        self._next_write = 0.0
        self._write()

    def add_item(self) -> None:
        """Counts an item with a result."""
        self._done = min(self._done + 1, self._total)
        self._write()

    def add_answer(self) -> None:
        """Counts an answer of the model."""
        self._answers += 1
        self._write()

    def remove(self) -> None:
        """Removes the file, when the grade is done."""
        self._file.unlink(missing_ok=True)

    def _write(self) -> None:
        if time.monotonic() < self._next_write:
            return
        self._next_write = time.monotonic() + WRITTEN_EVERY_S
        with suppress(OSError):  # on a full disk, there is no progress to be seen, but there is a grade
            self._file.write_text(f"{self._done} {self._total} {self._answers} {self._most_answers}")


def progress_path(result: Path) -> Path:
    """Returns the file with the progress of the grade that writes this result."""
    return result.with_suffix(".progress")


def read_progress(file: Path) -> Progress | None:
    """Reads a file that `progress_path` names; None if the grade has not begun."""
    try:
        done, total, answers, most_answers = map(int, file.read_text().split())
    except (FileNotFoundError, ValueError):  # the file may be incomplete
        return None
    return Progress(done, total, answers, most_answers)


def joint_progress(results: Iterable[Path]) -> Progress | None:
    """Returns the progress of the parts of a grade that have no result yet; None while one of them has not begun."""
    parts = [read_progress(progress_path(result)) for result in results if not result.exists()]
    known = [part for part in parts if part is not None]
    if not known or len(known) < len(parts):
        return None
    return Progress(*map(sum, zip(*known, strict=True)))
