"""Tests the stage that runs the agent, with a real agent process and a fake grader: an agent can harm only itself."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.execution import attempt as module
from a2rl.execution import workspace
from a2rl.execution.command import agent_command
from a2rl.execution.compute import GpuWatch
from a2rl.execution.observer import TranscriptSummary
from a2rl.linux.orphans import MARKER, TRACE, ProcessTrace
from a2rl.llm.relay.request_log import request_log_path
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, Event, ProcessesSurvived
from a2rl.run.gpu_share import allocated_gpus
from a2rl.run.ledger import Ledger
from a2rl.sandbox.command import AgentCommand, AgentExit
from a2rl.sandbox.process import AgentProcess
from stages import execute as stage
from stages.execute import execute
from tests.contract.test_llm_agents import FakeServiceProcess
from tests.fake_gpus import FakeGpus
from tests.written_ledger import accepted, graded


@pytest.fixture(autouse=True)
def no_grading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage, "ServiceProcess", FakeServiceProcess)


@pytest.fixture
def work(settings: Settings, new_run: Callable[..., RunDir]) -> Callable[..., RunDir]:
    """Returns a function that makes a run whose agent executes these lines of shell."""

    def make(script: str, **changes: object) -> RunDir:
        folder = settings.root / "mine"
        folder.mkdir()
        (folder / "start.sh").write_text(script)
        run = new_run(**{"agent": str(folder / "start.sh"), "started": False, **changes})
        for name in (".home", ".tmp"):
            (run.workspace / name).mkdir()
        return run

    return make


def test_the_tokens_used_up_to_each_submission_are_recorded(work: Callable[..., RunDir], settings: Settings) -> None:
    run = work("true\n")
    request = {"path": "/", "status": 200, "prompt_tokens": 30, "completion_tokens": 4}
    lines = [json.dumps({"t": at, **request}) for at in (0.0, time.time() + 3600)]
    request_log_path(run).write_text("\n".join(lines) + "\n")
    run.ledger.append(accepted(1, 0.0))
    record = execute(run, settings)
    assert record.seen is not None
    assert (record.seen.tokens, record.tokens_at) == (68, {1: 34})


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (
            "echo loading; echo \"ModuleNotFoundError: No module named 'requests'\" >&2; echo; exit 1\n",
            "a module or library is missing",
        ),
        ("printf 'a\\033[2Jb'; exit 1\n", "1: a\\x1b[2Jb"),
        ("head -c 100000 /dev/zero | tr '\\0' y; exit 1\n", "more characters"),
        ("exit 1\n", ""),
    ],
)
def test_the_last_line_of_an_agent_that_crashed_is_the_reason(
    work: Callable[..., RunDir], settings: Settings, script: str, says: str
) -> None:
    run = work(script)
    run.agent_log.write_text("the last line of an earlier attempt\n")
    record = execute(run, settings)
    assert record.ended == "crashed"
    assert says in record.why
    assert "earlier" not in record.why
    assert len(record.why) < 500
    assert record.why.isprintable()


def test_a_spoiled_workspace_ends_the_agents_part(
    work: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it submitted before stays."""
    run = work("true\n", mode="multi", trials=3)

    def locked(run: RunDir, *arguments: Any) -> AgentCommand:
        """Fails as for an ordinary user whose agent removed the permissions of its own folders."""
        if not run.ledger.events(AgentEnded):
            return agent_command(run, *arguments)
        try:
            raise PermissionError(13, "Permission denied", str(run.workspace / ".home"))
        except PermissionError as error:
            raise InfrastructureError(f"cannot write .profile in the agent's HOME: {error.strerror}") from error

    monkeypatch.setattr(module, "agent_command", locked)
    record = execute(run, settings)
    assert (record.ended, record.attempts) == ("unavailable", 2)
    assert "its own folder unusable" in record.why
    assert [event.reason for event in run.ledger.events(AgentEnded)] == ["finished", "unavailable"]


