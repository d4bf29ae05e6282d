"""Tests that an agent can delay, mislead, kill or crash its observer, but the run continues."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import Agent, TranscriptSource
from a2rl.core.settings import Settings
from a2rl.execution import observer as observer_module
from a2rl.execution.attempt import AgentMessages
from a2rl.execution.observer import MAX_RESTARTS, AnswerListener, Observer, TranscriptSummary, transcript_summary
from a2rl.run.directory import RunDir
from tests.run_maker import kill, wait_for

RESULT = b'{"type": "result"}\n'


def claude(**more: object) -> Agent:
    transcript = TranscriptSource.model_validate({"format": "claude-code", "from": "stdout"})
    return Agent(id="fake", title="fake", start=("true",), transcript=transcript, **more)  # type: ignore[arg-type]


@pytest.fixture
def observed(new_run: Callable[..., RunDir], settings: Settings, tmp_path: Path) -> Callable[..., RunDir]:
    """A run of an agent with a transcript."""

    def make(transcript: bytes = b"", **changes: object) -> RunDir:
        folder = tmp_path / "agents" / "fake"
        folder.mkdir(parents=True)
        (settings.root / "agents").unlink()
        (settings.root / "agents").symlink_to(tmp_path / "agents")
        (folder / "agent.yaml").write_text(
            "title: a fake\nstart: [bash, start.sh]\ndriver: m\nbase_url: http://127.0.0.1:9\n"
            "messages: claude-code\ntranscript: {format: claude-code, from: stdout}\n"
        )
        run = new_run(**{"agent": "fake", "driver": "m", **changes})
        (run.logs / "transcript-1.jsonl").write_bytes(transcript)
        return run

    return make


@pytest.fixture
def watching(settings: Settings) -> Iterator[Callable[[RunDir], Observer]]:
    observers: list[Observer] = []

    def start(run: RunDir) -> Observer:
        observers.append(Observer(run, settings, 1, os.getpid()))
        return observers[-1]

    yield start
    for each in observers:
        each.__exit__(None, None, None)


def pid_of(observer: Observer) -> int:
    assert observer._process is not None
    return observer._process.pid


def test_it_records_what_an_agent_does_and_hears_its_answer(
    observed: Callable[..., RunDir], watching: Callable[[RunDir], Observer]
) -> None:
    run = observed(RESULT)
    (run.workspace / "code/train.py").write_text("lr = 1\n")
    observer = watching(run)
    wait_for(lambda: observer.has_heard_an_answer)
    (run.workspace / "code/late.py").write_text("lr = 2\n")
    observer.__exit__(None, None, None)
    assert (run.code / "late.py").exists()


def test_one_that_is_killed_is_started_again_and_then_given_up(
    observed: Callable[..., RunDir], watching: Callable[[RunDir], Observer]
) -> None:
    run = observed()
    observer, seen = watching(run), set[int]()
    for _ in range(MAX_RESTARTS + 1):
        seen.add(pid_of(observer))
        kill(pid_of(observer))
        wait_for(lambda: observer._is_dead)
        observer.keep_alive()
    assert len(seen) == MAX_RESTARTS + 1
    assert observer.is_given_up
    assert "it has died" in (run.logs / "pipeline.jsonl").read_text()


def test_one_that_hangs_is_not_waited_for(
    observed: Callable[..., RunDir], watching: Callable[[RunDir], Observer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_module, "LAST_LOOK_TIMEOUT_S", 0.2)
    run = observed()
    observer, begun = watching(run), time.monotonic()
    os.kill(pid_of(observer), signal.SIGSTOP)
    observer.keep_alive()
    observer.__exit__(None, None, None)
    assert time.monotonic() - begun < 5
    assert "its last look took more" in (run.logs / "pipeline.jsonl").read_text()


def test_where_it_cannot_be_started_the_run_goes_on(
    observed: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("a2rl.core.processes.subprocess.Popen", no_more)
    with Observer(observed(), settings, 1, os.getpid()) as observer:
        for _ in range(MAX_RESTARTS):
            observer.keep_alive()
        assert observer.is_given_up


# Transcripts

HOSTILE = {
    "deep": b"[" * 200_000 + b"\n",
    "not a line": b'{"type": "assistant", "x": "' + b"x" * 50_000_000,
    "many lines": b'{"type": "result"}\n' * 20_000,
    "numbers": b'{"type": "assistant", "message": {"usage": {"input_tokens": ' + b"9" * 100_000 + b"}}}\n",
    "no text": bytes(range(256)) * 4000,
}


@pytest.mark.parametrize("transcript", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_transcript_cannot_fail_the_run(
    observed: Callable[..., RunDir], settings: Settings, transcript: bytes
) -> None:
    run = observed(transcript)
    told = transcript_summary(run, claude(), settings, 1)
    assert isinstance(told, TranscriptSummary)


def test_one_that_takes_too_long_is_left_unread(
    observed: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_module, "SUMMARY_TIMEOUT_S", 0.01)
    run = observed(RESULT)
    assert transcript_summary(run, claude(), settings, 1) == TranscriptSummary()
    assert "could not be read" in (run.logs / "pipeline.jsonl").read_text()


def test_a_listener_reads_in_small_parts_and_misses_no_answer(tmp_path: Path) -> None:
    path = tmp_path / "transcript"
    listener = AnswerListener(path)
    assert not listener.has_heard_an_answer()
    path.write_bytes(b'{"type": "user", "content": "' + b"x" * 9_000_000 + b'"}\n' + RESULT[:7])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    heard = [listener.has_heard_an_answer() for _ in range(4)]
    with path.open("ab") as file:
        file.write(RESULT[7:])
    assert [*heard, listener.has_heard_an_answer()] == [False] * 4 + [True]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


# Messages to an agent


def test_it_is_told_its_prompt_its_time_and_its_end() -> None:
    said: list[str] = []
    conversation = AgentMessages(
        claude(messages="claude-code"), lambda line: said.append(json.loads(line)["message"]["content"]),
        lambda: said.append("end"), "the prompt", 100.0,
    )  # fmt: skip
    for left_s in (90, 15, 4):
        conversation.update(left_s, False)
    conversation.update(3, True)
    conversation.update(2, True)
    assert [text[:3] for text in said] == ["the", "80%", "95%", "end"]


def test_agents_that_take_no_messages_are_told_nothing() -> None:
    conversation = AgentMessages(claude(), lambda _: pytest.fail("said"), lambda: pytest.fail("ended"), "prompt", 100.0)
    conversation.update(1.0, True)
