"""The services of a task for the agent's own rollouts: POST /search and POST /judge of the grading service.

    {"query": "seat of Balco"}                            -> {"hits": [{"title", "snippet", "url"}], "blocked", "left"}
    {"question": "What is the seat ...?", "answer": "Dorton"}    -> {"correct": true, "verdict": 1.0, "left"}

They are at the address of the grading API, which is all that a sandboxed agent can reach, and have its limits. Each
kind of request has a quota for the run, which is counted in the run's account and so survives restarts, and all have a
rate. Every request is recorded in `logs/services.jsonl`. The keys of engine and judge stay in this process.
"""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from typing import Any, TypeVar

from fastapi import FastAPI
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from a2rl.core.errors import A2rlError, InfrastructureError
from a2rl.core.event_log import EventLog
from a2rl.core.settings import Settings
from a2rl.grading.http_limits import error_response
from a2rl.grading.run_judge import judge_of_run
from a2rl.grading.throttling import TokenBucket
from a2rl.judge.account import Account, Kind, SpendLimitError
from a2rl.judge.params import JudgeConfig
from a2rl.run.directory import RunDir
from a2rl.run.inputs import hidden_of, visible_of
from a2rl.task_api.catalog import load_services, load_task
from a2rl.task_api.contract import AgentServices, NotForAgentError, SearchResults, UnaskedError

SEARCH, JUDGE = "/search", "/judge"
USAGES = {
    SEARCH: 'send JSON with a query: {"query": "..."}',
    JUDGE: 'send JSON with a training question and an answer: {"question": "...", "answer": "..."}',
}
MAX_TEXT = 8000
"""The largest query, question or answer, in characters."""
SHOWN = 500
"""The number of characters of a text that are recorded."""
THREADS = 16
BURST, INTERVAL_S = 100, 0.1
"""This many requests of an agent are answered at once, and then one per interval: half of the API's own rate, so that
searches cannot hold up submissions."""
MAX_DELAY_S = 30.0
RIGHT = 0.5
AGENT_SHARE = 0.5
"""Up to this share of `--max-judge-usd`, the agent's questions are passed on to the judge."""
T = TypeVar("T")


class Query(BaseModel):
    """The body of POST /search. Unknown keys are ignored."""

    query: str = Field(min_length=1, max_length=MAX_TEXT)


class Judgement(BaseModel):
    """The body of POST /judge. Unknown keys are ignored."""

    question: str = Field(min_length=1, max_length=MAX_TEXT)
    answer: str = Field(max_length=MAX_TEXT)


class CountedServices:
    """The services of one run, with their quotas, their rate and their record."""

    def __init__(self, services: AgentServices, run: RunDir) -> None:
        self._services, self._account = services, Account(run.account)
        self._quotas: dict[Kind, int] = {
            "agent's search": run.spec.max_searches,
            "agent's question": run.spec.max_judgements,
        }
        self._log = EventLog(run.logs / "services.jsonl")
        self._bucket = TokenBucket(BURST, INTERVAL_S)
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="services")

    async def search(self, query: str) -> JSONResponse:
        """Answers POST /search."""
        return await self._answer("agent's search", lambda: self._services.search(query)._asdict(), query=query[:SHOWN])

    async def judge(self, question: str, answer: str) -> JSONResponse:
        """Answers POST /judge."""

        def judged() -> dict[str, Any]:
            verdict = self._services.judge(question, answer)
            return {"correct": verdict > RIGHT, "verdict": verdict}

        asked = {"question": question[:SHOWN], "answer": answer[:SHOWN]}
        return await self._answer("agent's question", judged, **asked)

    def close(self) -> None:
        """Drops requests that are not answered yet."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _answer(self, kind: Kind, work: Callable[[], dict[str, Any]], **asked: str) -> JSONResponse:
        """Answers a request within rate and quota, and records it."""
        wait_s = self._bucket.reserve(MAX_DELAY_S)
        if wait_s is None:
            return error_response(429, "too many requests; wait a while", {"Retry-After": "5"})
        await asyncio.sleep(wait_s)
        status, body = await asyncio.get_running_loop().run_in_executor(self._threads, self._do, kind, work)
        if status == 200 or not self._log.is_full:  # what room is left is for requests that were answered
            with suppress(OSError):  # on a full disk, requests are still answered
                self._log.write(kind=kind, status=status, **asked, said=_summary(body))
        return JSONResponse(body, status) if status == 200 else error_response(status, str(body["error"]))

    def _do(self, kind: Kind, work: Callable[[], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        """Returns status and body. A request that fails for a reason of ours counts, too: it may have been paid for."""
        if self._log.is_full:
            return 403, {"error": "the record of searches and judgements (logs/services.jsonl) is full"}
        try:
            if not self._account.take(kind, self._quotas[kind]):
                return 403, {"error": f"the quota of {self._quotas[kind]} is used up"}
            return 200, {**work(), "left": self._quotas[kind] - self._account.use(kind).requests}
        except (NotForAgentError, SpendLimitError) as error:
            return 403, {"error": str(error)}
        except A2rlError as error:
            if isinstance(error, UnaskedError):
                self._account.give_back(kind)
            return 503, {"error": str(error)}


def _summary(body: dict[str, Any]) -> dict[str, Any]:
    """Returns what is recorded of an answer: of search results, only the addresses."""
    if "hits" not in body:
        return body
    return {**body, "hits": [hit.get("url", "")[:SHOWN] for hit in body["hits"]]}


class UnavailableServices:
    """Stands for services that cannot be opened, for example for lack of a key."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def search(self, query: str) -> SearchResults:
        """Raises InfrastructureError."""
        raise InfrastructureError(self._reason)

    def judge(self, problem: str, answer: str) -> float:
        """Raises InfrastructureError."""
        raise InfrastructureError(self._reason)


@contextmanager
def services_of(run: RunDir, settings: Settings) -> Iterator[CountedServices | None]:
    """Opens the services of a run; None if its task has none."""
    spec = run.spec
    if not load_task(spec.task, settings.root).serves_agents:
        yield None
        return
    with ExitStack() as stack:
        services: AgentServices
        try:
            visible, hidden, judging = visible_of(run), hidden_of(run), _judging(run, settings)
            opened = load_services(spec.task).open_services(
                spec.variant, visible, hidden, spec.options, settings, judging
            )
            services = stack.enter_context(opened)
        except (A2rlError, OSError) as error:
            services = UnavailableServices(str(error))
        counted = CountedServices(services, run)
        try:
            yield counted
        finally:
            counted.close()


def _judging(run: RunDir, settings: Settings) -> JudgeConfig | None:
    """Returns the judge for the agent. It may use half of the run's money; the rest is for grading submissions."""
    spec = run.spec
    if spec.judge is None:
        return None
    limit = None if spec.max_judge_usd is None else spec.max_judge_usd * AGENT_SHARE
    config = judge_of_run(spec.judge, settings)
    return replace(config, account=run.account, limit_usd=limit, purpose="agent's judgement", job="agent")


def add_services(app: FastAPI, services: CountedServices) -> None:
    """Adds the services to the API of a run."""

    @app.post(SEARCH)
    async def search(query: Query) -> JSONResponse:
        return await services.search(query.query)

    @app.post(JUDGE)
    async def judge(judgement: Judgement) -> JSONResponse:
        return await services.judge(judgement.question, judgement.answer)
