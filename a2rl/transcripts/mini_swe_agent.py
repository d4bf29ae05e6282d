"""mini-swe-agent: the trajectory file of `mini --output`, format mini-swe-agent-1.1.

One JSON object: `info`, and `messages` as they went to the LLM, each with what is known of it in `extra`
(mini-swe-agent.com/latest/usage/output_files). It is written anew after each step, so that a run that was cut off
leaves all but its last one. Costs are litellm's, from its own price list, where a model without price costs 0: unknown.
"""

import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, Field

from a2rl.transcripts.atif import Metrics, Usd
from a2rl.transcripts.reading import ChatUsage, Draft, Reading, Turn, arguments

ENDED_WELL = {"", "Submitted"}


class Response(BaseModel):
    model: str | None = None
    usage: ChatUsage | None = None


Answered = Annotated[Response | None, BeforeValidator(lambda value: value if isinstance(value, dict) else None)]
"""Where it could not be written as JSON, the response is its `repr`."""


class Extra(BaseModel):
    timestamp: Annotated[float, Field(ge=0, le=1e11)] | None = None
    response: Answered = None
    cost: Usd = 0.0
    exception_str: str = ""

    def time(self) -> str | None:
        return None if self.timestamp is None else datetime.fromtimestamp(self.timestamp, UTC).isoformat()

    def metrics(self) -> Metrics | None:
        usage = self.response.usage if self.response else None
        return usage.metrics(self.cost) if usage else None


class Function(BaseModel):
    name: str
    arguments: str = ""


class Call(BaseModel):
    id: str
    function: Function


class Message(BaseModel):
    role: str
    content: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str = ""
    extra: Extra = Extra()


class Model(BaseModel):
    model_name: str | None = None


class Config(BaseModel):
    model: Model = Model()


class Info(BaseModel):
    mini_version: str | None = None
    exit_status: str | None = None
    config: Config = Config()


def read(lines: Iterable[str]) -> Reading:
    """What was said and done, and what it took."""
    draft = Draft()
    document = draft.document(lines)
    messages = document.get("messages", [])
    for value in messages if isinstance(messages, list) else []:
        if (message := draft.fit(value, Message)) is not None:
            _take(draft, message)
    if (info := draft.fit(document.get("info", {}), Info)) is not None:
        draft.agent_version, draft.model = info.mini_version, info.config.model.model_name
        if (status := info.exit_status or "") not in ENDED_WELL:
            draft.failure = ": ".join(filter(None, (status, draft.failure)))
    costs = [turn.metrics.cost_usd for turn in draft.turns if turn.metrics]
    draft.cost_usd = math.fsum(cost for cost in costs if cost) if costs and all(costs) else None
    return draft.reading()


def _take(draft: Draft, message: Message) -> None:
    match message.role:
        case "assistant":
            turn = _answer(draft, message)
            for call in message.tool_calls or ():
                draft.call(turn, call.id, call.function.name, arguments(call.function.arguments))
        case "tool":
            draft.result(message.tool_call_id, message.content or "")
        case "exit":
            draft.failure = message.extra.exception_str or None
        case "system" | "user":
            if message.extra.response is not None:
                _answer(draft, Message(role="assistant", extra=message.extra))
            draft.turn(_source(message.role), message.content or "", timestamp=message.extra.time())


def _answer(draft: Draft, message: Message) -> Turn:
    """A step of the agent. An answer without a command is only kept with the complaint about it, which follows it."""
    response = message.extra.response
    turn = draft.turn(
        "agent",
        message.content or "",
        timestamp=message.extra.time(),
        model=response.model if response else None,
        metrics=message.extra.metrics(),
    )
    if message.reasoning_content:
        turn.reasoning.append(message.reasoning_content)
    return turn


def _source(role: str) -> Literal["system", "user"]:
    return "system" if role == "system" else "user"
