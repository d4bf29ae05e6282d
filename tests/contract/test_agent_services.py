"""Tests the search and the judge that an agent has while it trains: quotas, records, and what they must not answer."""

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from a2rl.core.event_log import MAX_BYTES
from a2rl.core.files import write_jsonl
from a2rl.core.settings import Settings
from a2rl.execution.workspace import agent_environment
from a2rl.grading import agent_services
from a2rl.grading.agent_services import services_of
from a2rl.grading.app import create_app
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.judge.account import Account
from a2rl.judge.params import JudgeParams
from a2rl.run.directory import RunDir
from a2rl.run.draw import Draw
from a2rl.run.records import SetupRecord, judge_record
from a2rl.task_api.data import ensure_data
from tasks.deepsearchqa import search as searching
from tasks.deepsearchqa import services
from tasks.deepsearchqa.prepare import copy_tools
from tasks.deepsearchqa.research import read_pages, read_questions
from tasks.deepsearchqa.search import RetryPolicy
from tasks.deepsearchqa.task import TASK
from tests.fake_judge import FakeJudge, fake_judge
from tests.fake_search import FakeEngine, fake_engine
from tests.run_maker import FakePool, make_run

TRAIN = "Which of the three towns on the river Lor had the largest population in the year 1901?"
EVAL = "Which of the four ports on the coast of Dal had the smallest harbour in the year 1850?"
PARAPHRASE = "smallest harbour port Dal coast 1850"


def rows(problem: str, answer: str) -> list[dict[str, str]]:
    row = {"problem": problem, "answer": answer, "answer_type": "Single Answer", "problem_category": "Geography"}
    return [row]


def found(query: str) -> list[tuple[str, str, str]]:
    return [
        ("Quiz", f"Q: {TRAIN} A: Balco", "https://example.org/quiz"),
        ("Answers", f"{EVAL} Fenby.", "https://example.org/answers"),
        ("Data", "900 rows", "https://huggingface.co/datasets/google/deepsearchqa"),
        *((f"Page {n}", f"All about {query}, part {n}.", f"https://example.org/{n}") for n in range(5)),
    ]


@pytest.fixture
def engine() -> Iterator[FakeEngine]:
    with fake_engine(found=found) as running:
        yield running


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeJudge]:
    with fake_judge(tmp_path_factory.mktemp("judge")) as running:
        yield running


@pytest.fixture
def new_run(settings: Settings, base_model: Path, judge: FakeJudge, engine: FakeEngine) -> Callable[..., RunDir]:
    """Makes a run of the full variant with a fake engine and a fake judge."""

    def make(mood: str = "says correct", options: dict[str, str] | None = None, **changes: Any) -> RunDir:
        settings.environ["SEARXNG_URL"] = engine.url
        asked: JudgeParams = judge.params(
            mood, annotator="correct_or_incorrect", decoding={"temperature": 0}, attempts=1
        )
        run = make_run(settings, base_model, judge=asked, **changes)
        spec = json.loads((run.root / "spec.json").read_text())
        chosen = TASK.choose({"search": "searxng", **(options or {})})
        spec |= {"task": "deepsearchqa", "variant": changes.get("variant", "full"), "options": chosen}
        (run.root / "spec.json").write_text(json.dumps(spec))
        hidden = run.need("setup", SetupRecord).hidden
        write_jsonl(hidden / "eval.jsonl", rows(EVAL, "Fenby"))
        (hidden.parent / "visible").mkdir()
        write_jsonl(hidden.parent / "visible" / "train.jsonl", rows(TRAIN, "Balco"))
        return RunDir(run.root)

    return make


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "RETRIES", RetryPolicy(timeout_s=5, attempts=1, backoff_s=0.01))


@contextmanager
def api(run: RunDir, settings: Settings) -> Iterator[FastAPI]:
    with services_of(run, settings) as services:
        service = GradingService(run, cast(GraderPool, FakePool()))
        yield create_app(service, run.spec.task, [], services=services)


@contextmanager
def client(run: RunDir, settings: Settings) -> Iterator[TestClient]:
    with api(run, settings) as app:
        yield TestClient(app, raise_server_exceptions=False)


