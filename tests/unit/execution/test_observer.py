"""Tests that an agent can delay, mislead, kill or crash its observer, but the run continues."""

import json
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2rl.agent_systems.definition import Agent, TranscriptSource, find_agent
from a2rl.core.processes import Child
from a2rl.core.settings import Settings
from a2rl.execution import observer as observer_module
from a2rl.execution.attempt import AgentMessages
from a2rl.execution.observer import (
    AnswerListener,
    TranscriptSummary,
    observing,
    summarise_transcript,
    transcript_summary,
)
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
def children(monkeypatch: pytest.MonkeyPatch) -> list[Child]:
    """The observers that are started."""
    children, start = list[Child](), Child.of_module

    def note(*arguments: Any, **options: Any) -> Child:
        children.append(start(*arguments, **options))
        return children[-1]

    monkeypatch.setattr(Child, "of_module", note)
    return children


def test_it_records_what_an_agent_does_and_hears_its_answer(
    observed: Callable[..., RunDir], settings: Settings
) -> None:
    run = observed(RESULT)
    (run.workspace / "code/train.py").write_text("lr = 1\n")
    with observing(run, settings, 1, os.getpid()) as answered:
        assert answered.wait(60)
        (run.workspace / "code/late.py").write_text("lr = 2\n")
    assert (run.code / "late.py").exists()


def test_one_that_is_killed_is_started_again(
    observed: Callable[..., RunDir], settings: Settings, children: list[Child]
) -> None:
    run = observed()
    with observing(run, settings, 1, os.getpid()) as answered:
        kill(children[0].pid)
        wait_for(lambda: len(children) == 2)
        (run.logs / "transcript-1.jsonl").write_bytes(RESULT)
        assert answered.wait(60)
    assert not children[1].is_alive
    assert "it has died" in (run.logs / "pipeline.jsonl").read_text()


def test_one_that_hangs_is_not_waited_for(
    observed: Callable[..., RunDir], settings: Settings, children: list[Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(observer_module, "LAST_LOOK_TIMEOUT_S", 0.2)
    run = observed()
    with observing(run, settings, 1, os.getpid()):
        os.kill(children[0].pid, signal.SIGSTOP)
        begun = time.monotonic()
    assert time.monotonic() - begun < 5
    assert "its last look took more" in (run.logs / "pipeline.jsonl").read_text()


def test_where_it_cannot_be_started_the_run_goes_on(
    observed: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("a2rl.core.processes.subprocess.Popen", no_more)
    with observing(run := observed(), settings, 1, os.getpid()) as answered:
        assert not answered.is_set()
    assert "cannot be started" in (run.logs / "pipeline.jsonl").read_text()


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


def test_the_totals_of_a_trajectory_are_those_of_the_relay(observed: Callable[..., RunDir], settings: Settings) -> None:
    run, agent = observed(RESULT), find_agent("fake", settings.root)
    summarise_transcript(run, agent, settings, 1)
    assert json.loads(run.trajectory.read_text())["final_metrics"] == {"total_steps": 1}
    request = {"t": 1.0, "path": "/", "asked": "m", "status": 200, "prompt_tokens": 2**60, "cost_usd": 0.25}
    request |= {"completion_tokens": 5, "cache_read_tokens": 3}
    (run.logs / "llm.jsonl").write_text(f"{json.dumps(request)}\n" * 2)
    summarise_transcript(run, agent, settings, 1)
    assert json.loads(run.trajectory.read_text())["final_metrics"] == {
        "total_prompt_tokens": 2**61, "total_completion_tokens": 10, "total_cached_tokens": 6, "total_cost_usd": 0.5,
        "total_steps": 1,
    }  # fmt: skip


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
