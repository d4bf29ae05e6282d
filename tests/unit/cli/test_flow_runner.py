"""Tests how a command runs a flow: its embedded Prefect server, and how it is stopped."""

import os
import shutil
import signal
from collections.abc import Iterator

import httpx
import psutil
import pytest

from a2rl.cli.flow_runner import STOPPING, embedded_server, end_once
from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.heavy
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


def test_a_second_ctrl_c_does_not_cut_the_end_short(capfd: pytest.CaptureFixture[str]) -> None:
    before = [signal.getsignal(number) for number in STOPPING]
    try:
        end_once()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)
        assert capfd.readouterr().err.count("takes some seconds") == 2
    finally:
        for number, handler in zip(STOPPING, before, strict=True):
            signal.signal(number, handler)


def test_a_full_disk_is_said_at_once(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(1 << 30, 1 << 30, 4096))
    with pytest.raises(InfrastructureError, match=r"0\.0 MB left.*free some disk space"), embedded_server(settings):
        pass
