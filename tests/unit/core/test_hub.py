"""Tests downloads: the complete pinned file, or one clear error and no leftover files."""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2rl.core import hub
from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.hub import DataSource, download, hub_errors
from a2rl.core.settings import Settings
from a2rl.models.base_model import resolve_model
from tests.http_server import Quiet, serving

CONTENT = b"the data" * 50_000
DIGEST = hashlib.sha256(CONTENT).hexdigest()


class Release(Quiet):
    """A server with several faults to choose from."""

    mood = "well"
    asked = 0

    def respond(self) -> None:
        type(self).asked += 1
        content = {"cut": CONTENT[:1000], "other": CONTENT[::-1]}.get(self.mood, CONTENT)
        self.say(content, status=500 if self.mood == "broken" else 200, **{"Content-Length": str(len(CONTENT))})


@pytest.fixture
def release(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Release]]:
    """A release on a local server; downloads go into a checkout of the test."""
    monkeypatch.setattr(Release, "mood", "well")
    monkeypatch.setattr(Release, "asked", 0)
    stream = httpx.stream

    def here(method: str, url: str, **options: Any) -> Any:
        return stream(method, url.replace("https://github.com", address), **options)

    monkeypatch.setattr(httpx, "stream", here)
    monkeypatch.setattr(Settings, "load", classmethod(lambda cls: settings))
    with serving(Release) as address:
        yield Release


def source(**changes: Any) -> DataSource:
    fields = {"host": "github", "repo_id": "a/b", "revision": "v1", "files": ("f.zip",), "url": "", "licence": ""}
    return DataSource.model_validate({**fields, "sha256": {"f.zip": DIGEST}, **changes})


def downloads(settings: Settings) -> list[str]:
    return [path.name for path in (settings.root / "data/downloads").rglob("*") if path.is_file()]


def test_a_file_is_fetched_once_and_checked(release: type[Release], settings: Settings) -> None:
    assert download(source(), "f.zip").read_bytes() == CONTENT
    download(source(), "f.zip")
    assert release.asked == 1
    assert downloads(settings) == ["f.zip"]


@pytest.mark.parametrize(
    ("mood", "says"),
    [("cut", "cannot be fetched"), ("broken", "HTTPStatusError 500"), ("other", "not the pinned file")],
)
def test_an_incomplete_download_is_one_error_and_leaves_nothing(
    release: type[Release], settings: Settings, mood: str, says: str
) -> None:
    release.mood = mood
    with pytest.raises(InfrastructureError, match=says):
        download(source(), "f.zip")
    assert downloads(settings) == []


def test_a_stored_file_other_than_the_pinned_one_is_fetched_anew(release: type[Release], settings: Settings) -> None:
    path = download(source(), "f.zip")
    path.write_bytes(b"damaged")
    with pytest.raises(InfrastructureError, match="removed; try again"):
        download(source(), "f.zip")
    assert download(source(), "f.zip").read_bytes() == CONTENT


def test_downloads_side_by_side_share_nothing_but_the_result(release: type[Release], settings: Settings) -> None:
    with ThreadPoolExecutor(6) as pool:
        paths = list(pool.map(lambda _: download(source(), "f.zip"), range(6)))
    assert {path.read_bytes() for path in paths} == {CONTENT}
    assert downloads(settings) == ["f.zip"]


def test_a_host_that_drips_is_given_up(release: type[Release], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "TIMEOUT_S", -1.0)
    with pytest.raises(InfrastructureError, match="took longer"):
        download(source(), "f.zip")


def test_whatever_the_hubs_library_raises_is_one_error_of_ours() -> None:
    import httpx2  # the HTTP library that the hub's library uses

    for error in (httpx2.ConnectError("no route"), OSError("odd"), RuntimeError("odd"), TimeoutError()):
        with pytest.raises(InfrastructureError, match="hub cannot be reached for a/b"), hub_errors("a/b"):
            raise error
    with pytest.raises(InfrastructureError, match="free some disk space"), hub_errors("a/b"):
        raise OSError(28, "No space left on device")


def test_a_hub_id_that_cannot_be_one_is_the_users_mistake(settings: Settings) -> None:
    with pytest.raises(UsageError, match="check the id"):
        resolve_model("a--b/..c", settings)


def test_an_unreachable_host_is_one_error(settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def unreachable(*_: Any, **__: Any) -> Any:
        raise httpx.ConnectError("no route to host")

    monkeypatch.setattr(httpx, "stream", unreachable)
    monkeypatch.setattr(Settings, "load", classmethod(lambda cls: settings))
    with pytest.raises(InfrastructureError, match=r"ConnectError.*check the network"):
        download(source(), "f.zip")
