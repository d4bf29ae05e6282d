"""Searches the live web: SerpAPI, DuckDuckGo and SearXNG behind one protocol, with retries.

    with WebSearch(Searxng("http://127.0.0.1:8080"), RetryPolicy()) as search:
        hits = search("population of Lyon 1901")

A search without an answer raises SearchError, whatever the cause: an engine that is slow or down, that refuses, or that
answers with something other than search results.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

import httpx

from a2rl.core.retries import RetryableError, is_retryable_status, read_body, retry_after_s, retry_request
from tasks.deepsearchqa.research import Hit
from tasks.deepsearchqa.research.episode import LONGEST_QUERY

RESULTS = 10
"""Number of results requested: more than are shown, because some may be blocked."""
RELATED_TOPICS = 2
LARGEST_REPLY = 4 << 20
REASON_SHOWN = 200


class SearchError(Exception):
    """A search got no answer; the text is the reason."""


class Search(Protocol):
    """Anything that can be searched: pages, the web, or a recording."""

    def __call__(self, query: str) -> Sequence[Hit]:
        """The results, best first. Raises SearchError."""
        ...


class Engine(Protocol):
    """A search engine's API: what to ask, and how its answer is read."""

    @property
    def name(self) -> str:
        """Its name in messages and recordings."""
        ...

    @property
    def url(self) -> str:
        """Where GET requests go."""
        ...

    def params(self, query: str) -> Mapping[str, str]:
        """Returns the parameters of a GET request."""
        ...

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        """The results in a reply.

        Raises:
            RetryableError: The engine reports a failure, or the reply is not one to a search.
        """
        ...


@dataclass(frozen=True, slots=True)
class SerpApi:
    """Google through serpapi.com, as the reference asks it (eval.py, `_serpapi_search`)."""

    key: str
    url: str = "https://serpapi.com/search"
    name: str = "serpapi"

    def params(self, query: str) -> Mapping[str, str]:
        """See `Engine`."""
        return {"engine": "google", "q": query, "num": str(RESULTS), "api_key": self.key}

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        """See `Engine`."""
        problem = str(reply.get("error", ""))
        if "hasn't returned any results" in problem:
            return []
        if problem:
            raise RetryableError(problem)
        return _hits(reply.get("organic_results"), snippet="snippet", url="link")


@dataclass(frozen=True, slots=True)
class DuckDuckGo:
    """DuckDuckGo's instant answers, without a key, as the reference asks them (eval.py, `_duckduckgo_search`).

    They are an abstract, or else the first related topics; most queries find neither.
    """

    url: str = "https://api.duckduckgo.com/"
    name: str = "duckduckgo"

    def params(self, query: str) -> Mapping[str, str]:
        """See `Engine`."""
        return {"q": query, "format": "json", "no_html": "1"}

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        """See `Engine`."""
        if abstract := _text(reply, "AbstractText"):
            return [Hit(_text(reply, "Heading"), abstract, _text(reply, "AbstractURL"))]
        return _hits(reply.get("RelatedTopics"), snippet="Text", url="FirstURL", title="Heading")[:RELATED_TOPICS]


@dataclass(frozen=True, slots=True)
class Searxng:
    """A SearXNG server; its settings.yml must allow the format json."""

    base_url: str
    name: str = "searxng"

    @property
    def url(self) -> str:
        """See `Engine`."""
        return f"{self.base_url.rstrip('/')}/search"

    def params(self, query: str) -> Mapping[str, str]:
        """See `Engine`."""
        return {"q": query, "format": "json"}

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        """See `Engine`."""
        hits = _hits(reply.get("results"), snippet="content", url="url")
        if not hits and (silent := reply.get("unresponsive_engines")):
            raise RetryableError(f"none of its engines answers: {silent}")
        return hits[:RESULTS]


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeouts and retries of an engine."""

    timeout_s: float = 10.0
    """For one attempt, including the whole transfer; as in the reference."""
    attempts: int = 4
    backoff_s: float = 1.0
    """Longest wait before the second attempt; doubles with each attempt."""
    failures_allowed: int = 20
    """After more consecutive failed queries the engine is no longer asked."""


class WebSearch:
    """Searches with an engine; safe to use from several threads."""

    def __init__(self, engine: Engine, retries: RetryPolicy) -> None:
        self._engine, self._retries = engine, retries
        self._http = httpx.Client(timeout=retries.timeout_s, follow_redirects=True)
        self._closing = threading.Event()
        self._failures: list[str] = []

    def __call__(self, query: str) -> list[Hit]:
        """Returns the results of a query. Raises SearchError."""
        retries = self._retries
        failures = list(self._failures)  # other threads may clear the list
        if len(failures) > retries.failures_allowed:
            raise SearchError(f"not asked, because {len(failures)} queries in a row have failed: {failures[0]}")
        try:
            hits = retry_request(lambda: self._ask(query), retries.attempts, retries.backoff_s, self._closing.wait)
        except (RetryableError, SearchError) as failure:
            reason = f"{self._engine.name}: {failure}"[:REASON_SHOWN]
            self._failures.append(reason)
            raise SearchError(reason) from failure
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
            raise RetryableError("its reply is not JSON") from error
        if not isinstance(reply, dict):
            raise RetryableError("its reply is not a JSON object")
        return self._engine.read(reply)

    def _get(self, params: Mapping[str, str]) -> bytes:
        """Returns the body of a reply. Error messages omit the URL, which may contain a key."""
        try:
            with self._http.stream("GET", self._engine.url, params=params) as response:
                status, after = response.status_code, response.headers.get("retry-after", "")
                body = read_body(response.iter_bytes(), LARGEST_REPLY, self._retries.timeout_s)
        except (httpx.HTTPError, httpx.InvalidURL, RuntimeError) as error:  # RuntimeError: the client was closed
            raise RetryableError(f"it cannot be reached ({type(error).__name__})") from error
        if is_retryable_status(status):
            raise RetryableError(f"it answered {status}", retry_after_s(after))
        if status != httpx.codes.OK:
            raise SearchError(f"it answered {status}: {' '.join(body.decode(errors='replace').split())}")
        return body


def _hits(rows: object, snippet: str, url: str, title: str = "title") -> list[Hit]:
    if not isinstance(rows, list):
        raise RetryableError("its reply has no list of results")
    return [
        Hit(_text(row, title), text, _text(row, url))
        for row in rows
        if isinstance(row, dict) and (text := _text(row, snippet))
    ]


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return value if isinstance(value, str) else ""
