"""Says from time to time how far the grades of a run are, for grades that take longer than people like to wait."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from a2rl.grading.job import Progress, read_progress_file
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir

EVERY_S = 30.0
SHARE_THAT_TELLS = 0.05
"""The share of the items that must be done before the rest is estimated: many are answered at the same time."""


class _Watched(NamedTuple):
    """When a grade was first seen, and when it was mentioned last."""

    since: float
    done: int
    said: float


class GradingProgress:
    """Watches the progress files of runs."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._watched: dict[Path, _Watched] = {}

    def lines(self, run: RunDir, submissions: Mapping[str, str]) -> list[str]:
        """Returns what is to be said now.

        Args:
            run: The run.
            submissions: What to call the submissions of a checkpoint, by the name of its folder.
        """
        found = {path: read_progress_file(path) for path in run.grades.glob("*.progress")}
        for path in [path for path in self._watched if path.parent == run.grades and path not in found]:
            del self._watched[path]
        said = [self._line(path, progress, submissions) for path, progress in found.items() if progress]
        return [line for line in said if line]

    def _line(self, path: Path, progress: Progress, submissions: Mapping[str, str]) -> str:
        now = self._now()
        seen = self._watched.setdefault(path, _Watched(now, progress.done, now))
        if now < seen.said + EVERY_S:
            return ""
        self._watched[path] = seen._replace(said=now)
        what = _what(path.stem, submissions)
        return f"still grading {what}: {progress.done} of {progress.total} items{_left(seen, progress, now)}"


def _what(name: str, submissions: Mapping[str, str]) -> str:
    digest, _, split = name.rpartition("-")
    if digest == "baseline":
        return "the base model"
    if split == "private":
        return "the best submission on the held-out items"
    return submissions.get(digest, "a submission")


def _left(seen: _Watched, progress: Progress, now: float) -> str:
    newly = progress.done - seen.done
    if newly <= 0:
        return f", none of them in the last {format_duration(now - seen.since)}" if progress.done else ""
    if newly < SHARE_THAT_TELLS * progress.total:
        return ""
    left_s = (progress.total - progress.done) * (now - seen.since) / newly
    return f", about {format_duration(max(1.0, left_s))} left"
