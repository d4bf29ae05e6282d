"""The grading API over HTTP: the only door between an agent and the grader.

There is no way in here to set a score, a baseline or a clock. What an agent does wrong is answered with a 4xx and, of a
submission, recorded as refused.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Literal, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import Scope

from a2rl.errors import A2rlError, InvalidSubmission
from a2rl.event_log import EventLog
from a2rl.events import SubmissionReceived
from a2rl.grading.door import CallLog, RequestRate, SizeLimit, problem
from a2rl.grading.limits import MAX_WAITING
from a2rl.grading.service import GradingService, SubmitAnswer, TimeAnswer
from a2rl.grading.submissions import BudgetSpent, NoTurn

USAGE = 'send JSON with the folder of the checkpoint: {"model_path": "output/v1"}'
SUBMIT = "/submit"
QUICK_THREADS = 4
TURN_S = 0.1
"""How often a request that waits for its turn looks whether it has come."""
CLIENT_GONE = 499
T = TypeVar("T")


class Submission(BaseModel):
    """The body of POST /submit. Other keys are ignored: agents send some of their own."""

    model_path: str = Field(max_length=4096)
    gpu: str | int | None = None
    """Taken for the reference's sake; the pool chooses the device."""


class Health(BaseModel):
    """The body of GET /health."""

    status: Literal["ok"] = "ok"
    task: str
    available_gpus: list[str]


def create_app(service: GradingService, task: str, gpus: list[str], log: EventLog | None = None) -> FastAPI:
    """The API over one run's service; calls are written to the log, of a flood the number alone."""
    app = FastAPI(title="a2rl grading service", docs_url=None, redoc_url=None, openapi_url=None)
    # A receipt must not wait for somebody else's copy of gigabytes.
    quick, copies = ThreadPoolExecutor(QUICK_THREADS), ThreadPoolExecutor(MAX_WAITING)

    def turn_away(scope: Scope, reason: str) -> None:
        if scope["path"] == SUBMIT and scope["method"] == "POST":
            service.turn_away("", reason)

    app.add_middleware(SizeLimit, refused=turn_away, usage=USAGE)
    if log is not None:
        app.add_middleware(CallLog, log=log)
    app.add_middleware(RequestRate)

    @app.post(SUBMIT)
    async def submit(submission: Submission, request: Request) -> SubmitAnswer:
        received = await _receive(service, submission.model_path, request, quick)
        accepted, graded = await _in(copies, lambda: service.take(received))
        grade = await asyncio.shield(asyncio.wrap_future(graded))  # others may wait for the same grade
        return await _in(quick, lambda: service.answer(accepted, grade))

    @app.get("/time")
    async def clock() -> TimeAnswer:
        return await _in(quick, lambda: service.time(time.time()))

    @app.get("/health")
    async def health() -> Health:
        return Health(task=task, available_gpus=gpus)

    _answer_errors(app, lambda request: _in(quick, lambda: turn_away(request.scope, USAGE)))
    return app


def _answer_errors(app: FastAPI, not_understood: Callable[[Request], Awaitable[None]]) -> None:
    """What every error is answered with.

    Args:
        not_understood: told of requests that make no sense.
    """

    @app.exception_handler(InvalidSubmission)
    async def refused(request: Request, error: InvalidSubmission) -> JSONResponse:
        return problem(403 if isinstance(error, BudgetSpent) else 422, str(error))

    @app.exception_handler(A2rlError)
    async def failed(request: Request, error: A2rlError) -> JSONResponse:
        return problem(503, str(error))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:
            return await malformed(request, error)
        return problem(error.status_code, str(error.detail))

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: Exception) -> JSONResponse:
        await not_understood(request)
        return problem(400, USAGE)


async def _receive(service: GradingService, model_path: str, request: Request, quick: Executor) -> SubmissionReceived:
    """A receipt, as soon as it is this request's turn."""
    while True:
        if service.has_room:
            try:
                return await _in(quick, lambda: service.receive(model_path))
            except NoTurn:
                pass  # another one was faster
        await asyncio.sleep(TURN_S)
        if await request.is_disconnected():
            raise HTTPException(CLIENT_GONE, "the client has gone")


async def _in(threads: Executor, work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, work)
