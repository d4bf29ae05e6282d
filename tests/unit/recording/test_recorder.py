"""Tests what is recorded of a working agent, and what the agent can do against it."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import Agent, TranscriptSource
from a2rl.agent_systems.transcripts import Reading
from a2rl.core.event_log import EventLog
from a2rl.core.secrets import scrub
from a2rl.recording import recorder as module
from a2rl.recording.recorder import Recorder
from a2rl.recording.tracer import FILE, MAX_BYTES
from a2rl.recording.trajectory import read_attempt, read_attempts
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted
from a2rl.run.names import is_run_file
from tests.as_nobody import as_nobody, folder_of_nobody

PATTERN = ".tool/**/session-*.jsonl"
AGENT = Agent(
    id="a", title="a", start=("true",), transcript=TranscriptSource.model_validate({"format": "codex", "from": PATTERN})
)


@pytest.fixture
def at_work(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose recorder takes a record when the test asks for it."""
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "PAUSE_FACTOR", 0)
    (run.workspace / ".home/.tool/day").mkdir(parents=True)
    return run


@pytest.fixture
def recorder(at_work: RunDir) -> Recorder:
    return Recorder(at_work, AGENT, os.getpid(), attempt=1)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def commits(run: RunDir) -> int:
    done = subprocess.run(["git", "log", "--format=%s"], cwd=run.code, capture_output=True, text=True, check=True)
    return len(done.stdout.splitlines())


def test_each_state_of_the_code_that_is_seen_is_a_commit(at_work: RunDir, recorder: Recorder) -> None:
    for state in ("lr = 1\n", "lr = 20\n"):
        (at_work.workspace / "code/train.py").write_text(state)
        recorder.look()
        recorder.look()
    assert commits(at_work) == 2


def test_a_time_that_an_agent_sets_hides_no_change(at_work: RunDir, recorder: Recorder) -> None:
    train, notes = at_work.workspace / "code/train.py", at_work.workspace / FILE
    for text in ("1", "2"):
        for file in (train, notes):
            file.write_text(text)
            os.utime(file, (1, 1))
        recorder.look()
    assert commits(at_work) == 2
    assert at_work.training_log.read_text() == "2"


