"""What attacks need outside, to look at what is left."""

import os
from typing import Any

from a2rl.settings import Settings


def settings_of(after: Any) -> Settings:
    """Of the checkout that a run lies in."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return Settings(after.run.root.parents[1], kept)
