"""Progress of long work: a bar on a terminal, or a line from time to time if the output goes to a file."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as Bar

from a2rl.cli.console import err
from a2rl.grading.outputs import OnProgress, Progress, read_progress
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir

EVERY_S = 30.0
SHARE_THAT_TELLS = 0.05
"""The share of the items, or of their answers, after which the rest is estimated: many are worked on at a time."""
NOTHING = Progress(0, 0, 0, 0)


class LongWork:
    """Says from time to time how far work on items is."""

    def __init__(self, before: Progress = NOTHING, now: Callable[[], float] = time.monotonic) -> None:
        """Args: before: What was done at the beginning."""
        self._now = now
        self._before = before
        self._began = self._shown_at = now()

    def line(self, what: str, progress: Progress) -> str:
        """Returns what is to be shown now, such as "still grading submission 2: 9 of 99 items"; often nothing."""
        now = self._now()
        if now < self._shown_at + EVERY_S:
            return ""
        self._shown_at = now
        text = f"still {what}: {progress.done} of {progress.total} items{_answers(progress)}"
        return ", ".join(filter(None, [text, self.left(progress) or self._stuck(progress)]))

    def left(self, progress: Progress) -> str:
        """Returns how much time the rest will take, such as "about 9m left"; nothing if it is too early to tell.

        The episodes of an interactive task begin together, and most of them end together. Until then, how many have
        ended says little, but the limit of their steps says how many answers are left.
        """
        done, answers = progress.done - self._before.done, progress.answers - self._before.answers
        ratios = []
        if done and done >= SHARE_THAT_TELLS * progress.total:
            ratios.append((progress.total - progress.done) / done)
        if _is_interactive(progress) and answers >= SHARE_THAT_TELLS * progress.most_answers:
            ratios.append(progress.most_answers_left / answers)
        if not ratios:
            return ""
        return f"about {format_duration(max(1.0, min(ratios) * (self._now() - self._began)))} left"

    def _stuck(self, progress: Progress) -> str:
        """Returns how long nothing has been done, if something was done before."""
        is_moving = progress.done > self._before.done or progress.answers > self._before.answers
        if is_moving or not progress.done:
            return ""
        return f"none of them in the last {format_duration(self._now() - self._began)}"


@contextmanager
def progress_bar(description: str) -> Iterator[OnProgress]:
    """Shows progress on stderr: a bar, which disappears at the end, or a line from time to time if it is a file.

    Yields:
        A function to call repeatedly with how far the grade is.
    """
    work = LongWork()
    if not err.is_terminal:
        yield lambda progress: _say(work.line(description, progress))
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
    with Bar(SpinnerColumn(), *columns, TextColumn("{task.fields[left]}"), console=err, transient=True) as bar:
        task = bar.add_task(description, total=None, left="")
        yield lambda progress: bar.update(
            task,
            description=f"{description}{_answers(progress)}",
            completed=progress.done,
            total=progress.total,
            left=work.left(progress),
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


def _is_interactive(progress: Progress) -> bool:
    return progress.most_answers > progress.total


def _answers(progress: Progress) -> str:
    """Returns a phrase with the number of the model's answers if items take several."""
    return f", {progress.answers:,} answers" if _is_interactive(progress) else ""


def _say(line: str) -> None:
    if line:
        err.print(line, soft_wrap=True)


class GradingProgress:
    """Watches the progress files of runs."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._watched: dict[Path, LongWork] = {}

    def lines(self, run: RunDir, submissions: Mapping[str, str]) -> list[str]:
        """Returns what is to be shown now.

        Args:
            submissions: What to call the submissions of a checkpoint, by the name of its folder.
        """
        found = {path: read_progress(path) for path in run.grades.glob("*.progress")}
        for path in [path for path in self._watched if path.parent == run.grades and path not in found]:
            del self._watched[path]
        lines = [self._line(path, progress, submissions) for path, progress in found.items() if progress]
        return list(filter(None, lines))

    def _line(self, path: Path, progress: Progress, submissions: Mapping[str, str]) -> str:
        work = self._watched.setdefault(path, LongWork(progress, self._now))
        return work.line(f"grading {_what(path.stem, submissions)}", progress)


def _what(name: str, submissions: Mapping[str, str]) -> str:
    digest, _, split = name.rpartition("-")
    if digest == "baseline":
        return "the base model"
    if split == "private":
        return "the best submission on the held-out items"
    return submissions.get(digest, "a submission")
