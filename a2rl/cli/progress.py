"""Progress of long work: a bar on a terminal, or a line from time to time if the output goes to a file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from a2rl.cli.console import err
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

    def line(self, what: str, done: int, total: int) -> str:
        """Returns what is to be said now, such as "still grading submission 2: 9 of 99 items"; often nothing."""
        now = self._now()
        if now < self._said + EVERY_S:
            return ""
        self._said = now
        return f"still {what}: {done} of {total} items{self._left(done, total, now - self._began)}"

    def _left(self, done: int, total: int, seconds: float) -> str:
        newly = done - self._done
        if newly <= 0:
            return f", none of them in the last {format_duration(seconds)}" if done else ""
        if newly < SHARE_THAT_TELLS * total:
            return ""
        return f", about {format_duration(max(1.0, (total - done) * seconds / newly))} left"


@contextmanager
def progress_bar(description: str) -> Iterator[Callable[[int, int], None]]:
    """Shows progress on stderr: a bar, which disappears at the end, or a line from time to time if it is a file.

    Yields:
        A function to call repeatedly with the number of items that are done and the total number.
    """
    if not err.is_terminal:
        yield _lines(description)
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(SpinnerColumn(), *columns, console=err, transient=True) as progress:
        bar = progress.add_task(description, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


@contextmanager
def byte_bar(description: str) -> Iterator[Callable[[str, int, int], None]]:
    """Shows a progress bar of a download on stderr, which disappears at the end.

    Yields:
        A function to call with what is being done, the number of bytes that have arrived and the total number.
    """
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(SpinnerColumn(), *columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        bar = progress.add_task(description, total=None)
        yield lambda what, done, total: progress.update(bar, description=what, completed=done, total=total)


def _lines(description: str) -> Callable[[int, int], None]:
    work = LongWork()

    def show(done: int, total: int) -> None:
        if line := work.line(description, done, total):
            err.print(line, soft_wrap=True)

    return show
