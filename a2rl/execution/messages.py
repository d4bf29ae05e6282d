"""Messages to agent systems that accept them while they work: the prompt, then warnings about the remaining time.

Other agents get their prompt on the command line and can ask `/time`. A message that arrives while a tool runs is read
together with the tool's result. After an answer, the agent system waits for further messages, so its input is closed
at its first answer.
"""

import json
from collections.abc import Callable
from pathlib import Path

from a2rl.agent_systems.definition import Agent
from a2rl.run.budget import format_duration

WARN_AT = (0.8, 0.95)
"""Shares of the attempt's time after which the agent is warned."""
MAX_READ_BYTES = 4 << 20
MAX_LINE_BYTES = 16 << 20


class AgentMessages:
    """The messages of one attempt; it does nothing for agents that accept none.

    Args:
        agent: The agent's definition.
        send: A function that sends a line to the agent.
        end: A function that closes the agent's input.
        prompt: The first message.
        time_s: The time of the attempt, in seconds.
    """

    def __init__(
        self, agent: Agent, send: Callable[[str], None], end: Callable[[], None], prompt: str, time_s: float
    ) -> None:
        self._takes_messages = agent.messages is not None
        self._send = send
        self._end = end
        self._time_s = time_s
        self._unsent = [prompt]
        self._due_warnings = list(WARN_AT)
        self._is_over = False

    def update(self, left_s: float, has_answered: bool) -> None:
        """Sends the messages that are due; call it often, it returns at once."""
        if not self._takes_messages or self._is_over:
            return
        while self._unsent:
            self._send_text(self._unsent.pop())
        if has_answered:
            self._is_over = True
            self._end()
            return
        while self._due_warnings and left_s <= (1 - self._due_warnings[0]) * self._time_s:
            share, left = self._due_warnings.pop(0), format_duration(max(0.0, left_s))
            self._send_text(
                f"{share:.0%} of your time has passed: you have {left} left, then everything you have started is "
                "killed. Work that is not submitted by then is lost."
            )

    def _send_text(self, text: str) -> None:
        self._send(json.dumps({"type": "user", "message": {"role": "user", "content": text}}))


class AnswerListener:
    """Finds the end of an answer in an agent's output, of which it reads a limited amount at a time.

    Args:
        transcript: The file with the output; None if there is nothing to listen to.
    """

    def __init__(self, transcript: Path | None) -> None:
        self._transcript = transcript
        self._read = 0
        self._line = b""

    def has_heard_an_answer(self) -> bool:
        """Reads new output and says whether an answer has ended in it."""
        if self._transcript is None:
            return False
        try:
            with self._transcript.open("rb") as file:
                file.seek(self._read)
                new = file.read(MAX_READ_BYTES)
        except FileNotFoundError:
            return False
        self._read += len(new)
        *whole, self._line = (self._line + new).split(b"\n")
        if len(self._line) > MAX_LINE_BYTES:  # an event that ends an answer is never this long
            self._line = b""
        return any(_ends_an_answer(line) for line in whole)


def _ends_an_answer(line: bytes) -> bool:
    """Says whether a line of Claude Code's output is the event that ends an answer."""
    if b'"result"' not in line or len(line) > MAX_LINE_BYTES:
        return False
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(event, dict) and event.get("type") == "result"
