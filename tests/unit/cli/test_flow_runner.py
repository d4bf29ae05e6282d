"""Tests the embedded Prefect server of a command."""

import os
import shutil
from collections.abc import Iterator

import httpx
import psutil
import pytest

from a2rl.cli.flow_runner import embedded_server
from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def test_a_killed_embedded_server_is_replaced(
    settings: Settings,
) -> None:
    """The last one ends with the command."""

    def servers() -> list[psutil.Process]:
        return [child for child in psutil.Process().children() if "flows.server" in child.cmdline()]

    with embedded_server(settings) as wait_until_ready:
        wait_until_ready()
        [server] = servers()
        server.kill()
        health = f"{os.environ['PREFECT_API_URL']}/health"
        assert httpx.get(health, timeout=60).json() is True
        [other] = servers()
        assert other.pid != server.pid
    assert not servers()


def test_a_full_disk_is_said_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 4096))
    with pytest.raises(InfrastructureError, match=r"0\.0 MB left.*free some disk space"), embedded_server(settings):
        pass
