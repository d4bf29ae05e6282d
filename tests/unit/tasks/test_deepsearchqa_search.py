"""Tests the grader's searches: faulty engines, recordings that reproduce a run, results that must not be shown."""

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.processes import child_environment
from a2rl.core.settings import Settings
from a2rl.llm.keys import grader_keys
from tasks.deepsearchqa import search as searching
from tasks.deepsearchqa.research import Hit
from tasks.deepsearchqa.search import RetryPolicy, SearchError, Searxng, SerpApi, WebSearch, is_leak, open_search
from tests.fake_search import FakeEngine, fake_engine, one_page

QUICK = RetryPolicy(timeout_s=20, attempts=2, backoff_s=0.01)
HASTY = replace(QUICK, timeout_s=0.5)
LONG_S = 8
"""Less than a reply takes that trickles in, twice."""
LIVE = {"search": "searxng", "turns": "repaired"}
ASKED = "Which of the three towns on the river had the largest population in the year 1901?"


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine() as running:
        yield running


def ask(engine: FakeEngine, mood: str, query: str = "towns") -> list[Hit]:
    engine.mood = mood
    patience = HASTY if mood.startswith(("slow", "trickling")) else QUICK
    with WebSearch(Searxng(engine.url), patience) as search:
        return search(query)


def with_engine(settings: Settings, engine: FakeEngine) -> Settings:
    return replace(settings, environ={**settings.environ, "SEARXNG_URL": engine.url})


def test_searxng_is_asked_for_json(engine: FakeEngine) -> None:
    """It gives title, text and address."""
    assert ask(engine, "kind") == [Hit("A page", "All about towns.", "https://example.org/page")]
    assert engine.asked == [{"q": "towns", "format": "json"}]


def test_serpapi_is_asked_with_its_key(engine: FakeEngine) -> None:
    """It gives title, text and address."""
    with WebSearch(SerpApi("secret", url=f"{engine.url}/search"), QUICK) as search:
        assert search("towns") == [Hit("A page", "All about towns.", "https://example.org/page")]
        engine.mood = "none found"
        assert search("towns") == []
        engine.mood = "exhausted"
        with pytest.raises(SearchError, match="run out of searches"):
            search("towns")
    assert engine.asked[0] == {"engine": "google", "q": "towns", "num": "10", "api_key": "secret"}


def test_the_key_of_serpapi_has_the_references_or_the_older_name(settings: Settings) -> None:
    for names, key in ((("SERPAPI_KEY",), "a"), (("SERPAPI_API_KEY",), "b"), (("SERPAPI_KEY", "SERPAPI_API_KEY"), "a")):
        values = {"SERPAPI_KEY": "a", "SERPAPI_API_KEY": "b"}
        chosen = replace(settings, environ={name: values[name] for name in names})
        assert searching._engine("serpapi", chosen) == SerpApi(key)
        assert grader_keys(chosen) == chosen.environ


@pytest.mark.parametrize("mood", ["busy-once", "broken-once", "garbled-once", "html-once", "slow-once", "gone-once"])
def test_a_query_is_asked_again_where_that_may_help(engine: FakeEngine, mood: str) -> None:
    assert len(ask(engine, mood)) == 1
    assert len(engine.asked) == 2


@pytest.mark.parametrize(
    "mood",
    ["busy", "broken", "garbled", "html", "a list", "nested", "nonsense", "blind", "slow", "gone", "trickling"],
)
def test_an_engine_that_is_slow_down_or_wrong_fails_in_the_end(engine: FakeEngine, mood: str) -> None:
    started = time.monotonic()
    with pytest.raises(SearchError, match="searxng: "):
        ask(engine, mood)
    assert len(engine.asked) == QUICK.attempts
    assert time.monotonic() - started < LONG_S


def test_an_engine_that_refuses_is_not_asked_again(engine: FakeEngine) -> None:
    """One that is not there fails."""
    with WebSearch(Searxng("http://127.0.0.1:9"), QUICK) as search, pytest.raises(SearchError, match="reached"):
        search("towns")
    with pytest.raises(SearchError, match="403: no JSON here"):
        ask(engine, "refusing")
    assert len(engine.asked) == 1


def test_rows_that_are_no_results_are_left_out(engine: FakeEngine) -> None:
    """Nothing found is no failure."""
    assert ask(engine, "odd rows") == [Hit("", "Kept.", "")]
    assert ask(engine, "empty") == []


def test_an_empty_query_is_no_failure_of_the_engine(engine: FakeEngine) -> None:
    assert ask(engine, "refusing", " ") == []
    assert engine.asked == []


def test_an_engine_that_fails_all_the_time_is_not_asked_for_ever(engine: FakeEngine) -> None:
    engine.mood = "broken"
    with WebSearch(Searxng(engine.url), replace(QUICK, failures_allowed=2)) as search:
        for _ in range(6):
            with pytest.raises(SearchError):
                search("towns")
    assert len(engine.asked) == 3 * QUICK.attempts


