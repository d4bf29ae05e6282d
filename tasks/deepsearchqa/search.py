"""What the grader searches: the pages that come with the data, the live web, or a recording of it.

    with open_search(hidden, options, settings, failures_allowed=20) as search:
        hits = search("seat of Balco")

Every answer of the live web is recorded, under the engine and the query, as it came: before anything is blocked. So a
graded run can be looked into (`data/searches.db`, table `answers`) and repeated offline.
"""

from collections.abc import Iterator, Sequence
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


@contextmanager
def open_search(hidden: Path, options: Options, settings: Settings, failures_allowed: int) -> Iterator[Search]:
    """The Search that the options ask for.

    Raises:
        UsageError: the data has no pages, or the engine's key or address is not set.
        InfrastructureError: the recording cannot be opened.
    """
    engine, recording = options["search"], options["recording"]
    with ExitStack() as stack:
        if engine == "pages":
            yield _pages(hidden)
            return
        live: WebSearch | None = None
        if recording != "replay":
            patience = replace(PATIENCE, failures_allowed=failures_allowed)
            live = stack.enter_context(WebSearch(_engine(engine, settings), patience))
        if live is not None and recording == "off":
            yield live
        else:
            yield Recording(engine, stack.enter_context(AnswerCache(settings.searches)), live)


class Recording:
    """Answers of an engine by query: those there are, and those that `live` gives."""

    def __init__(self, engine: str, store: AnswerCache, live: Search | None) -> None:
        self._engine, self._store, self._live = engine, store, live

    def __call__(self, query: str) -> Sequence[Hit]:
        asked = {"engine": self._engine, "query": query}
        key = digest_of(asked)
        if (found := self._store.find(key)) is not None:
            return [Hit(**hit) for hit in found["hits"]]
        if self._live is None:
            raise SearchFailed(f"the recording has no answer to {query!r}: the model asks something else today")
        hits = self._live(query)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        self._store.store(key, {**asked, "at": at, "hits": [hit._asdict() for hit in hits]})
        return hits


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
