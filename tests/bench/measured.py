"""What a measurement gives, and the clocks that it uses."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from a2rl.core.settings import Settings


class Row(NamedTuple):
    """A figure."""

    measured: str
    figure: str


def mirror_of(task: str, settings: Settings) -> Path | None:
    """Returns the folder with the real data of a task, if it lies beside the checkout."""
    folder = settings.root.parent / "shared" / "data" / task
    return folder if folder.is_dir() else None


def seconds(work: Callable[[], object]) -> float:
    """Returns how long this takes by the clock."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def processor_seconds(work: Callable[[], object]) -> float:
    """Returns the processor seconds that this process needs for it."""
    started = time.process_time()
    work()
    return time.process_time() - started
