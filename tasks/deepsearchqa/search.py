"""The grader's search: over pages in the data, the live web, or a recording of it.

    with open_search(hidden, options, settings, failures_allowed=20) as ask:
        hits = ask("seat of Balco").result()     # raises SearchError

Every answer of the live web is recorded by engine and query, before results are blocked. So the searches of a graded
run can be inspected (`data/searches.db`, table `answers`) and repeated offline.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import digest_of
from a2rl.core.settings import Settings
from a2rl.judge.cache import AnswerCache
from a2rl.task_api.contract import Options
from tasks.deepsearchqa.research import Hit, Index, read_pages
from tasks.deepsearchqa.web import DuckDuckGo, Engine, RetryPolicy, Search, SearchError, Searxng, SerpApi, WebSearch

VARIABLES = {"serpapi": ("SERPAPI_KEY", "SERPAPI_API_KEY"), "searxng": ("SEARXNG_URL",)}
"""The environment variables with an engine's key or address; the first that is set counts."""
SHOWN = 3
"""Number of results that the model sees, as in the reference."""
RETRIES = RetryPolicy()
TRIAL = "highest mountain"
"""A query that every engine can answer."""
MAX_CONCURRENT_REQUESTS = 8
"""Maximum number of concurrent requests to the live web."""

Ask = Callable[[str], Future[Sequence[Hit]]]
"""Starts a search; the exception of its future is SearchError."""


@contextmanager
def open_search(hidden: Path, options: Options, settings: Settings, failures_allowed: int) -> Iterator[Ask]:
    """Opens the search that the options name.

    Raises:
        UsageError: the data has no pages, or the engine's key or URL is not set.
        InfrastructureError: the recording cannot be opened.
    """
    engine, recording = options["search"], options["recording"]
    if engine == "pages":
        yield _immediate(_pages(hidden))
        return
    with ExitStack() as stack:
        store = stack.enter_context(AnswerCache(settings.searches)) if recording != "off" else None
        threads = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS)
        stack.callback(threads.shutdown, cancel_futures=True)
        live: Search = _offline
        if recording != "replay":  # closed first, which ends its pending requests
            retries = replace(RETRIES, failures_allowed=failures_allowed)
            live = stack.enter_context(WebSearch(_engine(engine, settings), retries))
        search = live if store is None else Recording(engine, store, live)
        yield lambda query: threads.submit(search, query)


def check_search(options: Options, settings: Settings, ask: bool) -> str:
    """Tries the engine that the options name and returns its name; empty if they need none.

    Raises:
        UsageError: Its key or URL is not set.
        InfrastructureError: It does not answer.
    """
    if options["search"] == "pages" or options["recording"] == "replay":
        return ""
    engine = _engine(options["search"], settings)
    if ask:
        with WebSearch(engine, replace(RETRIES, attempts=2)) as search:
            try:
                search(TRIAL)
            except SearchError as error:
                raise InfrastructureError(f"the search engine does not answer: {error}") from error
    return engine.name


class Recording:
    """Answers of an engine by query: recorded ones, and new ones of `live`."""

    def __init__(self, engine: str, store: AnswerCache, live: Search) -> None:
        self._engine, self._store, self._live = engine, store, live

    def __call__(self, query: str) -> Sequence[Hit]:
        """Returns the recorded results, or asks the engine and records them."""
        asked = {"engine": self._engine, "query": query}
        key = digest_of(asked)
        if (found := self._store.find(key)) is not None:
            return [Hit(**hit) for hit in found["hits"]]
        hits = self._live(query)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.store(key, {**asked, "at": at, "hits": [hit._asdict() for hit in hits]})
        return self(query)  # whichever answer was stored first, if another thread asked the same


def _offline(query: str) -> Sequence[Hit]:
    raise SearchError(f"the recording has no answer to {query!r}: grade with --recording record to ask the engine")


def _immediate(search: Search) -> Ask:
    """Wraps a fast search, which needs no thread."""

    def ask(query: str) -> Future[Sequence[Hit]]:
        found = Future[Sequence[Hit]]()
        found.set_result(search(query))
        return found

    return ask


def _pages(hidden: Path) -> Search:
    try:
        index = Index(read_pages(hidden / "pages"))
    except ValueError as error:
        raise UsageError(f"the pages cannot be read: {error}") from error
    if not index.pages:
        raise UsageError(
            "the data has no pages to search: grade with --search serpapi or --search searxng, or prepare it from a "
            "mirror with a folder pages/"
        )
    return lambda query: index.search(query, SHOWN)


def _engine(name: str, settings: Settings) -> Engine:
    if name == "duckduckgo":
        return DuckDuckGo()
    variables = VARIABLES[name]
    value = next((value for each in variables if (value := settings.environ.get(each))), None)
    if value is None:
        raise UsageError(f"--search {name} needs {variables[0]} in the environment; --recording replay does not")
    if name == "serpapi":
        return SerpApi(value)
    if not value.startswith(("http://", "https://")):
        raise UsageError(f"{variables[0]}={value} is not a valid URL: use one like http://127.0.0.1:8080")
    return Searxng(value)
