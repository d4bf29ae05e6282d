"""The log of an agent's requests to its LLM (`logs/llm.jsonl`, one line each), and their totals."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from a2rl.run.directory import RunDir
from a2rl.run.records import LlmUse, ModelUse

MAX_MODELS = 20
"""The number of models and of tools that are counted by name. All others are counted together."""
OTHERS, UNNAMED = "(others)", "(no name)"


class Request(BaseModel):
    """A line of the log: one request."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    t: float
    path: str
    asked: str = ""
    """The model that was requested."""
    answered: str = ""
    """The model that answered, as named by the provider."""
    status: int
    refused: str = ""
    """Why it was not forwarded; empty if it was."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    estimated: bool = False
    """Whether the tokens were estimated from the length, because the answer did not report them or was aborted."""
    server_tools: tuple[str, ...] = ()
    sampling: dict[str, str | int | float | bool] = {}
    """The settings of the answer that were sent, by the provider's names."""
    seconds: float = 0.0


class RequestLogReader:
    """Reads the log as it grows; each call reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._requests = self._refused = self._failed = self._estimated = 0
        self._models: dict[str, list[int]] = {}
        self._answered: dict[str, str] = {}
        self._tools: dict[str, int] = {}

    def read(self) -> LlmUse:
        """Returns the totals so far."""
        for request in self.requests():
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

    def requests(self) -> Iterator[Request]:
        """Yields the requests that were not read before; one that was only half written is left for the next time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
        except FileNotFoundError:
            return
        whole = new[: new.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            try:
                yield Request.model_validate(json.loads(line))
            except (ValueError, ValidationError):
                continue  # the line was truncated by a crash

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


def request_log_path(run: RunDir) -> Path:
    """Returns the path of a run's request log."""
    return run.logs / "llm.jsonl"


def read_llm_use(run: RunDir) -> LlmUse | None:
    """Returns the totals of a run; None if its requests did not pass through the relay."""
    path = request_log_path(run)
    return RequestLogReader(path).read() if path.exists() else None


class TokensSpent:
    """The tokens that an agent had used at any time, as the relay measured them."""

    def __init__(self, run: RunDir) -> None:
        requests = list(RequestLogReader(request_log_path(run)).requests())
        self._times = [request.t for request in requests]
        self._sums = list(accumulate((each.prompt_tokens + each.completion_tokens for each in requests), initial=0))

    def until(self, at: float) -> int | None:
        """Returns the tokens of all requests that had ended by then; None if there were no requests at all.

        Args:
            at: Seconds since 1970.
        """
        return self._sums[bisect_right(self._times, at)] if self._times else None
