"""What is said to an agent system that takes messages while it works: its prompt, then how its time runs out.

Others get their prompt on the command line and can ask `/time`. A message that arrives while a tool runs is read with
the tool's result. The agent system waits for more when it has answered, so that somebody must tell it that there is
none: that is done at its first answer to all that it was told.
"""

import json
from pathlib import Path

from a2rl.agent import Agent
from a2rl.budget import format_duration
from a2rl.process import AgentProcess

WARN_AT = (0.8, 0.95)
"""Shares of the time."""


class Conversation:
    """One attempt's; for agents that take no messages it does nothing."""

    def __init__(self, agent: Agent, process: AgentProcess, prompt: str, transcript: str, time_s: float) -> None:
        """Args:
        transcript: the file that keeps what the agent prints.
        time_s: what it has in all.
        """
        self._takes_messages = agent.messages is not None
        self._process = process
        self._transcript = Path(transcript)
        self._read = self._transcript.stat().st_size if transcript and self._transcript.exists() else 0
        self._time_s = time_s
        self._due = list(WARN_AT)
        self._is_over = False
        if self._takes_messages:
            self._say(prompt)

    def look(self, left_s: float) -> None:
        """Says what is due; to be called often."""
        if not self._takes_messages or self._is_over:
            return
        if self._has_answered():
            self._is_over = True
            self._process.end_input()
            return
        while self._due and left_s <= (1 - self._due[0]) * self._time_s:
            share, left = self._due.pop(0), format_duration(max(0.0, left_s))
            self._say(
                f"{share:.0%} of your time is over: {left} are left, then everything you have started is ended. "
                "What is not submitted by then is lost."
            )

    def _say(self, text: str) -> None:
        self._process.send(json.dumps({"type": "user", "message": {"role": "user", "content": text}}))

    def _has_answered(self) -> bool:
        """Whether an answer has ended since the last look."""
        try:
            with self._transcript.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return False
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        return any(_ends_an_answer(line) for line in whole.splitlines())


def _ends_an_answer(line: bytes) -> bool:
    """In the stream that Claude Code prints, an event does; what only speaks of one is no such event."""
    if b'"result"' not in line:
        return False
    try:
        event = json.loads(line)
    except ValueError:
        return False
    return isinstance(event, dict) and event.get("type") == "result"
