"""Files of data sets by pinned revision: from the Hugging Face hub, or from a release on GitHub."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from a2rl.errors import InfrastructureError, UsageError
from a2rl.files import OURS, cannot, file_digest
from a2rl.settings import Settings
from a2rl.task import DataSource

SILENCE_S = 60.0
"""So long a host may say nothing."""
TIMEOUT_S = 2 * 3600.0
"""Of one file."""
STALE_S = 24 * 3600.0
OR_MIRROR = "check the network, or give a local mirror (--source)"


def download(source: DataSource, name: str) -> Path:
    """The local path of one file of a data set, as downloaded before or fetched now.

    Raises:
        InfrastructureError: the host cannot be reached, takes too long, or sends another file than the pinned one.
    """
    return _from_hub(source, name) if source.host == "hub" else _from_github(source, name)


def _from_github(source: DataSource, name: str) -> Path:
    target = Settings.load().root / "data" / "downloads" / source.repo_id / source.revision / name
    if target.is_file():
        return _checked(source, name, target)
    url = f"https://github.com/{source.repo_id}/releases/download/{source.revision}/{name}"
    incoming = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _sweep(target)
        try:
            _fetch(url, incoming)
            _checked(source, name, incoming)
            incoming.replace(target)
        finally:
            incoming.unlink(missing_ok=True)
    except OSError as error:
        raise cannot(f"keep {target}", error) from error
    return target


def _fetch(url: str, incoming: Path) -> None:
    import httpx

    deadline = time.monotonic() + TIMEOUT_S
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=SILENCE_S) as reply, incoming.open("xb") as file:
            reply.raise_for_status()
            for block in reply.iter_bytes():
                file.write(block)
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"{url} took longer than {TIMEOUT_S / 3600:.0f} h: {OR_MIRROR}")
    except httpx.HTTPError as error:
        raise InfrastructureError(f"{url} cannot be fetched ({_in_short(error)}): {OR_MIRROR}") from error


def _in_short(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", "")
    return f"{type(error).__name__} {status}".rstrip()


def _sweep(target: Path) -> None:
    """Removes parts that downloads left which were killed."""
    for left in target.parent.glob(f".{target.name}.*"):
        if time.time() - left.stat().st_mtime > STALE_S:
            left.unlink(missing_ok=True)


def _checked(source: DataSource, name: str, path: Path) -> Path:
    """The file, if its bytes are the pinned ones or none are pinned; else it is removed, so that it is fetched anew."""
    pinned = source.sha256.get(name)
    if pinned is not None and (found := file_digest(path)) != pinned:
        path.resolve().unlink(missing_ok=True)
        raise InfrastructureError(
            f"{name} of {source.repo_id} is not the pinned file (SHA-256 {found[:16]}..., not {pinned[:16]}...): it "
            "was removed; try again, or give a local mirror (--source)"
        )
    return path


def _from_hub(source: DataSource, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    with reaching_hub(source.repo_id):
        path = hf_hub_download(
            source.repo_id, name, repo_type="dataset", revision=source.revision, etag_timeout=SILENCE_S
        )
    return _checked(source, name, Path(path))


@contextmanager
def reaching_hub(repo_id: str) -> Iterator[None]:
    """Around a download from the hub.

    Raises:
        UsageError: there is no such thing on the hub, or not without a login.
        InfrastructureError: it cannot be reached, or what it sends cannot be kept.
    """
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise UsageError(
            f"the hub has no {repo_id!r} in this revision, or it needs a login: check the id, or set HF_TOKEN"
        ) from error
    except Exception as error:  # the kinds of its errors change with its version, and with that of its HTTP library
        if isinstance(error, OSError) and error.errno in OURS:
            raise cannot(f"keep {repo_id}", error) from error
        raise InfrastructureError(
            f"the hub cannot be reached for {repo_id} ({_in_short(error)}): {OR_MIRROR}, or a folder with a copy"
        ) from error
