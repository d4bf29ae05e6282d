"""Requests that are made again, later each time, where that may help.

    reply = persist(lambda: request(...), attempts=4, backoff_s=1.0, pause=closing.wait)

A request raises TryAgain for what may pass: a timeout, a broken connection, a reply that is no JSON, and the statuses
of `may_pass`.
"""

import random
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import TypeVar

PASSING = frozenset({408, 409, 429})
LONGEST_WAIT_S = 120.0
"""Between two attempts, also where the endpoint asks for more."""

T = TypeVar("T")


class TryAgain(Exception):
    """A request that failed and may succeed later; its text is the reason."""

    def __init__(self, reason: str, after_s: float = 0.0) -> None:
        super().__init__(reason)
        self.after_s = after_s


def may_pass(status: int) -> bool:
    """Whether an HTTP status is worth another attempt."""
    return status in PASSING or status >= 500


def persist(request: Callable[[], T], attempts: int, backoff_s: float, pause: Callable[[float], bool]) -> T:
    """What the request returns, after as many attempts as it takes and is allowed.

    Args:
        backoff_s: the longest wait before the second attempt; it doubles from attempt to attempt.
        pause: waits so many seconds; True: nobody waits for the answer any more.

    Raises:
        TryAgain: the last attempt's.
    """
    for attempt in range(1, attempts + 1):
        try:
            return request()
        except TryAgain as failure:
            if attempt == attempts:
                raise
            longest = backoff_s * 2 ** (attempt - 1)
            wait_s = max(failure.after_s, random.uniform(longest / 2, longest))
            if pause(min(wait_s, LONGEST_WAIT_S)):
                raise
    raise AssertionError("there is at least one attempt")


def retry_after_s(header: str) -> float:
    """Seconds from a `Retry-After`, which gives seconds or a date; 0 where it gives neither."""
    try:
        return float(header) if header.isdigit() else parsedate_to_datetime(header).timestamp() - time.time()
    except ValueError:
        return 0.0
