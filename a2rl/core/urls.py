"""Checks of URLs and hosts that users give."""

from urllib.parse import urlsplit

from a2rl.core.errors import UsageError

HTTPS_PORT = 443


def endpoint(host: str) -> tuple[str, int]:
    """Parses `example.org` or `example.org:8443` into host and port.

    Raises:
        ValueError: It is not a valid host.
    """
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"{host!r} is not a valid host")
    return parts.hostname.lower(), parts.port or HTTPS_PORT


def refuse_credentials(url: str, name: str) -> None:
    """Refuses URLs with credentials: URLs are recorded in many places, so keys belong in environment variables.

    Args:
        url: The URL to check.
        name: Names the URL in the error message.

    Raises:
        UsageError: The URL has a user name, a password or a query, any of which may hold a key.
    """
    if "@" in url.partition("//")[2].partition("/")[0] or "?" in url:
        raise UsageError(
            f"{name} has a user name, a password or a query, and is recorded with the run: put the key into the "
            "environment variable that is meant for it"
        )
