"""The disk space that a run takes for checkpoints."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.run.rules import MAX_WAITING, TYPICAL_SUBMISSIONS
from a2rl.run.spec import RunSettings

MARGIN = 512 << 20
"""Space for data and logs, and for a grader that refuses to fill the disk."""
WORKING = 2
"""Checkpoints besides those that are kept: one that the agent saves, and one that is copied."""


class DiskNeed(NamedTuple):
    """What a run takes, if its checkpoints are as large as its base model."""

    kept: int
    """The most checkpoints that the grader keeps at the same time."""
    bytes: int

    def __str__(self) -> str:
        """The need as people read it."""
        return f"{format_bytes(self.bytes)} for {self.kept} submissions and {WORKING} checkpoints in the making"


def most_kept(settings: RunSettings) -> int:
    """Returns the most checkpoints that the grader keeps at the same time.

    A run without a limit on submissions is expected to make a typical number. Unless all are kept, these are the best
    and those that wait for a grade.
    """
    submissions = _submissions(settings)
    return submissions if settings.keep == "all" else min(submissions, 1 + MAX_WAITING)


def _submissions(settings: RunSettings) -> int:
    return settings.max_submissions or TYPICAL_SUBMISSIONS


def disk_need(settings: RunSettings, model_bytes: int) -> DiskNeed:
    """Returns what a run takes.

    Args:
        model_bytes: The size of the base model's weights.
    """
    kept = most_kept(settings)
    return DiskNeed(kept, (kept + WORKING) * model_bytes + MARGIN)


def disk_of_suite(runs: Sequence[tuple[RunSettings, int]], concurrency: int) -> int:
    """Returns the bytes that runs take together: what each keeps for good, and what those at work take besides.

    An agent is expected to leave in its workspace what it submits.

    Args:
        runs: The settings of each run, and the size of its base model's weights.
        concurrency: How many of them are at work at a time.
    """
    kept = [size * {"all": most_kept(settings), "best": 1, "none": 0}[settings.keep] for settings, size in runs]
    whole = [disk_need(settings, size).bytes - MARGIN for settings, size in runs]
    at_work = sorted((all_of_it - stays for all_of_it, stays in zip(whole, kept, strict=True)), reverse=True)
    left = sum(size * _submissions(settings) for settings, size in runs)
    return sum(kept) + left + sum(at_work[:concurrency]) + MARGIN


def suite_shortage(runs: Sequence[tuple[RunSettings, int]], concurrency: int, place: Path) -> str:
    """Says what to do if the checkpoints of several runs may not fit together; empty if they do.

    It is no reason to refuse them: agents may submit less, and space may be freed meanwhile. A run that does not fit
    when its turn comes is refused then.

    Args:
        runs: As in `disk_of_suite`.
        place: A folder on the disk of the runs.
    """
    free, need = shutil.disk_usage(place).free, disk_of_suite(runs, concurrency)
    if len(runs) < 2 or need <= free:
        return ""
    fewer = disk_of_suite([(each.model_copy(update={"keep": "best"}), size) for each, size in runs], concurrency)
    way = f", or use --keep best ({format_bytes(fewer)})" if fewer <= free else ""
    return (
        f"the checkpoints of these {len(runs)} runs take up to {format_bytes(need)}, and {format_bytes(free)} are "
        f"free, so later runs may be refused: free some space{way}"
    )


def disk_of_runs(settings: Settings) -> Path:
    """Returns a folder on the disk of the runs, which may be another one than that of the checkout."""
    return settings.runs if settings.runs.exists() else settings.root


def check_disk(settings: RunSettings, size: int, place: Path) -> str:
    """Refuses a run whose checkpoints would not fit.

    Args:
        size: The number of bytes of its base model's weights.

    Returns:
        What the run takes, in words.

    Raises:
        UsageError: They would not fit; the message says what would.
    """
    free = shutil.disk_usage(place).free
    need = disk_need(settings, size)
    if need.bytes <= free:
        return f"{need}; {format_bytes(free)} are free"
    fewer = disk_need(settings.model_copy(update={"keep": "best"}), size)
    ways = [f"--keep best ({format_bytes(fewer.bytes)})"] if fewer.bytes <= free else []
    most = (free - MARGIN) // size - WORKING if size else 0
    ways += [f"--max-submissions {most}"] if 0 < most < need.kept else []
    raise UsageError(
        f"the checkpoints of this run do not fit on the disk: the base model has {format_bytes(size)}, so it takes "
        f"{need}, and {format_bytes(free)} are free. Free some space{''.join(f', or use {way}' for way in ways)}"
    )


def check_download(model: str, size: int) -> None:
    """Refuses a model whose files would not fit into the cache of the hub.

    Args:
        model: The hub's id of the model.

    Raises:
        UsageError: They would not fit.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    cache = Path(HF_HUB_CACHE)
    free = shutil.disk_usage(next(folder for folder in (cache, *cache.parents) if folder.exists())).free
    if size + MARGIN > free:
        raise UsageError(
            f"{model} has {format_bytes(size)}, which do not fit into {cache}, where {format_bytes(free)} are free: "
            "free some space, or set HF_HOME to a folder on another disk"
        )


def format_bytes(size: float) -> str:
    """Formats a size for people: 3_420_000 -> 3.4 MB, 15_200_000_000 -> 15.2 GB."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e8 else f"{size / 1e6:.1f} MB"