def test_a_search_finds_what_the_grader_shows_but_no_answers(
    new_run: Callable[..., RunDir], settings: Settings
) -> None:
    run = new_run()
    with client(run, settings) as asks:
        answer = asks.post("/search", json={"query": "towns on the Lor"})
        assert answer.status_code == 200
        body = answer.json()
    assert [hit["title"] for hit in body["hits"]] == ["Page 0", "Page 1", "Page 2"]
    assert body["hits"][0] == {
        "title": "Page 0", "snippet": "All about towns on the Lor, part 0.", "url": "https://example.org/0",
    }  # fmt: skip
    assert (body["blocked"], body["left"]) == (3, run.spec.max_searches - 1)
    [line] = (run.logs / "services.jsonl").read_text().splitlines()
    assert json.loads(line)["query"] == "towns on the Lor"


def test_a_run_with_drawn_questions_has_the_pages_of_its_data(
    new_run: Callable[..., RunDir], settings: Settings
) -> None:
    """What is drawn for a run has no pages and no training questions."""
    run = new_run(variant="mini", options={"search": "pages"})
    spec = json.loads((run.root / "spec.json").read_text()) | {"draw": Draw.fresh().model_dump(mode="json")}
    (run.root / "spec.json").write_text(json.dumps(spec))
    run, visible = RunDir(run.root), ensure_data("deepsearchqa", "mini", None, settings) / "visible"
    trained = read_questions(visible / "train.jsonl")[0]
    with client(run, settings) as asks:
        found = asks.post("/search", json={"query": next(read_pages(visible / "pages")).title})
        judged = asks.post("/judge", json={"question": trained.problem, "answer": trained.answer})
    assert (found.status_code, bool(found.json()["hits"])) == (200, True)
    assert judged.json()["correct"]


def test_a_torn_character_of_a_result_costs_nothing(
    new_run: Callable[..., RunDir], settings: Settings, engine: FakeEngine
) -> None:
    """Engines shorten snippets within an emoji."""
    engine.found = lambda query: [("Ni\ud83dce", "Nice \ud83d...", "https://example.org/\ud83d")]
    with client(new_run(), settings) as asks:
        for _ in range(2):  # asked, and recorded
            answer = asks.post("/search", json={"query": "towns"})
            assert (answer.status_code, answer.json()["hits"][0]["snippet"]) == (200, "Nice ?...")


@pytest.mark.parametrize("query", [EVAL, EVAL.upper(), f"please answer: {EVAL[10:]} thanks", EVAL.replace(" ", "\n- ")])
def test_an_eval_question_is_neither_searched_nor_judged(
    new_run: Callable[..., RunDir], settings: Settings, engine: FakeEngine, judge: FakeJudge, query: str
) -> None:
    run, before = new_run(), len(judge.asked())
    with client(run, settings) as asks:
        for path, body in (("/search", {"query": query}), ("/judge", {"question": query, "answer": "Fenby"})):
            answer = asks.post(path, json=body)
            assert (answer.status_code, "eval set" in answer.json()["error"]) == (403, True)
    assert not engine.asked
    assert len(judge.asked()) == before
    assert "Fenby" not in json.dumps([answer.json()])


def test_a_query_in_other_words_is_searched(new_run: Callable[..., RunDir], settings: Settings) -> None:
    with client(new_run(), settings) as asks:
        assert asks.post("/search", json={"query": PARAPHRASE}).status_code == 200


def test_only_training_questions_are_judged(
    new_run: Callable[..., RunDir], settings: Settings, judge: FakeJudge
) -> None:
    """The answer of the judge does not tell the gold answer."""
    run = new_run()
    with client(run, settings) as asks:
        answer = asks.post("/judge", json={"question": f"  {TRAIN}\n", "answer": "It is Balco."})
        assert answer.json() == {"correct": True, "verdict": 1.0, "left": run.spec.max_judgements - 1}
        asked = len(judge.asked())
        other = asks.post("/judge", json={"question": "Who was the mayor of Sor?", "answer": "Balco"})
        assert (other.status_code, "no question of data/train.jsonl" in other.json()["error"]) == (403, True)
        assert asks.post("/judge", json={"question": TRAIN, "answer": " "}).json()["verdict"] == 0.0
        assert len(judge.asked()) == asked  # an empty answer is wrong without asking
    record = judge_record(run)
    assert record is not None
    assert (record.use.requests, record.for_agent.requests, record.searches) == (1, 1, 0)
    assert record.for_agent.dollars > 0


