"""What an agent's log shows: which method's figures were printed, and how training failed. An agent can print anything,
so that this supports other evidence and counts little alone."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from a2rl.labels.routes import Route

MAX_BYTES = 8 << 20
"""The end of a longer log is read."""
MAX_LINE = 2000
METHODS: dict[Route, re.Pattern[str]] = {
    "DPO": re.compile(r"rewards/(chosen|margins|accuracies)|logps/(chosen|rejected)"),
    "PPO": re.compile(r"objective/(kl|entropy|rlhf_reward)|critic/vf_loss|val/ratio|loss/value"),
    "GRPO": re.compile(r"reward_std|frac_reward_zero_std|completions/mean_length|rewards/\w+/mean"),
    "SFT": re.compile(r"mean_token_accuracy"),
}
DIVERGED = re.compile(r"\b(?:loss|grad_norm|reward)['\"]?\s*(?:[:=]\s*)?['\"]?(?:nan|inf|-inf)\b", re.IGNORECASE)
ERROR = re.compile(
    r"^(?:[\w.]+\.)?(\w*(?:Error|Exception)): ?(.*)|^(Killed|Segmentation fault)|out of memory", re.IGNORECASE
)
NO_REWARD = re.compile(r"['\"]?reward['\"]?\s*(?:[:=]\s*)?['\"]?(-?\d+(?:\.\d+)?)\b")


class Line(NamedTuple):
    """A line of a log."""

    number: int
    text: str


class LogSigns(NamedTuple):
    """What a log shows."""

    methods: dict[Route, Line]
    """The first line with figures of each method."""
    errors: list[Line]
    diverged: Line | None
    flat_reward: Line | None
    """The last reward that was logged, if all of at least five were zero."""


def signs_in(path: Path) -> LogSigns:
    """Reads a log file; a missing one shows nothing."""
    methods: dict[Route, Line] = {}
    errors: list[Line] = []
    rewards: list[tuple[float, Line]] = []
    diverged: Line | None = None
    for line in _lines(path):
        for route, pattern in METHODS.items():
            if route not in methods and pattern.search(line.text):
                methods[route] = line
        if ERROR.search(line.text):
            errors.append(line)
        if diverged is None and DIVERGED.search(line.text):
            diverged = line
        if found := NO_REWARD.search(line.text):
            rewards.append((float(found[1]), line))
    is_flat = len(rewards) >= 5 and all(value == 0 for value, _ in rewards)
    return LogSigns(methods, errors[-20:], diverged, rewards[-1][1] if is_flat else None)


def _lines(path: Path) -> Iterator[Line]:
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            if size > MAX_BYTES:
                file.seek(size - MAX_BYTES)
            for number, raw in enumerate(file, start=1):
                yield Line(number, raw[:MAX_LINE].decode("utf-8", "replace").rstrip())
    except OSError:
        return
