"""The record of an agent's requests to its LLM: `logs/llm.jsonl`, a line for each, and what they come to in all."""

import json
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from a2rl.run import RunDir

MAX_MODELS = 20
"""By name; what more there are is counted under one."""
OTHERS, UNNAMED = "(others)", "(no name)"


class Request(BaseModel):
    """A line."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    t: float
    path: str
    asked: str = ""
    """The model that was asked."""
    answered: str = ""
    """The model that answered, as the provider names it."""
    status: int
    refused: str = ""
    """Why it was not passed on, if it was not."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    """The answer did not say what it took, or was broken off: counted by its length."""
    server_tools: tuple[str, ...] = ()
    seconds: float = 0.0


class ModelUse(BaseModel):
    """What one model was used for."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class LlmUse(BaseModel):
    """What an agent asked of its LLM, as it was seen on the way: not what it says itself."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests: int = 0
    refused: int = 0
    failed: int = 0
    """That the provider answered with an error."""
    estimated: int = 0
    """Whose tokens had to be estimated."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    models: dict[str, ModelUse] = {}
    """By the name that was asked for."""
    answered: dict[str, str] = {}
    """Where another model answered than was asked: the name that was asked for, and the one that answered."""
    server_tools: dict[str, int] = {}
    """In how many requests each of the provider's own tools was offered: what they do, no sandbox confines."""

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def other_models(self, driver: str | None) -> dict[str, ModelUse]:
        """Those that are not the driver."""
        return {name: use for name, use in self.models.items() if name != driver}


class LlmLog:
    """Reads the record as it grows; each look reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0
        self._requests = self._refused = self._failed = self._estimated = 0
        self._models: dict[str, list[int]] = {}
        self._answered: dict[str, str] = {}
        self._tools: dict[str, int] = {}

    def look(self) -> LlmUse:
        """All so far."""
        for request in self._new():
            self._add(request)
        models = {
            name: ModelUse(requests=count, prompt_tokens=prompt, completion_tokens=completion)
            for name, (count, prompt, completion) in self._models.items()
        }
        return LlmUse(
            requests=self._requests,
            refused=self._refused,
            failed=self._failed,
            estimated=self._estimated,
            prompt_tokens=sum(use.prompt_tokens for use in models.values()),
            completion_tokens=sum(use.completion_tokens for use in models.values()),
            models=models,
            answered=dict(self._answered),
            server_tools=dict(self._tools),
        )

    def _new(self) -> Iterator[Request]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            try:
                yield Request.model_validate(json.loads(line))
            except (ValueError, ValidationError):
                continue  # cut short by a crash

    def _add(self, request: Request) -> None:
        self._requests += 1
        self._refused += bool(request.refused)
        self._failed += not request.refused and request.status >= 400
        self._estimated += request.estimated
        for tool in request.server_tools:
            _count(self._tools, tool)
        if request.asked or request.prompt_tokens or request.completion_tokens:
            asked = request.asked or UNNAMED
            name = asked if asked in self._models or len(self._models) < MAX_MODELS else OTHERS
            sums = self._models.setdefault(name, [0, 0, 0])
            for place, value in enumerate((1, request.prompt_tokens, request.completion_tokens)):
                sums[place] += value
            if request.answered and not request.answered.startswith(request.asked):
                self._answered.setdefault(name, request.answered)


def _count(counts: dict[str, int], name: str) -> None:
    name = name if name in counts or len(counts) < MAX_MODELS else OTHERS
    counts[name] = counts.get(name, 0) + 1


def llm_log(run: RunDir) -> Path:
    return run.logs / "llm.jsonl"


def llm_use(run: RunDir) -> LlmUse | None:
    """What was seen in all of the run; None where its requests did not pass through our hands."""
    path = llm_log(run)
    return LlmLog(path).look() if path.exists() else None
