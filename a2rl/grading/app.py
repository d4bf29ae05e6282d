"""The grading API over HTTP: the only door between an agent and the grader.

There is no way in here to set a score, a baseline or a clock.
"""

import asyncio
import time
from typing import Literal

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from a2rl.errors import InfrastructureError, InvalidSubmission
from a2rl.event_log import EventLog
from a2rl.grading.service import BudgetSpent, GradingService, SubmitAnswer, TimeAnswer

MAX_BODY_BYTES = 64 << 10
MAX_PATH = 200
"""Characters of a path that are written down."""
USAGE = 'send JSON with the folder of the checkpoint: {"model_path": "output/v1"}'


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
    """The API over one run's service; every call is written to the log."""
    app = FastAPI(title="a2rl grading service", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(BodyLimit)
    if log is not None:
        app.add_middleware(CallLog, log=log)

    @app.post("/submit")
    async def submit(submission: Submission) -> SubmitAnswer:
        accepted, graded = await asyncio.to_thread(service.submit, submission.model_path)
        await asyncio.shield(asyncio.wrap_future(graded))  # others may wait for the same grade
        return await asyncio.to_thread(service.answer, accepted.submission_id)

    @app.get("/time")
    def clock() -> TimeAnswer:
        return service.time(time.time())

    @app.get("/health")
    def health() -> Health:
        return Health(task=task, available_gpus=gpus)

    @app.exception_handler(InvalidSubmission)
    def refused(request: Request, error: InvalidSubmission) -> JSONResponse:
        return _problem(403 if isinstance(error, BudgetSpent) else 422, str(error))

    @app.exception_handler(InfrastructureError)
    def failed(request: Request, error: InfrastructureError) -> JSONResponse:
        return _problem(503, str(error))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        return _problem(error.status_code, USAGE if error.status_code == 400 else str(error.detail))

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: RequestValidationError) -> JSONResponse:
        return _problem(400, USAGE)

    return app


def _problem(status: int, detail: str) -> JSONResponse:
    # "error" is the reference's key, "detail" FastAPI's; agents look for either.
    return JSONResponse({"error": detail, "detail": detail}, status_code=status)


class CallLog:
    """Writes down every call: when it began, what was asked, how it was answered and how long that took."""

    def __init__(self, app: ASGIApp, log: EventLog) -> None:
        self.app = app
        self.log = log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        status, started = 0, time.monotonic()

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self.app(scope, receive, watch)
        finally:
            seconds = round(time.monotonic() - started, 3)
            self.log.write(method=scope["method"], path=scope["path"][:MAX_PATH], status=status, seconds=seconds)


class BodyLimit:
    """Refuses request bodies that no honest agent sends, before they fill the memory.

    The body is read here and handed on whole: an error raised from within FastAPI's own reading would become its 400.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] != "http.request":
                return  # the client has gone
            body, more = body + message.get("body", b""), message.get("more_body", False)
            if len(body) > MAX_BODY_BYTES:
                await _problem(413, f"the request is too large; {USAGE}")(scope, receive, send)
                return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self.app(scope, replay, send)
