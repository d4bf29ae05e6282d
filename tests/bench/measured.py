"""What a measurement gives, and the clocks that it uses."""

import time
from collections.abc import Callable
from typing import NamedTuple


class Row(NamedTuple):
    """A figure."""

    measured: str
    figure: str


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
