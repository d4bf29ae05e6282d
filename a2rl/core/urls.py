"""Checks of URLs and hosts that users give."""

import ipaddress
import re
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from a2rl.core.errors import UsageError
from a2rl.core.settings import PROXIES

HTTPS_PORT = 443
PORTS = {"http": 80, "https": HTTPS_PORT}
HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?")


def endpoint(host: str) -> tuple[str, int]:
    """Parses `example.org` or `example.org:8443` into host and port.

    Raises:
        ValueError: It is not a valid host.
    """
    parts = urlsplit(f"//{host}")
    if not parts.hostname:
        raise ValueError(f"{host!r} is not a valid host")
    return parts.hostname.lower(), parts.port or HTTPS_PORT


def require_other_host(name: str) -> None:
    """Refuses what is not one host, and this machine, where the services of the pipeline listen.

    Raises:
        UsageError: It is not `mirror.example`, `10.0.0.5:8080` or the like.
    """
    no_host = UsageError(f"{name!r} is not a single host: write for example mirror.example or 10.0.0.5:8080")
    try:
        host, _ = endpoint(name)
    except ValueError as error:
        raise no_host from error
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        if not HOST.fullmatch(host) or any(mark in name for mark in "/@?#"):
            raise no_host from None
        local = host == "localhost" or host.endswith(".localhost")
    else:
        mapped = getattr(address, "ipv4_mapped", None) or address
        local = any((mapped.is_loopback, mapped.is_unspecified, mapped.is_link_local, mapped.is_multicast))
    if local:
        raise UsageError(f"{name!r} is this machine, where services listen that an agent must not reach")


def api_address(url: str) -> tuple[str, int, str]:
    """Returns host, port and path of the URL of an LLM's API.

    Raises:
        UsageError: It is not a valid URL, or contains a password or a query.
    """
    refuse_credentials(url, "the LLM URL")
    invalid = UsageError(f"{url!r} is not a valid LLM URL: write for example http://127.0.0.1:8080")
    try:
        parts = urlsplit(url)
        port = parts.port or PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise invalid from error
    if parts.scheme not in PORTS or not parts.hostname or re.search(r"[^\w.:-]", parts.hostname) or parts.fragment:
        raise invalid
    return parts.hostname, port, parts.path.rstrip("/")


def proxy_for(url: str) -> SplitResult | None:
    """Returns the user's proxy for a URL; None if it is reached directly."""
    parts, proxies = urlsplit(url), getproxies_environment()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc):
        return None
    return urlsplit(proxy if "://" in proxy else f"http://{proxy}")


def require_proxies(environ: Mapping[str, str]) -> str:
    """Returns which variables name a proxy; empty if there is none.

    Raises:
        UsageError: One of them is no HTTP proxy, or what is excepted from it cannot be read.
    """
    found = {name: environ[name] for name in (*PROXIES, *map(str.lower, PROXIES)) if environ.get(name)}
    excepted = ",".join(found.pop(name, "") for name in ("NO_PROXY", "no_proxy"))
    for name, url in found.items():
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            is_usable = parts.scheme in PORTS and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_usable = False
        if not is_usable:  # it may contain a password, so it is not shown
            raise UsageError(
                f"{name} is not the URL of an HTTP proxy, and a2rl uses no other kind: correct or unset it"
            )
    for host in map(str.strip, excepted.split(",")):
        if "[" in host or (host.count(":") > 1 and "/" in host):
            raise UsageError(f"NO_PROXY has {host}: write an IPv6 address without a port or a network, or leave it out")
    return ", ".join(found)


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
