"""What the driver plays: a YAML file with the turns of an LLM at work.

    turns:
      - say: First I look around.
        run: cat description.md
      - run: python code/train.py
        timeout_s: 120
        fault: {status: 429, times: 2}
      - say: Done.

    asides:
      - {asked: JSON, say: '{"decision": true}'}

Every turn but the last runs a command; the last one only says something, which ends the agent's work. Requests that
offer no tool for commands are answered by the first aside whose `asked` is found in them.
"""

import re
from pathlib import Path
from typing import Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from a2rl.errors import UsageError, unknown
from a2rl.files import explain

SHIPPED = Path(__file__).with_name("scenarios")


class Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Usage(Strict):
    """Tokens of one answer. `input_tokens` counts cached ones too, whatever a protocol's own habit is."""

    input_tokens: int = Field(ge=0)
    output_tokens: int = Field(ge=0)
    cached_tokens: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _cached_is_part_of_input(self) -> Self:
        if self.cached_tokens > self.input_tokens:
            raise ValueError("cached_tokens are part of input_tokens, so they cannot be more")
        return self


class Fault(Strict):
    """How the driver misbehaves before it answers a turn."""

    status: Literal[401, 429, 500, 529] | None = None
    """Refuse with this status, in the error form of the protocol."""
    garbage: bool = False
    """Answer 200 with half a body."""
    hang_s: float = Field(default=0.0, ge=0)
    """Be silent for so long first."""
    times: int | Literal["always"] = 1
    """How many requests for this turn of a conversation meet the fault; retries after that succeed."""


class Turn(Strict):
    say: str = ""
    """Text of the answer."""
    run: str | None = None
    """A bash command: the tool call of the answer."""
    timeout_s: int = Field(default=600, gt=0)
    """How long the command may take, told to the CLI where its tool has a setting for that."""
    usage: Usage | None = None
    """Tokens to report; unless given, they follow from the lengths of the texts."""
    fault: Fault | None = None


class Aside(Strict):
    """The answer to requests of one kind, for agents that ask without tools."""

    asked: str
    """A regular expression that is found in such requests."""
    say: str

    @field_validator("asked")
    @classmethod
    def _is_an_expression(cls, asked: str) -> str:
        try:
            re.compile(asked)
        except re.error as error:
            raise ValueError(f"{asked!r} is no regular expression: {error}") from error
        return asked


class Scenario(Strict):
    turns: tuple[Turn, ...] = Field(min_length=1)
    asides: tuple[Aside, ...] = ()
    models: tuple[str, ...] = ("scripted-driver",)
    """What `GET /v1/models` lists; requests for any other model are answered all the same."""
    api_key: str | None = None
    """Where given, a request with another key is refused."""

    @model_validator(mode="after")
    def _only_the_last_turn_ends(self) -> Self:
        idle = [number for number, turn in enumerate(self.turns, start=1) if turn.run is None]
        if idle != [len(self.turns)]:
            raise ValueError(f"every turn but the last runs a command; without one: {idle}, of {len(self.turns)} turns")
        return self


def load_scenario(name: str) -> Scenario:
    """A scenario by its path, or by the name of one that comes with a2rl.

    Raises:
        UsageError: there is none, or it is not valid; the message says where.
    """
    path = Path(name) if Path(name).suffix else SHIPPED / f"{name}.yaml"
    if not path.is_file():
        raise unknown("scenario", name, [each.stem for each in SHIPPED.glob("*.yaml")])
    try:
        return Scenario.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise UsageError(f"{path}: {explain(error)}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {' '.join(str(error).split())}") from error