def test_code_that_is_recorded_no_more_is_noted(
    at_work: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.recording.code_history.MAX_HISTORY_BYTES", 0)
    (at_work.workspace / "code" / "train.py").write_text("lr = 1\n")
    recorder.look()
    assert "full" in [row["event"] for row in lines(at_work.logs / "processes.jsonl")]


def test_what_comes_and_goes_in_the_output_folder_is_told(at_work: RunDir, recorder: Recorder) -> None:
    checkpoint = at_work.workspace / "output/v1/model.safetensors"
    checkpoint.parent.mkdir()
    for content in ("a", "bb", None):
        checkpoint.write_text(content) if content else checkpoint.unlink()
        recorder.look()
    told = [(line["event"], line["path"], line.get("bytes")) for line in lines(at_work.logs / "output.jsonl")]
    path = "v1/model.safetensors"
    assert told == [("created", path, 1), ("changed", path, 2), ("removed", path, None)]


def test_notes_of_training_are_copied_without_secrets(
    at_work: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their last copy is kept."""
    recorder.look()
    assert not at_work.training_log.exists()
    notes = at_work.workspace / FILE
    for text in ('{"event": "train"}\n', '{"event": "train"}\n{"path": "sk-secretkey1234567890abcdefghij"}\n'):
        notes.write_text(text)
        recorder.look()
        assert at_work.training_log.read_text().startswith(text[:19])
    assert "secretkey" not in at_work.training_log.read_text()
    notes.unlink()
    recorder.look()
    assert at_work.training_log.exists()


def test_notes_that_are_huge_or_a_link_are_cut_or_left_alone(at_work: RunDir, recorder: Recorder) -> None:
    notes = at_work.workspace / FILE
    notes.symlink_to("/etc/passwd")
    recorder.look()
    assert not at_work.training_log.exists()
    notes.unlink()
    with notes.open("wb") as file:
        file.truncate(1 << 40)
    recorder.look()
    assert at_work.training_log.stat().st_size == MAX_BYTES
    assert [line["part"] for line in lines(at_work.logs / "recorder.jsonl")] == ["training"]


def test_processor_memory_and_processes_are_measured(at_work: RunDir) -> None:
    # Below a new process, because this one may have other children, left by other tests.
    with subprocess.Popen(
        ["sh", "-c", "sleep 60 & echo; wait"], stdout=subprocess.PIPE, start_new_session=True
    ) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        Recorder(at_work, AGENT, shell.pid, attempt=1).look()
        os.killpg(shell.pid, signal.SIGKILL)
    [line] = lines(at_work.logs / "telemetry.jsonl")
    assert line["processes"] == 1
    assert isinstance(line["memory_bytes"], int)
    assert line["memory_bytes"] > 0


def test_a_transcript_is_copied_as_it_grows(at_work: RunDir, recorder: Recorder) -> None:
    """It lies in the agent's home, and is kept when it is removed."""
    own = at_work.workspace / ".home/.tool/day/session-1.jsonl"
    for text in ("one\n", "one\ntwo\n"):
        own.write_text(text)
        recorder.look()
    own.unlink()
    recorder.close()
    [copy] = (at_work.logs / "transcript-1").iterdir()
    assert copy.read_text() == "one\ntwo\n"


def test_transcripts_of_an_earlier_attempt_are_not_taken_again(at_work: RunDir) -> None:
    (at_work.workspace / ".home/.tool/day/session-1.jsonl").write_text("old\n")
    time.sleep(0.02)
    Recorder(at_work, AGENT, os.getpid(), attempt=2).close()
    assert not (at_work.logs / "transcript-2").exists()


def test_transcripts_of_earlier_attempts_hide_no_later_one(at_work: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most so many are kept of an attempt, whichever the agent has at a time."""
    monkeypatch.setattr(module, "MAX_TRANSCRIPTS", 2)
    day = at_work.workspace / ".home/.tool/day"
    for number in range(3):
        (day / f"session-{number}.jsonl").write_text("old\n")
    time.sleep(0.02)
    recorder = Recorder(at_work, AGENT, os.getpid(), attempt=2)
    for name in ("7", "8", "5", "6"):
        (day / f"session-{name}.jsonl").write_text(f"{name}\n")
        recorder.look()
    (day / "session-8.jsonl").write_text("8 goes on\n")
    recorder.look()
    kept = (at_work.logs / "transcript-2").iterdir()
    assert sorted(path.read_text() for path in kept) == ["7\n", "8 goes on\n"]


def plant_link(home: Path, secret: Path) -> None:
    (home / ".tool/day/session-1.jsonl").symlink_to(secret)


def plant_pipe(home: Path, secret: Path) -> None:
    os.mkfifo(home / ".tool/day/session-1.jsonl")


def plant_folder(home: Path, secret: Path) -> None:
    (home / ".tool/day/session-1.jsonl").mkdir()


@pytest.mark.parametrize("plant", [plant_link, plant_pipe, plant_folder])
def test_what_is_planted_instead_of_a_transcript_is_left_out(
    at_work: RunDir, recorder: Recorder, tmp_path: Path, plant: Callable[[Path, Path], None]
) -> None:
    secret = tmp_path / "hidden.jsonl"
    secret.write_text("the answers\n")
    plant(at_work.workspace / ".home", secret)
    recorder.look()
    assert not (at_work.logs / "transcript-1").exists()


def test_links_in_the_output_folder_lead_nowhere(at_work: RunDir, recorder: Recorder, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/private.txt").touch()
    (at_work.workspace / "output/link").symlink_to(tmp_path / "outside")
    recorder.look()
    assert [line["path"] for line in lines(at_work.logs / "output.jsonl")] == ["link"]


def test_a_log_that_is_full_stays_as_it_is(at_work: RunDir) -> None:
    recorder = Recorder(at_work, AGENT, os.getpid(), attempt=1)
    recorder._output = EventLog(at_work.logs / "output.jsonl", 200)
    for number in range(50):
        (at_work.workspace / f"output/{number}").touch()
    recorder.look()
    size = (at_work.logs / "output.jsonl").stat().st_size
    assert 0 < size <= 200


def test_it_rests_in_proportion_to_what_it_costs(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    (run.workspace / ".home").mkdir()
    recorder = Recorder(run, AGENT, os.getpid(), attempt=1)
    recorder.look()
    (run.workspace / "output/new").touch()
    recorder.look()
    assert not (run.logs / "output.jsonl").exists()


def transcripts_are_a_link(run: RunDir, outside: Path) -> None:
    (run.workspace / ".home/.tool/day").rmdir()
    (run.workspace / ".home/.tool/day").symlink_to(outside)


def tool_is_a_link(run: RunDir, outside: Path) -> None:
    (run.workspace / ".home/.tool/day").rmdir()
    (run.workspace / ".home/.tool").rmdir()
    (run.workspace / ".home/.tool").symlink_to(outside)


def home_is_a_link(run: RunDir, outside: Path) -> None:
    (run.workspace / ".home").rename(run.workspace / "old")
    (run.workspace / ".home").symlink_to(outside)


def transcript_is_a_hard_link(run: RunDir, outside: Path) -> None:
    (run.workspace / ".home/.tool/day/session-1.jsonl").hardlink_to(outside / "session-1.jsonl")


LINKS = [transcripts_are_a_link, tool_is_a_link, home_is_a_link, transcript_is_a_hard_link]


@pytest.mark.parametrize("plant", LINKS)
def test_no_link_leads_to_the_transcripts_of_the_operator(
    at_work: RunDir, recorder: Recorder, tmp_path: Path, plant: Callable[[RunDir, Path], None]
) -> None:
    outside = tmp_path / "operator"
    for name in ("session-1.jsonl", "day/session-1.jsonl", ".tool/day/session-1.jsonl"):
        (outside / name).parent.mkdir(parents=True, exist_ok=True)
        (outside / name).write_text("private\n")
    plant(at_work, outside)
    recorder.look()
    recorder.close()
    assert not (at_work.logs / "transcript-1").exists()


def hostile_names(run: RunDir) -> None:
    for name in (b"\xff", b"\x1b[2J", b"new\nline", b"x" * 255):
        for folder in ("code", "output", ".home/.tool/day"):
            (run.workspace / folder / os.fsdecode(name)).write_text("x")


def no_folders(run: RunDir) -> None:
    for folder in ("code", "output"):
        (run.workspace / folder).rmdir()
        (run.workspace / folder).touch()


def pipes(run: RunDir) -> None:
    for name in ("code/train.py", "output/model", ".home/.tool/day/session-9.jsonl"):
        os.mkfifo(run.workspace / name)


def devices(run: RunDir) -> None:
    for name in ("code/train.py", "output/model", ".home/.tool/day/session-9.jsonl"):
        (run.workspace / name).symlink_to("/dev/zero")


def broken_settings_of_git(run: RunDir) -> None:
    (run.workspace / "code/.gitmodules").write_text("[broken")
    (run.workspace / "code/.gitattributes").write_text("* working-tree-encoding=UTF-16")


def no_git(run: RunDir) -> None:
    (run.workspace / "code/train.py").touch()
    run.code.write_text("a file where the history should be")


def full_disk(run: RunDir) -> None:
    for name in ("output.jsonl", "telemetry.jsonl", "recorder.jsonl"):
        (run.logs / name).unlink(missing_ok=True)
        (run.logs / name).symlink_to("/dev/full")
    (run.workspace / "output/new").touch()


def no_clock(run: RunDir) -> None:
    run.clock.path.write_text("{")


TROUBLES = [hostile_names, no_folders, pipes, devices, broken_settings_of_git, no_git, full_disk, no_clock]


@pytest.mark.parametrize("trouble", TROUBLES)
def test_the_recorder_never_raises_and_never_waits(
    at_work: RunDir, recorder: Recorder, trouble: Callable[[RunDir], None]
) -> None:
    trouble(at_work)
    started = time.monotonic()
    recorder.look()
    recorder.close()
    assert time.monotonic() - started < 10


def test_what_could_not_be_recorded_is_written_down_once(at_work: RunDir, recorder: Recorder) -> None:
    no_folders(at_work)
    for _ in range(5):
        recorder.look()
    assert [line["part"] for line in lines(at_work.logs / "recorder.jsonl")] == ["code", "output"]


def test_code_beyond_the_limits_is_written_down_once(
    at_work: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("a2rl.recording.code_history.MAX_FILES", 2)
    for number in range(5):
        (at_work.workspace / f"code/{number}.py").write_text(f"{number}")
        recorder.look()
    [line] = lines(at_work.logs / "recorder.jsonl")
    assert line["part"] == "code"
    assert str(line["trouble"]).endswith("such as code/2.py")


def test_a_supervisor_that_has_ended_is_no_error(at_work: RunDir) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    Recorder(at_work, AGENT, ended.pid, attempt=1).look()


def test_a_locked_workspace_is_no_error_as_an_ordinary_user() -> None:
    def work() -> None:
        own = RunDir(root / "run")
        own.logs.mkdir(parents=True)
        for name in ("code", "output", ".home"):
            (own.workspace / name).mkdir(parents=True)
            (own.workspace / name).chmod(0)
        recorder = Recorder(own, AGENT, os.getpid(), attempt=1)
        recorder.look()
        own.workspace.chmod(0)
        recorder.close()

    with folder_of_nobody() as root:
        as_nobody(work)


def test_transcripts_together_are_limited(at_work: RunDir, recorder: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TRANSCRIPT_BYTES", 1000)
    for number in range(5):
        (at_work.workspace / f".home/.tool/day/session-{number}.jsonl").write_text("x" * 400)
    with (at_work.workspace / ".home/.tool/day/session-0.jsonl").open("ab") as sparse:
        sparse.truncate(1 << 40)
    recorder.look()
    kept = list((at_work.logs / "transcript-1").iterdir())
    assert sum(path.stat().st_size for path in kept) <= 1000


def test_transcripts_keep_apart_whatever_they_are_called(at_work: RunDir, recorder: Recorder) -> None:
    day = at_work.workspace / ".home/.tool/day"
    (day / "a").mkdir()
    names = [
        "session-a-b.jsonl",
        "a/session-b.jsonl",
        os.fsdecode(b"session-\xff\x1b.jsonl"),
        f"session-{'ü' * 100}.jsonl",
    ]
    for name in names:
        (day / name).write_text(f"{len(name)}")
    recorder.look()
    kept = list((at_work.logs / "transcript-1").iterdir())
    assert sorted(path.read_text() for path in kept) == sorted(f"{len(name)}" for name in names)
    assert all(path.name.isascii() and path.name.isprintable() for path in kept)


def test_no_name_of_a_transcript_has_the_form_of_a_key(at_work: RunDir, recorder: Recorder) -> None:
    """The manifest would have another name than the file, and the run could not be verified."""
    day, key = at_work.workspace / ".home/.tool/day", "AKIA0123456789ABCDEF"
    (day / ".sk-ant-abcd").mkdir()
    for name in (f"session-{key}{'b' * 154}.jsonl", f"session-.{key}.jsonl", ".sk-ant-abcd/session-1é.jsonl"):
        (day / name).write_text("{}")
    recorder.look()
    kept = [path.relative_to(at_work.root) for path in (at_work.logs / "transcript-1").iterdir()]
    assert [scrub(str(path)) for path in kept] == list(map(str, kept))
    assert len(kept) == 3
    assert all(map(is_run_file, map(str, kept)))


def test_half_a_copy_is_not_read_as_a_transcript(at_work: RunDir) -> None:
    kept = at_work.logs / "transcript-1"
    kept.mkdir()
    (kept / "session.jsonl.tmp").write_text(json.dumps({"type": "broken"}))
    assert read_attempt(at_work, AGENT, 1) == Reading()


def keep_rollout(folder: Path, session: str, *messages: str) -> None:
    """Writes the copy of a rollout of Codex, with these messages of the agent."""
    said: list[dict[str, object]] = [{"type": "session_meta", "payload": {"id": session}}]
    for text in messages:
        message = {"type": "message", "role": "assistant", "content": [{"text": text}]}
        said += [{"type": "response_item", "payload": message}, {"type": "token_usage_record", "payload": {}}]
    folder.mkdir(exist_ok=True)
    (folder / f"{session}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))


def test_a_resumed_session_has_the_steps_of_all_its_attempts(at_work: RunDir) -> None:
    """The second attempt has copies of the files that were changed in it; of the third, nothing but a line is left."""
    source = TranscriptSource.model_validate({"format": "codex", "from": [PATTERN, "stdout"]})
    agent, logs = AGENT.model_copy(update={"transcript": source}), at_work.logs
    keep_rollout(logs / "transcript-1", "main", "one")
    keep_rollout(logs / "transcript-1", "subagent", "two")
    keep_rollout(logs / "transcript-2", "main", "one", "three")
    (logs / "transcript-3.jsonl").write_text(json.dumps({"type": "thread.started", "thread_id": "main"}))
    keep_rollout(logs / "transcript-4", "other", "four")
    for attempt in range(1, 5):
        at_work.ledger.append(AgentStarted(attempt=attempt, elapsed_s=0.0))
    readings = read_attempts(at_work, agent)
    assert [reading.session_id for reading in readings] == ["main", "other"]
    assert [[step.message for step in reading.steps] for reading in readings] == [["one", "three", "two"], ["four"]]
