"""The remark that stands wherever the figures of a sample of an eval set do."""

from a2rl.run.directory import RunDir
from a2rl.run.records import SetupRecord


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
