"""The log of an agent's requests to its LLM (`logs/llm.jsonl`, one line each), and their totals."""

import json
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, takewhile
from pathlib import Path

from pydantic import ValidationError

from a2rl.agent_systems.transcripts.ending import FailedRequest
from a2rl.core.files import FrozenModel
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentStarted, SubmissionAccepted
from a2rl.run.ledger import Entry
from a2rl.run.records import LlmUse, ModelUse, sum_known

MAX_MODELS = 20
"""The number of models, and of tools that were refused, that are shown by name. All others are shown together; of
models, those with the fewest tokens."""
FULL = "the record of requests to the LLM (logs/llm.jsonl) is full, so no more are forwarded"
COUNTING = re.compile(r".*(?:/count_tokens|:countTokens)")
"""The paths at which an API only counts the tokens of a request."""
VARIANT = re.compile(r"/compact$|:\w+$")
"""The end of a path that only says how the same endpoint is to answer."""
OTHERS, UNNAMED = "(others)", "(no name)"
NO_USE = ModelUse(cost_usd=0.0)


class Request(FrozenModel):
    """A line of the log: one request."""

    t: float
    """When it ended, in Unix seconds."""
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
    cache_read_tokens: int = 0
    """Those of `prompt_tokens` that were read from the provider's cache. The next two were written to it."""
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    cost_usd: float | None = None
    """None if the price is unknown."""
    estimated: bool = False
    """Whether the tokens were estimated from the length, because the answer did not report them or was aborted."""
    broken: bool = False
    """Whether the answer began well, but broke off or ended in an error, or had not begun when the relay ended."""
    server_tools: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether it has no answer, or only a part of one."""
        return self.status >= 400 or self.broken

    @property
    def endpoint(self) -> str:
        """Its path, which is the same for answers in a stream and for those in one piece."""
        return VARIANT.sub("", self.path)


class RequestLogReader:
    """Reads the log as it grows; each call reads what is new."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._requests = self._refused = self._failed = self._estimated = self._cached = 0
        self._models: dict[str, ModelUse] = {}
        self._answered: dict[str, str] = {}
        self._tools: dict[str, int] = {}

    def read(self) -> LlmUse:
        """Returns the totals so far."""
        for request in self.requests():
            self.add(request)
        return self.totals()

    def totals(self) -> LlmUse:
        """Returns the totals of what was read or added."""
        models: dict[str, ModelUse] = {}
        answered: dict[str, str] = {}
        most_first = sorted(self._models, key=lambda name: (name == OTHERS, -self._models[name].tokens))
        for place, name in enumerate(most_first):
            shown = name if place < MAX_MODELS else OTHERS
            models[shown] = models.get(shown, NO_USE).plus(self._models[name])
            if name in self._answered:
                answered.setdefault(shown, self._answered[name])
        return LlmUse(
            requests=self._requests,
            refused=self._refused,
            failed=self._failed,
            estimated=self._estimated,
            prompt_tokens=sum(use.prompt_tokens for use in models.values()),
            completion_tokens=sum(use.completion_tokens for use in models.values()),
            cached_tokens=self._cached,
            cost_usd=sum_known(use.cost_usd for use in models.values()),
            models=models,
            answered=answered,
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

    def add(self, request: Request) -> None:
        """Adds a request to the totals."""
        self._requests += 1
        self._refused += bool(request.refused)
        # One without a status was under way when the relay or the agent ended: that is no error of the provider.
        self._failed += request.status > 0 and not request.refused and request.has_failed
        self._estimated += request.estimated
        self._cached += request.cache_read_tokens
        for tool in request.server_tools:  # only the rules can name those that were not refused
            has_room = not request.refused or tool in self._tools or len(self._tools) < MAX_MODELS
            name = tool if has_room else OTHERS
            self._tools[name] = self._tools.get(name, 0) + 1
        tokens = request.prompt_tokens + request.completion_tokens
        if tokens or (request.asked and not request.has_failed):
            use = ModelUse(
                requests=1,
                prompt_tokens=request.prompt_tokens,
                completion_tokens=request.completion_tokens,
                cost_usd=request.cost_usd if tokens else 0.0,
            )
            name = request.asked or UNNAMED
            self._models[name] = self._models.get(name, NO_USE).plus(use)
            if request.answered and not request.answered.startswith(request.asked):
                self._answered.setdefault(name, request.answered)


def limit_reached(use: LlmUse, max_tokens: int | None, max_cost_usd: float | None) -> str:
    """Says which limit an agent has reached; empty if none. An unknown cost has reached every limit."""
    if max_tokens is not None and use.tokens >= max_tokens:
        return f"the limit of {max_tokens:,} tokens (--max-tokens) is used up"
    if max_cost_usd is not None and (use.cost_usd is None or use.cost_usd >= max_cost_usd):
        return f"the limit of ${max_cost_usd:g} (--max-cost-usd) is used up"
    return ""


def request_log_path(run: RunDir) -> Path:
    """Returns the path of a run's request log."""
    return run.logs / "llm.jsonl"


def read_llm_use(run: RunDir) -> LlmUse | None:
    """Returns the totals of a run; None if its requests did not pass through the relay."""
    path = request_log_path(run)
    return RequestLogReader(path).read() if path.exists() else None


def failed_requests(run: RunDir) -> list[FailedRequest] | None:
    """Returns the requests to the driver that failed since the last one that was answered, in the attempt that runs;
    None if its requests do not pass through the relay.

    Requests to other models do not count: agent systems ask small models for titles, and the agent itself may ask for
    one that does not exist. Nor do those that only count tokens. Once the driver has answered, only the endpoints at
    which it did count: the agent may ask for one that the API does not have.
    """
    if not request_log_path(run).exists():
        return None
    starts = [entry.at for entry in run.ledger.entries() if isinstance(entry.event, AgentStarted)]
    since = starts[-1] if starts else 0.0
    asked = [
        each
        for each in RequestLogReader(request_log_path(run)).requests()
        if each.t >= since and each.asked and not COUNTING.fullmatch(each.path)
    ]
    to_driver = [each for each in asked if each.asked == run.spec.driver] or asked
    answered = {each.endpoint for each in to_driver if not each.has_failed}
    to_driver = [each for each in to_driver if not answered or each.endpoint in answered]
    failed = takewhile(lambda each: each.has_failed, reversed(to_driver))
    return [FailedRequest(502 if each.broken else each.status, each.refused, bool(answered)) for each in failed][::-1]


def tokens_at_submissions(run: RunDir, entries: Sequence[Entry]) -> dict[int, int]:
    """Returns how many tokens the agent had used when each submission was accepted, as the relay measured them; nothing
    if there were no requests at all."""
    requests = list(RequestLogReader(request_log_path(run)).requests())
    times = [request.t for request in requests]
    sums = list(accumulate((each.prompt_tokens + each.completion_tokens for each in requests), initial=0))
    return {
        entry.event.submission_id: sums[bisect_right(times, entry.at)]
        for entry in entries
        if times and isinstance(entry.event, SubmissionAccepted)
    }
