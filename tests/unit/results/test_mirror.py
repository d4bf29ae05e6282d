"""Tests that MLflow is updated in the background: it may be late, but it never delays or fails a run."""

import threading
import time
from queue import SimpleQueue

import pytest

from a2rl.core.errors import InfrastructureError
from a2rl.results import mirror as module
from a2rl.results.mirror import MLFLOW_NOTE, Mirror
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from a2rl.run.names import Stored, mark_stored
from tests.run_maker import wait_for


class Server:
    """A fake server that accepts requests, refuses them, or never answers."""

    def __init__(self) -> None:
        self.syncs, self.is_down, self.hangs = 0, False, threading.Event()
        self.hangs.set()

    def sync(self, run: RunDir) -> None:
        self.syncs += 1
        self.hangs.wait(60)
        if self.is_down:
            raise InfrastructureError("MLflow at http://x failed: refused\nand more")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(module, "LOOK_EVERY_S", 0.01)
    return Server()


def test_what_is_new_in_a_ledger_is_mirrored(run: RunDir, server: Server) -> None:
    mirror = Mirror(server.sync)
    mirror.follow(run)
    wait_for(lambda: server.syncs == 1)
    run.ledger.append(RunInterrupted(stage="execute"))
    wait_for(lambda: server.syncs == 2)
    mirror.leave(run)
    mirror.close()
    assert server.syncs == 3
    assert MLFLOW_NOTE.read(run) == ""


def test_what_a_store_gets_later_is_mirrored_when_it_has_it(run: RunDir, server: Server) -> None:
    """A head that is signed late, with the next entry, proves no time."""
    mark_stored(run, Stored(seq=0, epoch=1, manifest=""))
    mirror = Mirror(server.sync)
    mirror.follow(run)
    time.sleep(0.2)
    assert server.syncs == 0
    mark_stored(run, Stored(seq=2, epoch=1, manifest=""))
    wait_for(lambda: server.syncs == 1)
    mirror.close()
    assert server.syncs == 1


def test_a_run_that_changes_often_is_mirrored_from_time_to_time(run: RunDir, server: Server) -> None:
    """Meanwhile it has the note, and nothing new is needed for the next time."""
    mirror = Mirror(server.sync, every_s=0.5)
    mirror.follow(run)
    wait_for(lambda: server.syncs == 1)
    run.ledger.append(RunInterrupted(stage="execute"))
    wait_for(lambda: "done every" in MLFLOW_NOTE.read(run))
    assert server.syncs == 1
    wait_for(lambda: server.syncs == 2 and not MLFLOW_NOTE.read(run))
    mirror.close()
    assert server.syncs == 2


def test_of_many_changes_only_the_newest_state_is_mirrored(run: RunDir, server: Server) -> None:
    server.hangs.clear()
    mirror = Mirror(server.sync)
    for _ in range(1000):
        mirror.leave(run)
    server.hangs.set()
    mirror.close()
    assert server.syncs <= 2


def test_a_server_that_is_down_delays_nothing(run: RunDir, server: Server) -> None:
    """The user is told how to catch up."""
    server.is_down = True
    mirror, begun = Mirror(server.sync), time.monotonic()
    mirror.leave(run)
    wait_for(lambda: MLFLOW_NOTE.read(run))
    mirror.close()
    assert time.monotonic() - begun < 5
    [line] = MLFLOW_NOTE.read(run).splitlines()
    assert "refused" in line
    assert f"a2rl report {run.id}" in line


def test_a_server_that_hangs_is_waited_for_a_few_seconds(
    run: RunDir, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SILENT_TIMEOUT_S", 0.3)
    server.hangs.clear()
    mirror, begun = Mirror(server.sync), time.monotonic()
    mirror.leave(run)
    mirror.close()
    assert time.monotonic() - begun < 5
    assert "does not answer" in MLFLOW_NOTE.read(run)
    server.hangs.set()
    wait_for(lambda: not MLFLOW_NOTE.read(run))


def test_when_it_comes_back_the_mirror_catches_up_by_itself(run: RunDir, server: Server) -> None:
    server.is_down = True
    mirror = Mirror(server.sync, pause_s=(0.05,))
    mirror.leave(run)
    wait_for(lambda: "refused" in MLFLOW_NOTE.read(run))
    server.is_down = False
    wait_for(lambda: not MLFLOW_NOTE.read(run))
    mirror.close()


def test_a_run_that_was_left_has_the_note_until_it_is_mirrored(run: RunDir) -> None:
    """The process may be stopped or killed before. What was under way then does not count."""
    begun, may_end = list[RunDir](), SimpleQueue[None]()

    def sync(each: RunDir) -> None:
        begun.append(each)
        may_end.get(timeout=60)

    mirror = Mirror(sync)
    mirror.follow(run)
    wait_for(lambda: len(begun) == 1)
    mirror.leave(run)
    assert "still to come" in MLFLOW_NOTE.read(run)
    may_end.put(None)
    wait_for(lambda: len(begun) == 2)
    assert "still to come" in MLFLOW_NOTE.read(run)
    may_end.put(None)
    mirror.close()
    assert MLFLOW_NOTE.read(run) == ""


def test_one_that_answers_slowly_is_waited_for(run: RunDir, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENT_TIMEOUT_S", 0.1)
    server.hangs.clear()
    mirror = Mirror(server.sync, alive_at=time.monotonic)
    mirror.leave(run)
    threading.Timer(0.5, server.hangs.set).start()
    mirror.close()
    assert MLFLOW_NOTE.read(run) == ""


def test_whatever_it_raises_the_next_run_is_mirrored(run: RunDir) -> None:
    seen: list[str] = []

    def sync(each: RunDir) -> None:
        seen.append(each.id)
        raise RecursionError("deep")

    mirror = Mirror(sync, pause_s=(0.01,))
    mirror.leave(run)
    wait_for(lambda: len(seen) > 2)
    mirror.close()
    assert "deep" in MLFLOW_NOTE.read(run)
