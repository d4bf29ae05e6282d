"""Scenarios: YAML files with the turns of an LLM at work.

    turns:
      - say: First I read the task.
        run: cat description.md
      - run: python code/train.py
        timeout_s: 120
        fault: {status: 429, times: 2}
      - say: Done.

    asides:
      - {asked: JSON, say: '{"decision": true}'}

Every turn except the last runs a command; the last one only says something, which ends the agent's work. Requests
without a tool for commands are answered by the first aside whose `asked` matches them.
"""

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.files import StrictModel, read_yaml, validation_message

SHIPPED = Path(__file__).with_name("scenarios")


class Usage(StrictModel):
    """Tokens of one answer. `input_tokens` includes cached ones, whatever the protocol reports."""

    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cached_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _cached_is_part_of_input(self) -> Self:
        if self.cached_tokens > self.input_tokens:
            raise ValueError("cached_tokens are part of input_tokens, so they cannot be larger")
        return self


class Fault(StrictModel):
    """A fault of the driver before it answers a turn."""

    status: Literal[401, 429, 500, 529]
    """Answer with this error status, in the protocol's format."""
    times: int | Literal["always"] = 1
    """How many requests for this turn of a conversation fail; later retries succeed."""


class Turn(StrictModel):
    """One turn of the scenario."""

    say: str = ""
    """Text of the answer."""
    run: str | None = None
    """A bash command: the tool call of the answer."""
    timeout_s: int = Field(default=600, gt=0)
    """Time limit of the command, passed to the CLI if its tool has a parameter for it."""
    usage: Usage | None = None
    """Tokens to report; estimated from the lengths of the texts by default."""
    fault: Fault | None = None


class Aside(StrictModel):
    """The answer to one kind of requests without tools."""

    asked: str
    """A regular expression that matches such requests."""
    say: str

    @field_validator("asked")
    @classmethod
    def _is_an_expression(cls, asked: str) -> str:
        try:
            re.compile(asked)
        except re.error as error:
            raise ValueError(f"{asked!r} is not a valid regular expression: {error}") from error
        return asked


class Scenario(StrictModel):
    """A whole scenario file."""

    turns: tuple[Turn, ...] = Field(min_length=1)
    asides: tuple[Aside, ...] = ()
    models: tuple[str, ...] = ("scripted-driver",)
    """The list of `GET /v1/models`; requests for other models are answered as well."""
    api_key: str | None = None
    """If given, requests with another key are rejected."""

    @model_validator(mode="after")
    def _only_the_last_turn_ends(self) -> Self:
        idle = [number for number, turn in enumerate(self.turns, start=1) if turn.run is None]
        if idle != [len(self.turns)]:
            raise ValueError(f"every turn but the last runs a command; without one: {idle}, of {len(self.turns)} turns")
        return self


def load_scenario(name: str) -> Scenario:
    """Loads a scenario by its path, or by the name of one that is part of a2rl.

    Raises:
        UsageError: There is no such scenario, or it is not valid; the message says where.
        IntegrityError: It is not a text in UTF-8.
    """
    path = Path(name) if Path(name).suffix else SHIPPED / f"{name}.yaml"
    if not path.is_file():
        raise unknown_name("scenario", name, [each.stem for each in SHIPPED.glob("*.yaml")])
    try:
        return Scenario.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UsageError(f"{path}: {validation_message(error)}") from error
