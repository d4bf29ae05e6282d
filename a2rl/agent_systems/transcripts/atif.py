"""A trajectory records step by step what an agent system said, did and saw, and what it cost in all.

The format is ATIF-v1.8, Harbor's Agent Trajectory Interchange Format (harborframework.com/docs/trajectory-format). It
is defined by the models of the PyPI package `harbor` 0.25.0, src/harbor/models/trajectories. Viewers and training
pipelines made for this format can therefore read our files. All names and rules are those of the format. Optional parts
that nothing here produces are left out, such as the tokens of a step, images, log-probabilities and embedded subagents.
Our readers ignore them.

Trajectory(agent=Agent(name="claude-code", version="2.1.330"), steps=(Step(step_id=1, source="user", message="Go."),))
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from a2rl.core.files import FrozenModel

VERSION: Literal["ATIF-v1.8"] = "ATIF-v1.8"
MAX_COUNT = 2**53
"""Every JSON reader represents whole numbers up to this one exactly."""
Extra = dict[str, Any] | None


class Agent(FrozenModel):
    """The agent system that acted."""

    name: str
    version: str
    model_name: str | None = None


class ToolCall(FrozenModel):
    """One action that the agent asked for."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class ObservationResult(FrozenModel):
    """The result of one action."""

    source_call_id: str | None = None
    content: str | None = None
    extra: Extra = None


class Observation(FrozenModel):
    """The results of all actions of a step."""

    results: tuple[ObservationResult, ...]


class Step(FrozenModel):
    """One turn of the system, the user or the agent. A step that asks for actions also contains their results."""

    step_id: Annotated[int, Field(ge=1, le=MAX_COUNT)]
    timestamp: str | None = None
    """ISO 8601."""
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    observation: Observation | None = None
    extra: Extra = None

    @property
    def at(self) -> float | None:
        """The timestamp in seconds since 1970; in UTC, unless it says otherwise. None if there is none."""
        if self.timestamp is None:
            return None
        moment = datetime.fromisoformat(self.timestamp)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()

    @field_validator("timestamp")
    @classmethod
    def _is_a_time(cls, value: str | None) -> str | None:
        if value is not None:
            datetime.fromisoformat(value)
        return value


class FinalMetrics(FrozenModel):
    """The totals of a trajectory."""

    total_prompt_tokens: int | None = None
    """All input tokens, cached or not."""
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    """The prompt tokens that came from a cache."""
    total_cost_usd: float | None = None
    total_steps: int | None = None


class Trajectory(FrozenModel):
    """The whole work of an agent in one run."""

    schema_version: Literal["ATIF-v1.8"] = VERSION
    session_id: str | None = None
    agent: Agent
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    final_metrics: FinalMetrics | None = None
    extra: Extra = None

    def to_json(self) -> str:
        """Returns the JSON text that is written to a file. Fields without a value are left out."""
        return self.model_dump_json(exclude_none=True, indent=1)
