"""What the grader searches: the pages that come with the data, the live web, or a recording of it.

    with open_search(hidden, options, settings, failures_allowed=20) as ask:
        hits = ask("seat of Balco").result()     # raises SearchFailed

Every answer of the live web is recorded, under the engine and the query, as it came: before anything is blocked. So a
graded run can be looked into (`data/searches.db`, table `answers`) and repeated offline.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from a2rl.errors import UsageError
from a2rl.files import digest_of
from a2rl.judge.cache import AnswerCache
from a2rl.settings import Settings
from a2rl.task import Options
from tasks.deepsearchqa.research import Hit, Index, read_pages
from tasks.deepsearchqa.web import Engine, Patience, Search, SearchFailed, Searxng, SerpApi, WebSearch

SHOWN = 3
"""Results that the model sees, as in the reference."""
PATIENCE = Patience()
AT_ONCE = 8
"""Requests to the live web under way."""

Ask = Callable[[str], Future[Sequence[Hit]]]
"""A search under way; its exception is SearchFailed."""


@contextmanager
def open_search(hidden: Path, options: Options, settings: Settings, failures_allowed: int) -> Iterator[Ask]:
    """What the options ask for.

    Raises:
        UsageError: the data has no pages, or the engine's key or address is not set.
        InfrastructureError: the recording cannot be opened.
    """
    engine, recording = options["search"], options["recording"]
    if engine == "pages":
        yield _at_once(_pages(hidden))
        return
    with ExitStack() as stack:
        store = stack.enter_context(AnswerCache(settings.searches)) if recording != "off" else None
        threads = ThreadPoolExecutor(AT_ONCE)
        stack.callback(threads.shutdown, cancel_futures=True)
        live: Search = _offline
        if recording != "replay":  # left first, which ends the requests under way
            patience = replace(PATIENCE, failures_allowed=failures_allowed)
            live = stack.enter_context(WebSearch(_engine(engine, settings), patience))
        search = live if store is None else Recording(engine, store, live)
        yield lambda query: threads.submit(search, query)


class Recording:
    """Answers of an engine by query: those there are, and those that `live` gives."""

    def __init__(self, engine: str, store: AnswerCache, live: Search) -> None:
        self._engine, self._store, self._live = engine, store, live

    def __call__(self, query: str) -> Sequence[Hit]:
        asked = {"engine": self._engine, "query": query}
        key = digest_of(asked)
        if (found := self._store.find(key)) is not None:
            return [Hit(**hit) for hit in found["hits"]]
        hits = self._live(query)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.store(key, {**asked, "at": at, "hits": [hit._asdict() for hit in hits]})
        return self(query)  # what was stored first, in case somebody asked the same meanwhile


def _offline(query: str) -> Sequence[Hit]:
    raise SearchFailed(f"the recording has no answer to {query!r}: the model asks something else today")


def _at_once(search: Search) -> Ask:
    """A search that takes no time, as a future."""

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
    variable = {"serpapi": "SERPAPI_API_KEY", "searxng": "SEARXNG_URL"}[name]
    if not (value := settings.environ.get(variable)):
        raise UsageError(f"--search {name} needs {variable} in the environment; --recording replay needs nothing")
    if name == "serpapi":
        return SerpApi(value)
    if not value.startswith(("http://", "https://")):
        raise UsageError(f"{variable}={value} is no address: give one like http://127.0.0.1:8080")
    return Searxng(value)
