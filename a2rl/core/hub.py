"""Downloads of pinned data set files, from the Hugging Face hub or from a release on GitHub."""

import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from pydantic import Field

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import MACHINE_ERRORS, StrictModel, file_digest, machine_failure
from a2rl.core.settings import Settings
from a2rl.core.urls import require_proxies

READ_TIMEOUT_S = 60.0
"""Maximum time without any data from the host."""
TIMEOUT_S = 2 * 3600.0
"""Maximum time for one file."""
STALE_AFTER_S = 24 * 3600.0
MIRROR = "a local mirror (--source)"
REMEDY = f"check the network, or give {MIRROR}"


class DataSource(StrictModel):
    """The pinned source of the full variant's data."""

    host: Literal["hub", "github"] = "hub"
    """hub: a data set on the Hugging Face hub; github: files of a release."""
    repo_id: str
    revision: str
    """A commit on the hub, the tag of a release on GitHub."""
    files: tuple[str, ...]
    sha256: dict[str, str] = Field(default_factory=dict)
    """Known digests (hex) by file name: a file with another digest is refused."""
    url: str
    licence: str


def download(source: DataSource, name: str) -> Path:
    """Returns the local path of one file of a data set, downloading it if necessary.

    Raises:
        UsageError: The repository or revision does not exist, or needs a login, or the user's proxy cannot be used.
        InfrastructureError: The host is unreachable or too slow, or sends a file that differs from the pinned one.
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
        raise machine_failure(f"keep {target}", error) from error
    return target


def _fetch(url: str, incoming: Path) -> None:
    import httpx

    require_proxies(Settings.load().environ)
    deadline = time.monotonic() + TIMEOUT_S
    try:
        with (
            httpx.stream("GET", url, follow_redirects=True, timeout=READ_TIMEOUT_S) as reply,
            incoming.open("xb") as file,
        ):
            reply.raise_for_status()
            for block in reply.iter_bytes():
                file.write(block)
                if time.monotonic() > deadline:
                    raise InfrastructureError(f"{url} took longer than {TIMEOUT_S / 3600:.0f} h: {REMEDY}")
    except httpx.HTTPError as error:
        raise InfrastructureError(f"{url} cannot be fetched ({_in_short(error)}): {REMEDY}") from error


def _in_short(error: Exception) -> str:
    status = getattr(getattr(error, "response", None), "status_code", "")
    return f"{type(error).__name__} {status}".rstrip()


def _sweep(target: Path) -> None:
    """Removes partial files of downloads that were killed."""
    for left in target.parent.glob(f".{target.name}.*"):
        if time.time() - left.stat().st_mtime > STALE_AFTER_S:
            left.unlink(missing_ok=True)


def _checked(source: DataSource, name: str, path: Path) -> Path:
    """Returns the path if the file has the pinned digest or none is pinned; else removes the file and raises."""
    pinned = source.sha256.get(name)
    if pinned is not None and (found := file_digest(path)) != pinned:
        path.resolve().unlink(missing_ok=True)
        raise InfrastructureError(
            f"{name} of {source.repo_id} is not the pinned file (SHA-256 {found[:16]}..., not {pinned[:16]}...): it "
            f"was removed; try again, or give {MIRROR}"
        )
    return path


def _from_hub(source: DataSource, name: str) -> Path:
    from huggingface_hub import hf_hub_download

    with hub_errors(source.repo_id):
        path = hf_hub_download(
            source.repo_id, name, repo_type="dataset", revision=source.revision, etag_timeout=READ_TIMEOUT_S
        )
    return _checked(source, name, Path(path))


@contextmanager
def hub_errors(repo_id: str, instead: str = MIRROR) -> Iterator[None]:
    """Translates the errors of a download from the hub.

    Args:
        instead: What a user may give if the hub cannot be reached.

    Raises:
        UsageError: The repository or revision does not exist, or needs a login, or the user's proxy cannot be used.
        InfrastructureError: The hub is unreachable, or its files cannot be stored.
    """
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except (RepositoryNotFoundError, RevisionNotFoundError, HFValidationError) as error:
        raise UsageError(
            f"the hub has no {repo_id!r} in this revision, or it needs a login: check the id, or set HF_TOKEN"
        ) from error
    except Exception as error:  # the hub client's exception types change with its version and its HTTP library's
        if isinstance(error, OSError) and error.errno in MACHINE_ERRORS:
            raise machine_failure(f"keep {repo_id}", error) from error
        require_proxies(Settings.load().environ)  # it knows only that something failed
        raise InfrastructureError(
            f"the hub cannot be reached for {repo_id} ({_in_short(error)}): check the network, or give {instead}"
        ) from error