def test_a_file_of_the_graders_that_vanishes_blames_nobody(
    work: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stage is tried again, and the agent's part goes on."""
    run, tries = work("true\n", mode="multi", trials=2), list[int]()

    def races(run: RunDir, *arguments: Any) -> AgentCommand:
        tries.append(1)
        if len(tries) != 2:
            return agent_command(run, *arguments)
        try:
            raise FileNotFoundError(2, "No such file or directory", str(run.root / "ledger.db-wal"))
        except FileNotFoundError as error:
            raise InfrastructureError("the owner cannot be changed") from error

    monkeypatch.setattr(module, "agent_command", races)
    with pytest.raises(InfrastructureError, match="owner"):
        execute(run, settings)
    assert execute(run, settings).ended == "finished"
    assert [event.reason for event in run.ledger.events(AgentEnded)] == ["finished", "finished"]


def test_a_disk_that_is_full_is_not_the_agents_doing(
    work: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> AgentCommand:
        raise InfrastructureError("no room") from OSError(28, "No space left on device")

    monkeypatch.setattr(module, "agent_command", full)
    run = work("true\n")
    with pytest.raises(InfrastructureError, match="no room"):
        execute(run, settings)
    assert run.ledger.events(AgentStarted) == []


def test_the_clock_does_not_run_before_the_ledger_has_the_start(
    work: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, append = work("true\n"), Ledger.append

    def refuses(ledger: Ledger, event: Event) -> object:
        if isinstance(event, AgentStarted):
            raise InfrastructureError("no room")
        return append(ledger, event)

    monkeypatch.setattr(Ledger, "append", refuses)
    with pytest.raises(InfrastructureError, match="no room"):
        execute(run, settings)
    assert run.clock.read_state().running_since is None


def test_an_agent_that_never_started_can_be_mended(settings: Settings, new_run: Callable[..., RunDir]) -> None:
    (settings.root / "agents").unlink()
    (definition := settings.root / "agents" / "mine" / "agent.yaml").parent.mkdir(parents=True)
    definition.write_text("title: mine\nstart: [no-such-program]\n")
    run = new_run(agent="mine", started=False)
    for name in (".home", ".tmp"):
        (run.workspace / name).mkdir()
    for _ in range(2):
        with pytest.raises(InfrastructureError, match="could not be started"):
            execute(run, settings)
    definition.write_text('title: mine\nstart: ["true"]\n')
    assert execute(run, settings).ended == "finished"
    assert [event.reason for event in run.ledger.events(AgentEnded)] == ["lost", "lost", "finished"]


def test_a_killed_supervisor_closes_the_attempt_as_lost(work: Callable[..., RunDir], settings: Settings) -> None:
    """The next try goes on."""
    script = (
        '[ -e output/twice ] && exit 0; touch output/twice; kill -9 "$(ps -o ppid= -p $$ | tr -d " ")"; sleep 100\n'
    )
    run = work(script)
    with pytest.raises(InfrastructureError, match="supervisor was killed"):
        execute(run, settings)
    [end] = run.ledger.events(AgentEnded)
    assert end.reason == "lost"
    assert "supervisor was killed" in end.why
    assert run.clock.read_state().running_since is None
    assert execute(run, settings).ended == "finished"


def test_a_run_whose_agent_is_done_needs_no_start_script(work: Callable[..., RunDir], settings: Settings) -> None:
    run = work("true\n")
    done = execute(run, settings)
    (settings.root / "mine" / "start.sh").unlink()
    assert execute(run, settings) == done
    run.record_path("execute").unlink()
    with pytest.raises(UsageError, match="no agent script"):
        execute(run, settings)


def test_processes_that_survive_end_the_agents_part(
    work: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are an event of the ledger."""

    class Unkillable(AgentProcess):
        def _report(self) -> AgentExit:
            return super()._report()._replace(survivors=((4711, "python"),))

    monkeypatch.setattr(module, "AgentProcess", Unkillable)
    run = work("true\n", mode="multi", trials=3)
    assert execute(run, settings).attempts == 1
    assert run.ledger.events(ProcessesSurvived) == [ProcessesSurvived(attempt=1, processes=((4711, "python"),))]


def test_an_agent_that_outlived_its_pipeline_is_charged_and_gone(
    work: Callable[..., RunDir], settings: Settings
) -> None:
    run = work("exit 0\n", budget_s=100.0)
    died_half_a_minute_ago(run)
    ProcessTrace.begin("its-marker", None).write(run.logs / TRACE)
    orphan = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(600)"], env={**os.environ, MARKER: "its-marker"}
    )
    try:
        record = execute(run, settings)
        assert orphan.wait(10) == -signal.SIGKILL
    finally:
        orphan.kill()
        orphan.wait()
    assert 30 <= record.elapsed_s < 60
    assert [event.reason for event in run.ledger.events(AgentEnded)] == ["lost", "finished"]


def died_half_a_minute_ago(run: RunDir) -> None:
    """Makes the run look as if the pipeline died half a minute ago, while the agent was working."""
    run.clock.start()
    run.ledger.append(AgentStarted(attempt=1, elapsed_s=0.0))
    state = run.clock.read_state()
    assert state.running_since is not None
    back = {"running_since": state.running_since - 30, "beat_at": state.beat_at - 30}
    run.clock.path.write_text(state.model_copy(update=back).model_dump_json())


def test_one_that_ended_meanwhile_pays_up_to_its_last_change(work: Callable[..., RunDir], settings: Settings) -> None:
    run = work("exit 0\n", budget_s=100.0)
    died_half_a_minute_ago(run)
    (run.workspace / "output/trained-for-free").write_text("weights")
    os.utime(run.workspace / "output/trained-for-free", (0, 0))
    assert 29 <= execute(run, settings).elapsed_s < 60


def test_more_than_can_be_looked_at_is_no_way_out(work: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch) -> None:
    run = work("")
    assert workspace.last_change(run.workspace) <= time.time()
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 2)
    assert workspace.last_change(run.workspace) == float("inf")


def test_a_single_folder_is_not_looked_at_beyond_the_limit(
    work: Callable[..., RunDir], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, looked = work(""), list[str]()
    for number in range(100):
        (run.workspace / f"{number}").touch()

    @contextmanager
    def counted(folder: int) -> Iterator[Iterator["os.DirEntry[str]"]]:
        with scandir(folder) as entries:
            yield (entry for entry in entries if not looked.append(entry.name))  # type: ignore[func-returns-value]

    scandir = os.scandir
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 10)
    monkeypatch.setattr(os, "scandir", counted)
    assert workspace.last_change(run.workspace) == float("inf")
    assert len(looked) == 11


@pytest.mark.heavy
def test_reading_a_transcript_is_not_the_agents_time(
    work: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading a long transcript takes minutes, which the next trial would lack."""

    def slow(*_: object) -> TranscriptSummary:
        time.sleep(4)
        return TranscriptSummary()

    monkeypatch.setattr(module, "transcript_summary", slow)
    begun = time.monotonic()
    elapsed_s = execute(work("exit 0\n"), settings).elapsed_s
    assert elapsed_s < time.monotonic() - begun - 4


TRAINS_ON = """
import os, time
end = time.monotonic() + 4
while time.monotonic() < end: pass
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("script", "least_s", "most_s"),
    [("exec sleep 4\n", 2.0, 5.0), ("exec python -c '" + TRAINS_ON + "'\n", 0.0, 0.8)],
    ids=["an agent that waits", "one that trains on"],
)
def test_only_waiting_is_given_back(
    work: Callable[..., RunDir], settings: Settings, script: str, least_s: float, most_s: float
) -> None:
    """A submission waits for its grade from the start, and gets it only after the agent has ended."""
    run = work(script)
    run.ledger.append(accepted(1, 0, "d" * 64))
    record = execute(run, settings)
    run.ledger.append(graded("d" * 64, 9))
    assert record.refunded_s is not None
    assert least_s <= record.refunded_s <= most_s


class _VanishingNvml:
    """A driver whose GPU falls off the bus once the agent works."""

    NVMLError = pynvml.NVMLError

    def __init__(self) -> None:
        self._polls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(pynvml, name) if name.startswith("NVML_") else lambda *_: 0

    def nvmlDeviceGetProcessUtilization(self, *_: object) -> list[object]:
        return []

    def nvmlDeviceGetMemoryInfo(self, *_: object) -> None:
        self._polls += 1
        if self._polls > 3:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)


def test_a_gpu_that_disappears_is_a_failure_of_the_machine(
    work: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent does not end with a number."""
    fake = FakeGpus(settings.root, 2)
    seen, run = fake.seen_by(settings), work("sleep 100\n", model="m", gpus_per_run=1)
    monkeypatch.setattr(module, "GpuWatch", lambda uuids: GpuWatch(uuids, _VanishingNvml(), 0.05))
    with allocated_gpus(run, seen):
        with pytest.raises(InfrastructureError, match=r"GPU GPU-0f3a.* has disappeared: GPU is lost; `a2rl resume"):
            execute(run, seen)
        assert [event.reason for event in run.ledger.events(AgentEnded)] == ["lost"]
        assert run.clock.elapsed_s() < 60
        fake.lose(0)
        with pytest.raises(InfrastructureError, match="has disappeared"):  # a retry does not start the agent again
            execute(run, seen)
    assert len(run.ledger.events(AgentStarted)) == 1
    with allocated_gpus(run, seen) as share:  # a resumed run has the other one
        assert [gpu.index for gpu in share.all] == [1]
