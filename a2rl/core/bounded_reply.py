"""Reads the body of an HTTP reply from a server that may send too much, or too slowly, or without end.

    with client.stream("GET", url) as response:
        body = read_body(response.iter_bytes(), max_bytes=4 << 20, timeout_s=10.0)

An HTTP client's timeout is that of one read: a server that sends a byte now and then would never exceed it.
"""

import time
from collections.abc import Iterable

from a2rl.core.retries import RetryableError


def read_body(blocks: Iterable[bytes], max_bytes: int, timeout_s: float) -> bytes:
    """Returns the whole body.

    Args:
        blocks: The pieces of the body.
        max_bytes: The largest body.
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
