"""Checks of URLs and hosts that users give."""

import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

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


def proxy_for(url: str) -> SplitResult | None:
    """Returns the user's proxy for a URL; None if it is reached directly."""
    parts, proxies = urlsplit(url), getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def require_certificates(environ: Mapping[str, str]) -> str:
    """Returns the user's file of certificates, which every connection needs; empty if there is none.

    Raises:
        UsageError: It cannot be used.
    """
    file = environ.get("SSL_CERT_FILE", "")
    try:
        ssl.create_default_context(cafile=file or None)
    except OSError as error:
        raise UsageError(
            f"SSL_CERT_FILE or REQUESTS_CA_BUNDLE is {file}, which has no certificates ({error.strerror or error}): "
            "correct or unset it"
        ) from error
    return file


def refuse_credentials(url: str, name: str) -> None:
    """Refuses URLs with credentials: URLs are recorded in many places, so keys belong in environment variables.

    Args:
        name: Names the URL in the error message.

    Raises:
        UsageError: The URL has a user name, a password or a query, any of which may hold a key.
    """
    if "@" in url.partition("//")[2].partition("/")[0] or "?" in url:
        raise UsageError(
            f"{name} has a user name, a password or a query, and is recorded with the run: put the key into the "
            "environment variable that is meant for it"
        )
