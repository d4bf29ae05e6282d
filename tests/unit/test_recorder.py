"""What is written down of an agent at work, and what it can do against that."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl import recorder as module
from a2rl.agent import Agent, TranscriptSource
from a2rl.recorder import Recorder
from a2rl.run import RunDir

PATTERN = ".tool/**/session-*.jsonl"
AGENT = Agent(
    id="a", title="a", start=("true",), transcript=TranscriptSource.model_validate({"format": "codex", "from": PATTERN})
)


@pytest.fixture
def at_work(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run whose recorder looks whenever it is asked."""
    monkeypatch.setattr(module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(module, "REST", 0)
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


def test_what_comes_and_goes_in_the_output_folder_is_told(at_work: RunDir, recorder: Recorder) -> None:
    checkpoint = at_work.workspace / "output/v1/model.safetensors"
    checkpoint.parent.mkdir()
    for content in ("a", "bb", None):
        checkpoint.write_text(content) if content else checkpoint.unlink()
        recorder.look()
    told = [(line["event"], line["path"], line.get("bytes")) for line in lines(at_work.logs / "output.jsonl")]
    path = "v1/model.safetensors"
    assert told == [("created", path, 1), ("changed", path, 2), ("removed", path, None)]


def test_processor_memory_and_processes_are_measured(at_work: RunDir) -> None:
    # Below a process of its own: this one may have others, left by other tests.
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


def test_a_transcript_in_its_home_is_copied_as_it_grows_and_kept_when_it_is_removed(
    at_work: RunDir, recorder: Recorder
) -> None:
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


def test_a_log_that_is_full_stays_as_it_is(at_work: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(at_work, AGENT, os.getpid(), attempt=1)
    recorder._output._left = 200
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
