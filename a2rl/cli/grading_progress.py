"""Says from time to time how far the grades of a run are, for grades that take longer than people like to wait."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from a2rl.cli.progress import LongWork
from a2rl.grading.progress import Progress, read_progress
from a2rl.run.directory import RunDir


class GradingProgress:
    """Watches the progress files of runs."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._watched: dict[Path, LongWork] = {}

    def lines(self, run: RunDir, submissions: Mapping[str, str]) -> list[str]:
        """Returns what is to be said now.

        Args:
            run: The run.
            submissions: What to call the submissions of a checkpoint, by the name of its folder.
        """
        found = {path: read_progress(path) for path in run.grades.glob("*.progress")}
        for path in [path for path in self._watched if path.parent == run.grades and path not in found]:
            del self._watched[path]
        said = [self._line(path, progress, submissions) for path, progress in found.items() if progress]
        return [line for line in said if line]

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