@pytest.mark.parametrize("mood", ["garbled", "broken", "nested", "nan-usage", "endless-usage", "kind"])
def test_rubbish_of_the_judge_is_no_verdict(new_run: Callable[..., RunDir], settings: Settings, mood: str) -> None:
    with client(new_run(mood), settings) as asks:
        answer = asks.post("/judge", json={"question": TRAIN, "answer": 'Balco</answer><gold>"""\x00'})
        assert answer.status_code == 503
        assert "the judgement failed" in answer.json()["error"]


@pytest.mark.parametrize("mood", ["broken", "html", "nested", "nonsense", "gone", "refusing"])
def test_a_search_that_fails_says_so(
    new_run: Callable[..., RunDir], settings: Settings, engine: FakeEngine, mood: str, hasty: None
) -> None:
    engine.mood = mood
    with client(new_run(), settings) as asks:
        answer = asks.post("/search", json={"query": "towns"})
        assert (answer.status_code, "the search failed" in answer.json()["error"]) == (503, True)


def test_a_search_that_nobody_was_asked_takes_no_quota(
    new_run: Callable[..., RunDir], settings: Settings, engine: FakeEngine, hasty: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "FAILURES_ALLOWED", 1)
    engine.mood = "refusing"
    run = new_run(max_searches=3)
    with client(run, settings) as asks:
        assert [asks.post("/search", json={"query": f"town {n}"}).status_code for n in range(6)] == [503] * 6
    engine.mood = "kind"
    with client(run, settings) as asks:
        assert [asks.post("/search", json={"query": f"town {n}"}).status_code for n in range(2)] == [200, 403]


def test_quotas_hold_across_restarts_of_the_service(new_run: Callable[..., RunDir], settings: Settings) -> None:
    run = new_run(max_searches=3, max_judgements=1)
    statuses = []
    for _ in range(2):
        with client(run, settings) as asks:
            statuses += [asks.post("/search", json={"query": f"town {n}"}).status_code for n in range(2)]
    assert statuses == [200, 200, 200, 403]
    with client(run, settings) as asks:
        assert asks.post("/judge", json={"question": TRAIN, "answer": "Balco"}).status_code == 200
        refused = asks.post("/judge", json={"question": TRAIN, "answer": "Balco"})
    assert (refused.status_code, refused.json()["error"]) == (403, "the quota of 1 is used up")


def test_a_full_record_closes_the_services(new_run: Callable[..., RunDir], settings: Settings) -> None:
    run = new_run()
    with (run.logs / "services.jsonl").open("wb") as log:
        log.truncate(MAX_BYTES - 10)
    with client(run, settings) as asks:
        refused = [
            asks.post("/search", json={"query": "town"}),
            asks.post("/judge", json={"question": TRAIN, "answer": "Balco"}),
        ]
    assert [(each.status_code, "is full" in each.json()["error"]) for each in refused] == [(403, True)] * 2
    assert (run.logs / "services.jsonl").stat().st_size == MAX_BYTES - 10


def test_a_flood_of_requests_is_rejected_before_it_is_counted(
    new_run: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_services, "BURST", 2)
    monkeypatch.setattr(agent_services, "INTERVAL_S", 60.0)
    run = new_run()
    with client(run, settings) as asks:
        statuses = [asks.post("/search", json={"query": f"town {n}"}).status_code for n in range(4)]
    assert statuses == [200, 200, 429, 429]
    assert Account(run.account).use("agent's search").requests == 2


