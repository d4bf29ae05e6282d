"""Tests how a command runs a flow: its Prefect server, what becomes of the runs without it, and how it is stopped."""

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import psutil
import pytest

from a2rl.cli import flow_runner
from a2rl.cli.flow_runner import STOPPING, embedded_server, end_once, run_flow
from a2rl.core.errors import A2rlError, InfrastructureError, InterruptedByUserError, RunFailedError
from a2rl.core.settings import Settings
from a2rl.results.manifest import changed_files, close_run, read_manifest
from a2rl.run.directory import RunDir
from a2rl.run.events import RunClosed
from a2rl.run.failure import record_failure
from flows import pipeline


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


def test_servers_of_two_commands_start_one_after_the_other(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Slow:
        """A server that takes a moment to start."""

        def __init__(self) -> None:
            self._has_ended = threading.Event()

        @classmethod
        def of_module(cls, *_: object, **__: object) -> "Slow":
            happened.append("begins")
            return cls()

        def is_healthy(self, *_: object) -> bool:
            time.sleep(0.3)
            happened.append("is ready")
            return True

        def wait(self) -> int:
            self._has_ended.wait()
            return 0

        def end(self, _: float) -> bool:
            self._has_ended.set()
            return True

    both_serve = threading.Barrier(2)

    def command(_: int) -> None:
        with embedded_server(settings) as wait_until_ready:
            wait_until_ready()
            both_serve.wait(timeout=60)

    monkeypatch.setattr(flow_runner, "Child", Slow)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(command, range(2)))
    assert happened == ["begins", "is ready"] * 2


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


def ended(run: RunDir) -> RunDir:
    run.record_path("validity").touch()
    run.ledger.append(RunClosed(verdict="improved", failed_stage=None, manifest_digest="m"))
    return run


def fails_while_it_handles(error: BaseException | None) -> Callable[..., None]:
    """Returns a flow whose server is lost when it has ended, or while Prefect handles this error."""

    def flow(**_: object) -> None:
        try:
            if error is not None:
                raise error
        finally:
            raise httpx.ConnectError("the server has gone\nfor ever")

    return flow


@pytest.fixture
def users_own(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setattr(flow_runner, "end_once", lambda: None)
    return Settings(settings.root, {"PREFECT_API_URL": "http://127.0.0.1:9/api"})


def test_a_server_that_is_lost_at_the_end_costs_one_line(
    run: RunDir, users_own: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline, "a2rl", fails_while_it_handles(None))
    run_flow([ended(run)], users_own)
    [_, line] = capsys.readouterr().err.splitlines()
    assert line.startswith("all runs have ended; after that, the flow failed: ConnectError: the server has gone (")


def test_an_error_of_our_own_is_not_said_to_be_prefects(
    run: RunDir, users_own: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a column")

    monkeypatch.setattr(pipeline, "a2rl", lambda **_: monkeypatch.setattr(flow_runner.Follower, "_look", fail))
    run_flow([ended(run)], users_own)
    [_, line] = capsys.readouterr().err.splitlines()
    assert line.startswith("all runs have ended; after that, the flow failed: KeyError: 'a column' (")
    assert "Traceback" in (run.logs / "aside.jsonl").read_text()


def test_a_server_that_is_lost_before_the_end_is_named(
    new_run: Callable[..., RunDir], users_own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "a2rl", fails_while_it_handles(None))
    runs = [ended(new_run(run_id="gsm8k-noop-1")), new_run(run_id="gsm8k-noop-2")]
    with pytest.raises(InfrastructureError, match=r"has gone\. Continue with: a2rl resume gsm8k-noop-2$"):
        run_flow(runs, users_own)
    assert "Traceback" in (runs[1].logs / "pipeline.jsonl").read_text()


def test_a_lost_server_changes_no_run_that_was_closed(
    run: RunDir, users_own: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "a2rl", fails_while_it_handles(None))
    record_failure(run, "execute", InfrastructureError("no GPU"))
    close_run(run)
    with pytest.raises(InfrastructureError, match=f"Continue with: a2rl resume {run.id}$"):
        run_flow([run], users_own)
    manifest = read_manifest(run)
    assert manifest is not None
    assert "logs/pipeline.jsonl" in manifest.files
    assert changed_files(run, manifest) == []
    assert "the server has gone" in (run.logs / "aside.jsonl").read_text()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (RunFailedError("execute: no GPU"), RunFailedError("execute: no GPU")),
        (KeyboardInterrupt(), InterruptedByUserError("stopped; nothing is lost. Continue with: a2rl resume {}")),
    ],
)
def test_a_server_that_is_lost_hides_no_other_end(
    run: RunDir, users_own: Settings, monkeypatch: pytest.MonkeyPatch, error: BaseException, told: A2rlError
) -> None:
    monkeypatch.setattr(pipeline, "a2rl", fails_while_it_handles(error))
    with pytest.raises(type(told)) as raised:
        run_flow([run], users_own)
    assert str(raised.value) == str(told).format(run.id)
