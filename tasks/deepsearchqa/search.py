"""The grader's search, over pages in the data or the live web, and which results must not be shown.

    with open_search(hidden, options, settings, failures_allowed=20) as ask:
        hits = ask("seat of Balco").result()     # raises SearchError

Every answer of the live web is recorded by engine and query, before results are blocked, and given again from then on.
So the searches of a graded run can be inspected (`data/searches.db`, table `answers`) and repeated. A search without
an answer raises SearchError, whatever the cause: an engine that is slow or down, that refuses, or that answers with
something other than search results.

Results may contain the answers: the data set's pages, its copies, and quotes of a question. A list of mirrors would
soon be outdated, so a result is blocked if its URL or text names the data set, or if it quotes the question. Pages that
reveal answers otherwise are not detected; the recording shows them.
"""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import digest_of
from a2rl.core.model_text import encodable
from a2rl.core.retries import RetryableError, is_retryable_status, read_body, retry_after_s, retry_request
from a2rl.core.settings import Settings
from a2rl.core.spelling import spelled
from a2rl.judge.cache import AnswerCache
from a2rl.task_api.contract import Options
from tasks.deepsearchqa.research import Hit, Index, read_pages
from tasks.deepsearchqa.research.episode import LONGEST_QUERY

VARIABLES = {"serpapi": ("SERPAPI_KEY", "SERPAPI_API_KEY"), "searxng": ("SEARXNG_URL",)}
"""The environment variables with an engine's key or address; the first that is set counts."""
SHOWN = 3
"""Number of results that the model sees, as in the reference."""
TRIAL = "highest mountain"
"""A query that every engine can answer."""
MAX_CONCURRENT_REQUESTS = 8
"""Maximum number of concurrent requests to the live web."""
RESULTS = 10
"""Number of results requested: more than are shown, because some may be blocked."""
LARGEST_REPLY = 4 << 20
REASON_SHOWN = 200
NAMES = re.compile(r"deep[\W_]?search[\W_]?qa|\bdsqa\b|2601\.20975|ryanduy/demacia", re.IGNORECASE)
"""The data set (google/deepsearchqa on the hub, and its leaderboard), its file, its paper, and its copies on the hub,
of which one has another name."""
QUOTED_WORDS = 10
"""A result with this many consecutive words of the question quotes it."""
_WORD = re.compile(r"[^\W_]+")


Ask = Callable[[str], Future[Sequence[Hit]]]
"""Starts a search; the exception of its future is SearchError."""


class SearchError(Exception):
    """A search got no answer; the text is the reason."""


class NotAskedError(SearchError):
    """The engine was not asked, because it has failed too often."""


@dataclass(frozen=True, slots=True)
class SerpApi:
    """Google through serpapi.com, as the reference asks it (eval.py, `_serpapi_search`)."""

    key: str
    url: str = "https://serpapi.com/search"
    name: str = "serpapi"

    def params(self, query: str) -> Mapping[str, str]:
        """Returns the parameters of a GET request."""
        return {"engine": "google", "q": query, "num": str(RESULTS), "api_key": self.key}

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        """Returns the results in a reply.

        Raises:
            RetryableError: The engine reports a failure, or the reply is not one to a search.
        """
        problem = str(reply.get("error", ""))
        if "hasn't returned any results" in problem:
            return []
        if problem:
            raise RetryableError(problem)
        return _hits(reply.get("organic_results"), snippet="snippet", url="link")


@dataclass(frozen=True, slots=True)
class Searxng:
    """A SearXNG server; its settings.yml must allow the format json."""

    base_url: str
    name: str = "searxng"

    @property
    def url(self) -> str:
        """Where GET requests go."""
        return f"{self.base_url.rstrip('/')}/search"

    def params(self, query: str) -> Mapping[str, str]:
        """See `SerpApi`."""
        return {"q": query, "format": "json"}

    def read(self, reply: Mapping[str, Any]) -> list[Hit]:
        """See `SerpApi`."""
        hits = _hits(reply.get("results"), snippet="content", url="url")
        if not hits and (silent := reply.get("unresponsive_engines")):
            raise RetryableError(f"none of its engines answers: {silent}")
        return hits[:RESULTS]