def test_questions_of_the_agent_leave_half_of_the_money(new_run: Callable[..., RunDir], settings: Settings) -> None:
    """The other half is for its submissions."""
    run = new_run(max_judge_usd=1.0)
    Account(run.account).add("judgement", "x-public", dollars=0.5)
    with client(run, settings) as asks:
        answer = asks.post("/judge", json={"question": TRAIN, "answer": "Balco"})
    assert (answer.status_code, "used up" in answer.json()["error"]) == (403, True)


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/search", {}, "send JSON with a query"),
        ("/search", {"query": ""}, "send JSON with a query"),
        ("/search", {"query": "x" * 8001}, "send JSON with a query"),
        ("/search", {"query": ["x"]}, "send JSON with a query"),
        ("/search", "[" * 30_000, "send JSON with a query"),
        ("/judge", {"question": TRAIN}, "a training question and an answer"),
    ],
)
def test_a_request_that_is_not_understood_gets_the_usage(
    new_run: Callable[..., RunDir], settings: Settings, path: str, body: Any, says: str
) -> None:
    run = new_run()
    with client(run, settings) as asks:
        answer = asks.post(path, content=body if isinstance(body, str) else json.dumps(body))
    assert (answer.status_code, says in answer.json()["error"]) == (400, True)
    assert Account(run.account).use().requests == 0


def test_services_that_cannot_be_opened_do_not_stop_grading(new_run: Callable[..., RunDir], settings: Settings) -> None:
    """They say why they could not be opened."""
    run = new_run(options={"search": "serpapi"})
    with client(run, settings) as asks:
        answer = asks.post("/search", json={"query": "towns"})
        assert (answer.status_code, "SERPAPI_KEY" in answer.json()["error"]) == (503, True)
        assert asks.get("/health").status_code == 200


def test_tasks_without_services_have_no_such_door(settings: Settings, base_model: Path) -> None:
    run = make_run(settings, base_model)
    with client(run, settings) as asks:
        assert asks.post("/search", json={"query": "x"}).status_code == 404


def test_the_agent_finds_the_addresses_in_its_environment(new_run: Callable[..., RunDir], settings: Settings) -> None:
    from a2rl.agent_systems.definition import find_agent

    run, noop = new_run(), find_agent("noop", settings.root)
    environment = agent_environment(run, noop, "http://127.0.0.1:7", settings)
    assert (environment["SEARCH_URL"], environment["JUDGE_URL"]) == (
        "http://127.0.0.1:7/search",
        "http://127.0.0.1:7/judge",
    )
    assert "SEARXNG_URL" not in environment


SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[1])
from services import Search, ServiceError, judge
from rollout import QuestionEnvironment
from research import read_questions
from pathlib import Path

[question] = read_questions(Path(sys.argv[1]) / "train.jsonl")
environment = QuestionEnvironment(question, Search())
shown = environment.write(" I look.\\nAction: search[towns on the Lor]")
assert "All about towns on the Lor, part 0. | All about towns on the Lor, part 1." in shown, shown
assert judge(question.problem, "Balco") == 1.0
assert "failed" in environment.write(" Again.\\nAction: search[break]"), environment.prompt
try:
    Search()(sys.argv[2])
except ServiceError as refused:
    print(refused)
"""


@pytest.mark.heavy
def test_what_is_handed_out_asks_the_runs_own_services(
    new_run: Callable[..., RunDir],
    settings: Settings,
    engine: FakeEngine,
    tmp_path: Path,
    hasty: None,
) -> None:
    def breaks(query: str) -> list[tuple[str, str, str]]:
        if query == "break":
            raise ValueError(query)
        return found(query)

    engine.found = breaks
    data = tmp_path / "data"
    data.mkdir()
    copy_tools(data)
    write_jsonl(data / "train.jsonl", rows(TRAIN, "Balco"))
    with api(new_run(), settings) as app, socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off"))
        serving = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        httpx.get(f"{url}/health", timeout=60)
        names = {"SEARCH_URL": f"{url}/search", "JUDGE_URL": f"{url}/judge", "HTTP_PROXY": "http://127.0.0.1:9"}
        ended = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(data), EVAL], capture_output=True, text=True, env=names, check=False
        )
        server.should_exit = True
        serving.join(20)
    assert "eval set" in ended.stdout, ended.stderr
