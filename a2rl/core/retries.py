"""HTTP requests that may fail: retries with exponential backoff, and replies within limits.

    reply = retry_request(lambda: request(...), attempts=4, backoff_s=1.0, pause=closing.wait)

A request raises RetryableError for failures that may be temporary: a timeout, a broken connection, a reply that is not
JSON, and the statuses of `is_retryable_status`. No library: the endpoint's `Retry-After` has to be respected, and the
wait has to end early when the caller closes.
"""

import random
import time
from collections.abc import Callable, Iterable
from email.utils import parsedate_to_datetime
from typing import TypeVar

RETRYABLE_STATUSES = frozenset({408, 409, 429})
MAX_WAIT_S = 120.0
"""Maximum wait between two attempts, even if the endpoint asks for more."""

T = TypeVar("T")


class RetryableError(Exception):
    """A request that failed and may succeed later; its text is the reason."""

    def __init__(self, reason: str, after_s: float = 0.0, status: int = 0) -> None:
        """Makes an error for one failed attempt.

        Args:
            after_s: How many seconds the endpoint asks to wait before the next attempt.
            status: The HTTP status of the answer; 0 if there was none.
        """
        super().__init__(reason)
        self.after_s, self.status = after_s, status


def is_retryable_status(status: int) -> bool:
    """Whether an HTTP status is worth another attempt."""
    return status in RETRYABLE_STATUSES or status >= 500


def retry_request(request: Callable[[], T], attempts: int, backoff_s: float, pause: Callable[[float], bool]) -> T:
    """Makes a request and returns its result; repeats the request if it fails with a temporary error.

    Args:
        attempts: The number of attempts before the request counts as failed, at least 1.
        backoff_s: The longest wait before the second attempt; it doubles from attempt to attempt.
        pause: Waits for so many seconds; returns True if the caller no longer waits for the answer.

    Raises:
        RetryableError: The last attempt failed, or the caller no longer waits.
    """
    attempt = 0
    while True:
        attempt += 1
        try:
            return request()
        except RetryableError as error:
            longest_s = backoff_s * 2 ** (attempt - 1)
            wait_s = min(max(error.after_s, random.uniform(longest_s / 2, longest_s)), MAX_WAIT_S)
            if attempt == attempts or pause(wait_s):
                raise


def retry_after_s(header: str) -> float:
    """Returns the seconds to wait that a `Retry-After` header asks for, as a number or a date; 0 if it has neither."""
    try:
        return float(header) if header.isdigit() else parsedate_to_datetime(header).timestamp() - time.time()
    except (ValueError, OverflowError):
        return 0.0


def read_body(blocks: Iterable[bytes], max_bytes: int, timeout_s: float) -> bytes:
    """Returns the whole body of a reply from a server that may send too much, too slowly, or without end.

    The timeout of an HTTP client is that of one read: a server that sends a byte now and then would never exceed it.

    Args:
        timeout_s: The longest time for all pieces together.

    Raises:
        RetryableError: The body is too large or takes too long.
    """
    deadline, body = time.monotonic() + timeout_s, bytearray()
    for block in blocks:
        body += block
        if time.monotonic() > deadline:
            raise RetryableError(f"its reply is not complete after {timeout_s:g} s")
        if len(body) > max_bytes:
            raise RetryableError("its reply is too large")
    return bytes(body)
