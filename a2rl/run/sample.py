"""Samples of an eval set: which sizes are allowed, and the remark that stands wherever a sample's figures do."""

from a2rl.core.errors import UsageError
from a2rl.run.directory import RunDir
from a2rl.run.records import SetupRecord


def check_limit(limit: int, items: int, task: str, halved: bool) -> None:
    """Checks the size of a sample.

    Args:
        limit: The number of items in the sample.
        items: The number of items in the eval set.
        task: The id of the task.
        halved: Whether the sample is divided into two halves.

    Raises:
        UsageError: The sample has too many or too few items.
    """
    if limit > items:
        raise UsageError(
            f"--limit {limit:,} is more than the {items:,} items of {task}: leave it out for the whole eval set"
        )
    if halved and limit < 2:
        raise UsageError(
            f"--limit {limit} leaves no items for one of the two halves of {task}: give at least 2, or --protocol paper"
        )


def in_words(limit: int | None, items: int | None) -> str:
    """Returns the remark for a sample, such as `sample of 64 of 1,319`; empty for a whole eval set.

    Args:
        limit: The number of items in the sample; None: all.
        items: The number of items in the eval set; None: unknown.
    """
    if limit is None or limit == items:
        return ""
    return f"sample of {limit:,}" + ("" if items is None else f" of {items:,}")


def sample_note(run: RunDir) -> str:
    """Returns the remark that belongs next to a run's figures wherever they are shown; empty for a whole eval set."""
    ready = run.read("setup", SetupRecord)
    return in_words(run.spec.limit, ready.eval_items if ready else None)
