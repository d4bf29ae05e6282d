"""Progress of long work: a bar on a terminal, or a line from time to time if the output goes to a file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from a2rl.cli.console import err
from a2rl.grading.progress import OnProgress, Progress
from a2rl.run.budget import format_duration

EVERY_S = 30.0
SHARE_THAT_TELLS = 0.05
"""The share of the items that must be done before the rest is estimated: many are answered at the same time."""


class LongWork:
    """Says from time to time how far work on items is."""

    def __init__(self, done: int = 0, now: Callable[[], float] = time.monotonic) -> None:
        """Args: done: The number of items that were done at the beginning."""
        self._now = now
        self._done = done
        self._began = self._said = now()

    def line(self, what: str, progress: Progress) -> str:
        """Returns what is to be said now, such as "still grading submission 2: 9 of 99 items"; often nothing."""
        now = self._now()
        if now < self._said + EVERY_S:
            return ""
        self._said = now
        done, total, _ = progress
        return f"still {what}: {done} of {total} items{_answers(progress)}{self._left(done, total, now - self._began)}"

    def _left(self, done: int, total: int, seconds: float) -> str:
        newly = done - self._done
        if newly <= 0:
            return f", none of them in the last {format_duration(seconds)}" if done else ""
        if newly < SHARE_THAT_TELLS * total:
            return ""
        return f", about {format_duration(max(1.0, (total - done) * seconds / newly))} left"


@contextmanager
def progress_bar(description: str) -> Iterator[OnProgress]:
    """Shows progress on stderr: a bar, which disappears at the end, or a line from time to time if it is a file.

    Yields:
        A function to call repeatedly with how far the grade is.
    """
    if not err.is_terminal:
        yield _lines(description)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(SpinnerColumn(), *columns, console=err, transient=True) as bar:
        task = bar.add_task(description, total=None)
        yield lambda progress: bar.update(
            task, description=f"{description}{_answers(progress)}", completed=progress.done, total=progress.total
        )


@contextmanager
def byte_bar(description: str) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a progress bar of a download on stderr, which disappears at the end.

    Yields:
        A function to call with what is being done, the number of bytes that have arrived and the total number.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(SpinnerColumn(), *columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(description, total=None)
        yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total)


def _answers(progress: Progress) -> str:
    """Returns a phrase with the number of the model's answers if items take several."""
    return f", {progress.answers:,} answers" if progress.answers > progress.total else ""


def _lines(description: str) -> OnProgress:
    work = LongWork()

    def show(progress: Progress) -> None:
        if line := work.line(description, progress):
            err.print(line, soft_wrap=True)

    return show