def test_an_engine_that_works_again_is_found_by_one_query(engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    engine.mood = "refusing"
    with WebSearch(Searxng(engine.url), replace(QUICK, failures_allowed=1, pause_s=60)) as search:
        asked = []
        for passed in (0, 0, 0, 59, 1, 1, 60):
            now[0] += passed
            with pytest.raises(SearchError):
                search("towns")
            asked.append(len(engine.asked))
        engine.mood, now[0] = "kind", now[0] + 60
        assert asked == [1, 2, 2, 2, 3, 3, 4]
        assert [len(search("towns")) for _ in range(2)] == [1, 1]


def test_an_engine_that_fails_now_and_then_is_asked_on(engine: FakeEngine) -> None:
    with WebSearch(Searxng(engine.url), replace(QUICK, failures_allowed=1)) as search:
        for _ in range(4):
            engine.mood = "refusing"
            with pytest.raises(SearchError, match="403"):
                search("towns")
            engine.mood = "kind"
            assert search("towns")


def test_no_message_holds_the_key() -> None:
    with (
        WebSearch(SerpApi("secret", url="http://127.0.0.1:9/search"), QUICK) as search,
        pytest.raises(SearchError) as failure,
    ):
        search("towns")
    assert "secret" not in str(failure.value)


def test_a_recorded_answer_is_given_again(settings: Settings, engine: FakeEngine, tmp_path: Path) -> None:
    live = with_engine(settings, engine)
    with open_search(tmp_path, LIVE, live, 9) as ask:
        first = ask("towns").result()
        assert ask("towns").result() == first
    assert len(engine.asked) == 1
    engine.mood = "broken"
    with open_search(tmp_path, LIVE, live, 9) as ask:
        assert ask("towns").result() == first
    assert len(engine.asked) == 1


def test_failures_are_not_recorded(
    settings: Settings, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "RETRIES", QUICK)
    live = with_engine(settings, engine)
    engine.mood = "broken"
    with open_search(tmp_path, LIVE, live, 9) as ask, pytest.raises(SearchError):
        ask("towns").result()
    engine.mood = "kind"
    with open_search(tmp_path, LIVE, live, 9) as ask:
        assert len(ask("towns").result()) == 1


def test_searches_are_under_way_side_by_side(settings: Settings, engine: FakeEngine, tmp_path: Path) -> None:
    together = threading.Barrier(4)  # four threads must arrive to pass

    def found(query: str) -> list[tuple[str, str, str]]:
        together.wait(30)
        return one_page(query)

    engine.found = found
    with open_search(tmp_path, LIVE, with_engine(settings, engine), 9) as ask:
        under_way = [ask(f"town {number}") for number in range(4)]
        assert all(each.result() for each in under_way)


@pytest.mark.parametrize(("name", "variable"), [("serpapi", "SERPAPI_KEY"), ("searxng", "SEARXNG_URL")])
def test_a_key_or_address_that_is_not_set_is_a_usage_error(
    settings: Settings, tmp_path: Path, name: str, variable: str
) -> None:
    with pytest.raises(UsageError, match=variable), open_search(tmp_path, {**LIVE, "search": name}, settings, 9):
        pass


def test_bad_addresses_and_data_without_pages_are_usage_errors(settings: Settings, tmp_path: Path) -> None:
    wrong = replace(settings, environ={"SEARXNG_URL": "localhost"})
    with pytest.raises(UsageError, match="not a valid URL"), open_search(tmp_path, LIVE, wrong, 9):
        pass
    with pytest.raises(UsageError, match="no pages"), open_search(tmp_path, {**LIVE, "search": "pages"}, settings, 9):
        pass


def test_only_the_grader_gets_keys_of_search_engines_and_judges(settings: Settings) -> None:
    names = {"SERPAPI_API_KEY": "a", "SEARXNG_URL": "b", "GEMINI_API_KEY": "c", "OPENAI_API_KEY": "d"}
    rich = replace(settings, environ={**settings.environ, **names})
    assert names.items() <= grader_keys(rich).items()
    assert not names.keys() & child_environment(rich).keys()


@pytest.mark.parametrize(
    "hit",
    [
        Hit("google/deepsearchqa", "900 prompts", "https://huggingface.co/datasets/google/deepsearchqa"),
        Hit("viewer", "rows", "https://huggingface.co/datasets/somebody/DeepSearchQA-copy/viewer"),
        Hit("Demacia", "900 rows", "https://huggingface.co/datasets/Ryanduy/Demacia"),
        Hit("leaderboard", "scores", "https://www.kaggle.com/benchmarks/google/dsqa"),
        Hit("data", "csv", "https://example.org/files/DSQA-full.csv"),
        Hit("paper", "abstract", "https://arxiv.org/abs/2601.20975"),
        Hit("Answers", "All the questions of the DeepSearchQA benchmark with their answers.", "https://example.org"),
        Hit("Quiz", "\u200b".join(ASKED), "https://example.org"),
        Hit("deep\u00adsear\u200bch\uff31\uff21", "900 rows", "https://example.org"),
        Hit("Quiz", f"Q: {ASKED.upper()} A: Lyon", "https://example.org"),
        Hit("Quiz", "… three towns on the river had the largest population in the year 1901? Lyon.", "https://x.org"),
    ],
)
def test_what_may_hold_the_answers_is_blocked(hit: Hit) -> None:
    assert is_leak(hit, ASKED)


@pytest.mark.parametrize(
    "hit",
    [
        Hit("Census of 1901", "The largest population in the year 1901 was that of Lyon.", "https://example.org/1901"),
        Hit("Deep search", "A search engine that answers questions.", "https://example.org/deep/search"),
        Hit("", "", ""),
    ],
)
def test_other_results_are_shown(hit: Hit) -> None:
    assert not is_leak(hit, ASKED)
    assert not is_leak(hit, "")
