"""What is said to an agent system that takes messages while it works: its prompt, then how its time runs out.

Others get their prompt on the command line and can ask `/time`. A message that arrives while a tool runs is read with
the tool's result. The agent system waits for more when it has answered, so that somebody must tell it that there is
none: that is done at its first answer to all that it was told.
"""

import json
from collections.abc import Callable
from pathlib import Path

from a2rl.agent import Agent
from a2rl.budget import format_duration

WARN_AT = (0.8, 0.95)
"""Shares of the time."""
MAX_READ = 4 << 20
MAX_LINE = 16 << 20
"""Bytes."""


class Conversation:
    """One attempt's; for agents that take no messages it does nothing.

    Args:
        send: gives a line to the agent.
        end: tells it that no more will come.
        time_s: what it has in all.
    """

    def __init__(
        self, agent: Agent, send: Callable[[str], None], end: Callable[[], None], prompt: str, time_s: float
    ) -> None:
        self._takes_messages = agent.messages is not None
        self._send = send
        self._end = end
        self._time_s = time_s
        self._unsaid = [prompt]
        self._due = list(WARN_AT)
        self._is_over = False

    def look(self, left_s: float, has_answered: bool) -> None:
        """Says what is due; to be called often, returns at once."""
        if not self._takes_messages or self._is_over:
            return
        while self._unsaid:
            self._say(self._unsaid.pop())
        if has_answered:
            self._is_over = True
            self._end()
            return
        while self._due and left_s <= (1 - self._due[0]) * self._time_s:
            share, left = self._due.pop(0), format_duration(max(0.0, left_s))
            self._say(
                f"{share:.0%} of your time is over: {left} are left, then everything you have started is ended. "
                "What is not submitted by then is lost."
            )

    def _say(self, text: str) -> None:
        self._send(json.dumps({"type": "user", "message": {"role": "user", "content": text}}))


class Listener:
    """Finds the end of an answer in what an agent prints; it reads a little at a time, whatever the agent prints.

    Args:
        transcript: the file that keeps it; None: there is nothing to listen to.
    """

    def __init__(self, transcript: Path | None) -> None:
        self._transcript = transcript
        self._read = 0
        self._line = b""

    def has_heard_an_answer(self) -> bool:
        """Whether an answer has ended in what was read now."""
        if self._transcript is None:
            return False
        try:
            with self._transcript.open("rb") as file:
                file.seek(self._read)
                new = file.read(MAX_READ)
        except FileNotFoundError:
            return False
        self._read += len(new)
        *whole, self._line = (self._line + new).split(b"\n")
        if len(self._line) > MAX_LINE:  # nothing that ends an answer is that long
            self._line = b""
        return any(_ends_an_answer(line) for line in whole)


def _ends_an_answer(line: bytes) -> bool:
    """In the stream that Claude Code prints, an event does; what only speaks of one is no such event."""
    if b'"result"' not in line or len(line) > MAX_LINE:
        return False
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and event.get("type") == "result"