Engine = SerpApi | Searxng


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Timeouts and retries of an engine."""

    timeout_s: float = 10.0
    """For one attempt, including the whole transfer; as in the reference."""
    attempts: int = 4
    backoff_s: float = 1.0
    """Longest wait before the second attempt; doubles with each attempt."""
    failures_allowed: int = 20
    """After more consecutive failed queries the engine is no longer asked..."""
    pause_s: float = math.inf
    """...until so many seconds have passed, and then with one query."""


RETRIES = RetryPolicy()


class WebSearch(AbstractContextManager["WebSearch"]):
    """Searches with an engine; safe to use from several threads."""

    def __init__(self, engine: Engine, retries: RetryPolicy) -> None:
        self._engine, self._retries = engine, retries
        self._http = httpx.Client(timeout=retries.timeout_s, follow_redirects=True)
        self._closing = threading.Event()
        self._failures: list[str] = []
        self._paused_until = 0.0

    def __call__(self, query: str) -> list[Hit]:
        """Returns the results of a query. Raises SearchError."""
        if not query.strip():  # engines refuse it, but the model has written it, and the engine works
            return []
        retries = self._retries
        failures = list(self._failures)  # other threads may clear the list
        if len(failures) > retries.failures_allowed and time.monotonic() < self._paused_until:
            raise NotAskedError(f"not asked, because {len(failures)} queries in a row have failed: {failures[-1]}")
        self._paused_until = time.monotonic() + retries.pause_s  # for the others, while this one is asked
        try:
            hits = retry_request(lambda: self._ask(query), retries.attempts, retries.backoff_s, self._closing.wait)
        except (RetryableError, SearchError) as failure:
            reason = f"{self._engine.name}: {failure}"[:REASON_SHOWN]
            self._failures.append(reason)
            self._paused_until = time.monotonic() + retries.pause_s
            raise SearchError(reason) from failure
        self._failures.clear()
        return hits

    def __exit__(self, *_: object) -> None:
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


def _hits(rows: object, snippet: str, url: str) -> list[Hit]:
    if not isinstance(rows, list):
        raise RetryableError("its reply has no list of results")
    return [
        Hit(_text(row, "title"), text, _text(row, url))
        for row in rows
        if isinstance(row, dict) and (text := _text(row, snippet))
    ]


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    return encodable(value) if isinstance(value, str) else ""


@contextmanager
def open_search(
    hidden: Path, options: Options, settings: Settings, failures_allowed: int, pause_s: float = math.inf
) -> Iterator[Ask]:
    """Opens the search that the options name; see `RetryPolicy`.

    Raises:
        UsageError: the data has no pages, or the engine's key or URL is not set.
        InfrastructureError: the recording cannot be opened.
    """
    engine = options["search"]
    if engine == "pages":
        index = _index_of(hidden)

        def found_at_once(query: str) -> Future[Sequence[Hit]]:
            found = Future[Sequence[Hit]]()
            found.set_result(index.search(query, SHOWN))
            return found

        yield found_at_once
        return
    with ExitStack() as stack:
        store = stack.enter_context(AnswerCache(settings.searches))
        threads = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS)
        stack.callback(threads.shutdown, cancel_futures=True)
        # Closed first, which ends its pending requests.
        retries = replace(RETRIES, failures_allowed=failures_allowed, pause_s=pause_s)
        live = stack.enter_context(WebSearch(_engine(engine, settings), retries))
        yield lambda query: threads.submit(_recorded, query, engine, store, live)


def check_search(options: Options, settings: Settings, ask: bool) -> str:
    """Tries the search engine: see `check_services` of `a2rl.task_api.contract.ServiceGrader`."""
    if options["search"] == "pages":
        return ""
    engine = _engine(options["search"], settings)
    if ask:
        with WebSearch(engine, replace(RETRIES, attempts=2)) as search:
            try:
                search(TRIAL)
            except SearchError as error:
                raise InfrastructureError(f"the search engine does not answer: {error}") from error
    return engine.name


def _recorded(query: str, engine: str, store: AnswerCache, live: WebSearch) -> Sequence[Hit]:
    """Returns the recorded results of a query, or asks the engine and records them."""
    asked = {"engine": engine, "query": query}
    key = digest_of(asked)
    if (found := store.find(key)) is None:
        hits = [hit._asdict() for hit in live(query)]
        new: dict[str, Any] = {**asked, "at": datetime.now(UTC).isoformat(timespec="seconds"), "hits": hits}
        store.store(key, new)
        found = store.find(key) or new  # whichever answer was stored first, if another thread asked the same
    return [Hit(**{name: encodable(text) for name, text in hit.items()}) for hit in found["hits"]]


def _index_of(hidden: Path) -> Index:
    try:
        index = Index(read_pages(hidden / "pages"))
    except ValueError as error:
        raise UsageError(f"the pages cannot be read: {error}") from error
    if not index.pages:
        raise UsageError(
            "the data has no pages to search: grade with --search serpapi or --search searxng, or prepare it from a "
            "mirror with a folder pages/"
        )
    return index


def _engine(name: str, settings: Settings) -> Engine:
    variables = VARIABLES[name]
    value = next((value for each in variables if (value := settings.environ.get(each))), None)
    if value is None:
        raise UsageError(f"--search {name} needs {variables[0]} in the environment")
    if name == "serpapi":
        return SerpApi(value)
    if not value.startswith(("http://", "https://")):
        raise UsageError(f"{variables[0]}={value} is not a valid URL: use one like http://127.0.0.1:8080")
    return Searxng(value)


class Quotes:
    """Finds quotes of any of many questions in a text: so many consecutive words, whatever stands between them, however
    they are spelled.

    A question with fewer words is quoted if all of them occur in a row.
    """

    def __init__(self, questions: Iterable[str], quoted_words: int = QUOTED_WORDS) -> None:
        self._runs: dict[int, set[str]] = {}
        """Runs of words, by their number."""
        for words in map(_words, questions):
            length = min(quoted_words, len(words))
            self._runs.setdefault(length, set()).update(_runs_of(words, length))

    def occur_in(self, text: str) -> bool:
        """Whether the text quotes one of the questions."""
        words = _words(text)
        return any(run in runs for length, runs in self._runs.items() if length for run in _runs_of(words, length))


def _words(text: str) -> list[str]:
    return _WORD.findall(spelled(text).casefold())


def _runs_of(words: list[str], length: int) -> Iterable[str]:
    return (" ".join(words[start : start + length]) for start in range(len(words) - length + 1))


def is_leak(hit: Hit, question: str) -> bool:
    """Whether a result must not be shown to the model that answers this question."""
    quoted = Quotes([question]).occur_in(f"{hit.title} {hit.snippet}")
    return quoted or any(NAMES.search(spelled(text)) for text in hit)
