"""Tests that a prompt fits on a command line, whatever the agent did before."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.agent_systems.definition import Agent
from a2rl.core.settings import Settings
from a2rl.execution.command import Attempt, agent_command
from a2rl.execution.prompt import MAX_NEWEST, MAX_PROMPT_BYTES, StartContext, render_prompt
from a2rl.llm.gateway import Gateway
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionRefused
from a2rl.scoring.score import TaskScore
from tests.written_ledger import accepted, graded

AGENT = Agent(id="a", title="a", start=("true", "{prompt}"), resume=("true", "{session}"), driver="d")


def submit(run: RunDir, number: int, score: float, path: str) -> None:
    result = TaskScore(score=score, total=8, correct=1, wrong=7, truncated=0, errored=0)
    came = accepted(number, number, model_path=path)
    for event in (came, graded(came.weights_digest, number, result, improvement=0)):
        run.ledger.append(event)


@pytest.fixture
def busy(run: RunDir) -> RunDir:
    """A run with very many submissions, with long and hostile names."""
    for number in range(1, 301):
        submit(run, number, 90.0 if number == 7 else 10.0, f"output/v{number}-" + "數" * 400)
    for number in range(100):
        run.ledger.append(SubmissionRefused(elapsed_s=number, model_path="\0\ud800"[:1] + "x" * 499, reason="y" * 5000))
    return run


def test_a_prompt_is_one_argument_after_many_submissions(busy: RunDir) -> None:
    prompt = render_prompt(busy, AGENT, 100, StartContext("finished", 2, "words \0\x1b " * 1000))
    assert len(prompt.encode()) <= MAX_PROMPT_BYTES
    assert subprocess.run(["true", prompt], check=True).returncode == 0
    assert "\0" not in prompt


def test_the_newest_and_best_are_named_and_the_others_counted(run: RunDir) -> None:
    for number in range(1, 101):
        submit(run, number, 90.0 if number == 7 else 10.0, f"output/v{number}")
    prompt = render_prompt(run, AGENT, 100, StartContext("finished", 2))
    named = [number for number in range(1, 101) if f"`output/v{number}`" in prompt]
    assert 7 in named
    assert named[-MAX_NEWEST:] == list(range(101 - MAX_NEWEST, 101))
    assert f"{100 - len(named)} others" in prompt


@pytest.mark.parametrize("session", ["--config=evil", "-c", "a b", "x" * 200_000, "a\0b", "a\nb", ""])
def test_a_session_that_is_no_plain_name_is_not_gone_on_with(
    session: str, new_run: Callable[..., RunDir], settings: Settings, tmp_path: Path
) -> None:
    run = new_run()
    (run.workspace / ".home").mkdir()

    class Grading:
        url, port = "http://127.0.0.1:9", 9

    gateway = Gateway(run, AGENT, settings)
    attempt = Attempt(2, "go on", session, time_s=60.0)
    command = agent_command(run, AGENT, settings, Grading(), gateway, attempt)  # type: ignore[arg-type]
    assert command.command == ["true", "go on"]


def test_only_an_agent_with_a_limit_on_turns_is_told_of_one(new_run: Callable[..., RunDir]) -> None:
    run = new_run(max_turns=3)
    limited = AGENT.model_copy(update={"turn_limit": ("--max-turns={max_turns}",)})
    told = ["at most 3 turns" in render_prompt(run, agent, 100, StartContext()) for agent in (AGENT, limited)]
    assert told == [False, True]
