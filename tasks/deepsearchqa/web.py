"""Searching the live web: SerpAPI and SearXNG behind one protocol, asked again where that may help.

    with WebSearch(Searxng("http://127.0.0.1:8080"), Patience()) as search:
        hits = search("population of Lyon 1901")

A search that gets no answer in the end raises SearchFailed, whatever the matter was: an engine that is slow or down,
that refuses, or that answers with something else than search results.
"""

import json
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import httpx

from a2rl.retries import TryAgain, may_pass, persist, retry_after_s
from tasks.deepsearchqa.research import Hit

RESULTS = 10
"""Asked for at a time: more than are shown, so that something is left when some are blocked."""
LONGEST_QUERY = 500
LARGEST_REPLY = 4 << 20
REASON_SHOWN = 200


class SearchFailed(Exception):
    """A search that got no answer; its text is the reason."""


class Search(Protocol):
    """Whatever can be searched: pages, the web, a recording of either."""

    def __call__(self, query: str) -> Sequence[Hit]:
        """The results, best first. Raises SearchFailed."""
        ...


class Engine(Protocol):
    """A search engine's API: what to ask, and how its answer is read."""

    @property
    def name(self) -> str: ...

    @property
    def url(self) -> str: ...

    def params(self, query: str) -> Mapping[str, str]:
        """Of a GET request."""
        ...

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        """The results in a reply. Raises TryAgain: it says that there could be none, or is no reply to a search."""
        ...


@dataclass(frozen=True, slots=True)
class SerpApi:
    """Google through serpapi.com, as the reference asks it (eval.py, `_serpapi_search`)."""

    key: str
    url: str = "https://serpapi.com/search"
    name: str = "serpapi"

    def params(self, query: str) -> Mapping[str, str]:
        return {"engine": "google", "q": query, "num": str(RESULTS), "api_key": self.key}

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        problem = str(reply.get("error", ""))
        if "hasn't returned any results" in problem:
            return []
        if problem:
            raise TryAgain(problem)
        return _hits(reply.get("organic_results"), snippet="snippet", url="link")


@dataclass(frozen=True, slots=True)
class Searxng:
    """A SearXNG of one's own; its settings.yml must allow the format json."""

    base_url: str
    name: str = "searxng"

    @property
    def url(self) -> str:
        return f"{self.base_url.rstrip('/')}/search"

    def params(self, query: str) -> Mapping[str, str]:
        return {"q": query, "format": "json"}

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        hits = _hits(reply.get("results"), snippet="content", url="url")
        if not hits and (silent := reply.get("unresponsive_engines")):
            raise TryAgain(f"none of its engines answers: {silent}")
        return hits[:RESULTS]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long and how often an engine is asked."""

    timeout_s: float = 10.0
    """For one attempt, as the reference; the whole of it, however slowly the answer trickles in."""
    attempts: int = 4
    backoff_s: float = 1.0
    """The longest wait before the second attempt; it doubles from attempt to attempt."""
    failures_allowed: int = 20
    """Once more queries than these have failed in a row nothing more is asked."""


class WebSearch:
    """An engine as a Search; safe to use from several threads."""

    def __init__(self, engine: Engine, patience: Patience) -> None:
        self._engine, self._patience = engine, patience
        self._http = httpx.Client(timeout=patience.timeout_s, follow_redirects=True)
        self._closing = threading.Event()
        self._failures: list[str] = []

    def __call__(self, query: str) -> list[Hit]:
        patience = self._patience
        failures = list(self._failures)  # other threads may clear them
        if len(failures) > patience.failures_allowed:
            raise SearchFailed(f"not asked, after {len(failures)} others had failed: {failures[0]}")
        try:
            hits = persist(lambda: self._ask(query), patience.attempts, patience.backoff_s, self._closing.wait)
        except (TryAgain, SearchFailed) as failure:
            reason = f"{self._engine.name}: {failure}"[:REASON_SHOWN]
            self._failures.append(reason)
            raise SearchFailed(reason) from failure
        self._failures.clear()
        return hits

    def __enter__(self) -> "WebSearch":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._http.close()

    def _ask(self, query: str) -> list[Hit]:
        try:
            reply = json.loads(self._get(self._engine.params(query[:LONGEST_QUERY])))
        except (ValueError, RecursionError) as error:
            raise TryAgain("its reply is no JSON") from error
        if not isinstance(reply, dict):
            raise TryAgain("its reply is no JSON object")
        return self._engine.read(reply)

    def _get(self, params: Mapping[str, str]) -> bytes:
        """The body of a good reply. No message holds the address, which may hold a key."""
        deadline, body = time.monotonic() + self._patience.timeout_s, bytearray()
        try:
            with self._http.stream("GET", self._engine.url, params=params) as response:
                status, after = response.status_code, response.headers.get("retry-after", "")
                for block in response.iter_bytes():
                    body += block
                    if time.monotonic() > deadline:
                        raise TryAgain(f"its reply is not complete after {self._patience.timeout_s:g} s")
                    if len(body) > LARGEST_REPLY:
                        raise TryAgain("its reply is too large")
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:  # RuntimeError: closed meanwhile
            raise TryAgain(f"it cannot be reached ({type(error).__name__})") from error
        if may_pass(status):
            raise TryAgain(f"it answered {status}", retry_after_s(after))
        if status != httpx.codes.OK:
            raise SearchFailed(f"it answered {status}: {' '.join(body.decode(errors='replace').split())}")
        return bytes(body)


def _hits(rows: object, snippet: str, url: str) -> list[Hit]:
    if not isinstance(rows, list):
        raise TryAgain("its reply has no list of results")
    return [
        Hit(_text(row, "title"), text, _text(row, url))
        for row in rows
        if isinstance(row, dict) and (text := _text(row, snippet))
    ]


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""
