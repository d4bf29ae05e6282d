"""A trajectory records step by step what an agent system said, did and saw, and what it cost.

The format is ATIF-v1.8, Harbor's Agent Trajectory Interchange Format (harborframework.com/docs/trajectory-format). It
is defined by the models of the PyPI package `harbor` 0.25.0, src/harbor/models/trajectories. Viewers and training
pipelines made for this format can therefore read our files. All names and rules are those of the format. Optional parts
that no agent system here produces are left out, such as images, token ids, log-probabilities and embedded subagents.

Trajectory(agent=Agent(name="claude-code", version="2.1.330"), steps=(Step(step_id=1, source="user", message="Go."),))
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from a2rl.core.files import StrictModel

VERSION: Literal["ATIF-v1.8"] = "ATIF-v1.8"
MAX_COUNT = 2**53
"""Every JSON reader represents whole numbers up to this one exactly."""
MAX_USD = 1e9

Count = Annotated[int, Field(ge=0, le=MAX_COUNT, strict=True)]
Usd = Annotated[float, Field(ge=0, le=MAX_USD, allow_inf_nan=False)]
Extra = dict[str, Any] | None


class Agent(StrictModel):
    """The agent system that acted."""

    name: str
    version: str
    model_name: str | None = None


class ToolCall(StrictModel):
    """One action that the agent asked for."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]


class ObservationResult(StrictModel):
    """The result of one action."""

    source_call_id: str | None = None
    content: str | None = None
    extra: Extra = None


class Observation(StrictModel):
    """The results of all actions of a step."""

    results: tuple[ObservationResult, ...]


class Metrics(StrictModel):
    """The tokens and the cost of the LLM's answer in a step."""

    prompt_tokens: Count | None = None
    """All input tokens, cached or not."""
    completion_tokens: Count | None = None
    cached_tokens: Count | None = None
    """The prompt tokens that came from a cache."""
    cost_usd: Usd | None = None


class Step(StrictModel):
    """One turn of the system, the user or the agent. A step that asks for actions also contains their results."""

    step_id: Annotated[int, Field(ge=1)]
    timestamp: str | None = None
    """ISO 8601."""
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    message: str
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
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

    @model_validator(mode="after")
    def _only_agents_act(self) -> Self:
        agents_own = ("model_name", "reasoning_content", "tool_calls", "metrics")
        if self.source != "agent" and (wrong := [name for name in agents_own if getattr(self, name) is not None]):
            raise ValueError(f"a step of the {self.source} has no {', '.join(wrong)}")
        return self

    @model_validator(mode="after")
    def _results_answer_calls(self) -> Self:
        known = {call.tool_call_id for call in self.tool_calls or ()}
        for result in self.observation.results if self.observation else ():
            if result.source_call_id is not None and result.source_call_id not in known:
                raise ValueError(f"no tool call {result.source_call_id!r} in step {self.step_id}")
        return self


class FinalMetrics(StrictModel):
    """The totals of a trajectory."""

    total_prompt_tokens: Count | None = None
    total_completion_tokens: Count | None = None
    total_cached_tokens: Count | None = None
    total_cost_usd: Usd | None = None
    total_steps: Count | None = None
    extra: Extra = None


class Trajectory(StrictModel):
    """The whole work of an agent in one run."""

    schema_version: Literal["ATIF-v1.8"] = VERSION
    session_id: str | None = None
    agent: Agent
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    extra: Extra = None

    @model_validator(mode="after")
    def _steps_are_numbered(self) -> Self:
        if [step.step_id for step in self.steps] != list(range(1, len(self.steps) + 1)):
            raise ValueError("step_id must count the steps from 1")
        return self

    def to_json(self) -> str:
        """Returns the JSON text that is written to a file. Fields without a value are left out."""
        return self.model_dump_json(exclude_none=True, indent=1)
