"""RD-Agent: the output of agents/rd-agent/run.py.

Each line is a JSON object of one of the kinds that agents/rd-agent/parts.py defines. RD-Agent calls its LLM without
tools, and each request is independent: the request becomes a step of the user, and the answer a step of the agent.
RD-Agent itself runs the code in an answer. Each such run becomes a call of `run_code` in the step of the last answer
before it, and the result of the call contains the grader's answer.
"""

import json
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import BaseModel, Field

from a2rl.agent_systems.transcripts.reading import Reading, Turn, iso_time


class Line(BaseModel):
    """A line of any kind."""

    kind: str
    time: Annotated[float, Field(ge=0, le=1e11)] | None = None
    id: str | None = None
    model: str | None = None
    version: str | None = None
    prompt: str = ""
    stage: str = ""
    asked: str = ""
    text: str | None = None
    reasoning: str | None = None
    exit_code: int | None = None
    stdout: str = ""
    running_time: float | None = None
    benchmark: dict[str, Any] | None = None
    detail: str = ""


class Session:
    """The lines read so far."""

    def __init__(self) -> None:
        self.reading = Reading()
        self._answer: Turn | None = None
        self._runs = 0

    def take(self, line: Line) -> None:
        """Reads the next line."""
        reading = self.reading
        match line.kind:
            case "Session":
                reading.session_id, reading.model, reading.agent_version = line.id, line.model, line.version
                reading.turn("user", line.prompt, timestamp=iso_time(line.time))
            case "Answer":
                reading.fail(None)  # the agent continued after the error
                reading.turn("user", line.asked, timestamp=iso_time(line.time))
                self._answer = reading.turn(
                    "agent",
                    line.text or "",
                    timestamp=iso_time(line.time),
                    model=line.model,
                    reasoning=[line.reasoning] if line.reasoning else [],
                    extra={"stage": line.stage} if line.stage else None,
                )
            case "Run" if self._answer is not None:
                self._ran(self._answer, line)
            case "Error" | "Failure":
                reading.fail(line.detail)

    def _ran(self, answer: Turn, line: Line) -> None:
        self._runs += 1
        call_id = f"run-{self._runs}"
        self.reading.call(answer, call_id, "run_code", {})
        graded = f"\nThe grader's answer: {json.dumps(line.benchmark)}" if line.benchmark else ""
        self.reading.result(call_id, line.stdout + graded, exit_code=line.exit_code, seconds=line.running_time)


def read(lines: Iterable[str]) -> Reading:
    """Reads a transcript in this format."""
    session = Session()
    for line in session.reading.fitting(lines, Line):
        session.take(line)
    return session.reading.finished()
