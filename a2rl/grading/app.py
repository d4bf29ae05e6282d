"""The grading API over HTTP: the only connection between an agent and the grader.

| request | answer |
|---|---|
| `POST /submit` | the grade, once the checkpoint is graded |
| `POST /submit?wait=0` | 202 and the submission's state, before its files are copied |
| `GET /submissions`, `GET /submissions/{id}` | states: with the progress of a grade, or the full answer |
| `GET /time`, `GET /health` | the clock; the task and the GPUs that grade |

An `Idempotency-Key` header makes a request repeatable: all requests with one key are one submission, also after a
restart of the service. No request can set a score, a baseline or a clock. An agent's mistakes are answered with a 4xx
status; a faulty submission is also recorded as refused.

The process is `python -P -m a2rl.grading.app RUN_DIR SOCKET CHANNEL`. Its parent owns the listening socket, so that a
restarted service takes over the same address and waiting clients are served. When stdin closes (the parent has ended),
the service and its workers end; a line on stdin says that the agent has ended. The channel is a pipe to the parent.
Every second, the service writes a line of JSON to it to say that it is alive, however busy its HTTP side is.
"""

import asyncio
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, StrictInt
from starlette.exceptions import HTTPException
from starlette.types import Scope

from a2rl.core.errors import A2rlError, InvalidSubmissionError
from a2rl.core.event_log import EventLog
from a2rl.core.serving import serve_for_parent
from a2rl.core.settings import Settings
from a2rl.grading.agent_services import USAGES, CountedServices, add_services, services_of
from a2rl.grading.answers import (
    AT_ONCE,
    EXAMPLE,
    SUBMIT,
    SubmissionList,
    SubmissionStatus,
    SubmitAnswer,
    TimeAnswer,
)
from a2rl.grading.devices import devices_of
from a2rl.grading.http_limits import MAX_HEAD_BYTES, CallLog, Connection, RequestRate, SizeLimit, error_response
from a2rl.grading.pool import GraderPool, named_devices
from a2rl.grading.receiving import BudgetSpentError, SubmissionDeferredError, SubmitRequest
from a2rl.grading.service import GradingService
from a2rl.grading.throttling import MAX_REASON, bounded
from a2rl.linux.process_tree import die_with_parent
from a2rl.llm.keys import receive_keys
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionClaims
from a2rl.run.gpu_share import share_of
from a2rl.run.rules import MAX_WAITING

USAGE = (
    f"send JSON with the folder of the checkpoint: {EXAMPLE}, to {SUBMIT}, or to {AT_ONCE} for an answer before it is "
    "graded"
)
MAX_LISTED = 200
"""The number of submissions that are listed, the newest."""
MAX_KEY, MAX_GPU = 200, 200
"""The number of characters of an idempotency key, and of a list of GPUs."""
MAX_ID_DIGITS = 9
MAX_CLAIM = 1000
"""The number of characters of `method`, `parent` and `note` that are recorded."""
NO_ROOM = (
    f"this submission was not received: at most {MAX_WAITING} are copied and graded at a time, and repeated mistakes "
    "are slowed down; send it again later, or without wait=0: then it is received at once, and waits for its turn"
)
RETRY_AFTER_S = "5"
POLL_INTERVAL_S = 0.1
CLIENT_CLOSED_REQUEST = 499
SETTLED = frozenset({"refused", "graded", "failed"})


class SubmitBody(BaseModel):
    """The body of POST /submit. Unknown keys are ignored, since agents send some."""

    model_path: str = Field(max_length=4096)
    gpu: Annotated[str, Field(max_length=MAX_GPU)] | StrictInt | None = None
    """The GPU that grades, or several of which one does: "0" or "0,1". Without it, any does."""
    method: Any = None
    """How the checkpoint was made. Like `parent` and `note`, it is recorded, not checked, and no reason to refuse."""
    parent: Any = None
    """What it was made from, such as the number of an earlier submission."""
    note: Any = None


class Health(BaseModel):
    """The body of GET /health."""

    status: Literal["ok"] = "ok"
    task: str
    available_gpus: list[str]
    """The GPUs that grade, in the order in which `gpu` may number them."""


def create_app(
    service: GradingService,
    task: str,
    gpus: list[str],
    log: EventLog | None = None,
    services: CountedServices | None = None,
) -> FastAPI:
    """Creates the API for one run's service.

    Args:
        log: The log of calls. If there are too many, only their number is logged.
        services: What the task lets the agent ask for its own rollouts, if it has such services.
    """
    app = FastAPI(title="a2rl grading service", docs_url=None, redoc_url=None, openapi_url=None)

    def refuse_unread(scope: Scope, reason: str) -> None:
        if scope["path"] == SUBMIT and scope["method"] == "POST":
            service.submissions.refuse_unreceived("", reason)

    app.add_middleware(SizeLimit, refused=refuse_unread, usage=USAGE)
    if log is not None:
        app.add_middleware(CallLog, log=log)
    app.add_middleware(RequestRate)
    _add_submit(app, service, gpus)
    _add_states(app, service)

    @app.get("/time")
    def clock() -> TimeAnswer:
        return service.time(time.time())

    @app.get("/health")
    async def health() -> Health:
        return Health(task=task, available_gpus=gpus)

    if services is not None:
        add_services(app, services)
    _add_error_handlers(app, lambda request: refuse_unread(request.scope, USAGE))
    return app


def _add_submit(app: FastAPI, service: GradingService, gpus: list[str]) -> None:
    """Adds the request that submits a checkpoint."""

    @app.post(SUBMIT, response_model=None)
    async def submit(submission: SubmitBody, request: Request, wait: bool = True) -> SubmitAnswer | JSONResponse:
        path = submission.model_path
        try:
            asked = SubmitRequest(
                path, gpu=_gpu_of(submission, gpus), key=_key_of(request), claims=_claims_of(submission)
            )
        except _BadRequestError as bad:
            reason = str(bad)
            await run_in_threadpool(service.submissions.refuse_unreceived, path, reason)
            return error_response(400, reason, more=bad.more)
        try:  # a request that waits for a grade gets its receipt at once, and queues afterwards
            pending = await run_in_threadpool(service.submit, asked, queues=wait)
        except SubmissionDeferredError:
            raise HTTPException(429, NO_ROOM, headers={"Retry-After": RETRY_AFTER_S}) from None
        receipt = pending.received.receipt
        if not wait:
            status = await _stored_status(service, receipt, request)
            where = {"Location": f"/submissions/{receipt}"}
            return JSONResponse(status.model_dump(mode="json"), status_code=202, headers=where)
        # Other requests may wait for the same submission. One whose client has left must not go on taking memory.
        while not pending.outcome.done():
            await _pause(request)
        accepted, grade = pending.outcome.result()
        await _stored_status(service, receipt, request, has_ended=True)
        return await run_in_threadpool(service.answer, accepted, grade)


def _add_states(app: FastAPI, service: GradingService) -> None:
    """Adds the requests for the states of submissions."""

    @app.get("/submissions")
    def submissions() -> SubmissionList:
        return service.statuses(MAX_LISTED)

    @app.get("/submissions/{number}")
    def submission_of(number: str) -> SubmissionStatus:
        if not (number.isascii() and number.isdigit() and len(number) <= MAX_ID_DIGITS):
            raise HTTPException(404, "the id of a submission is a number: the `id` in the answer to /submit?wait=0")
        status = service.status(int(number))
        if status is None:
            raise HTTPException(404, f"there is no submission with the id {int(number)}; GET /submissions lists them")
        return status


def _add_error_handlers(app: FastAPI, on_malformed: Callable[[Request], None]) -> None:
    """Defines the answers to errors."""

    @app.exception_handler(InvalidSubmissionError)
    async def refused(request: Request, error: InvalidSubmissionError) -> JSONResponse:
        return error_response(403 if isinstance(error, BudgetSpentError) else 422, str(error))

    @app.exception_handler(A2rlError)
    async def failed(request: Request, error: A2rlError) -> JSONResponse:
        return error_response(503, str(error))

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:
            return malformed(request, error)
        return error_response(error.status_code, str(error.detail), dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    def malformed(request: Request, error: Exception) -> JSONResponse:
        on_malformed(request)
        return error_response(400, USAGES.get(request.url.path, USAGE))


class _BadRequestError(Exception):
    """A header or a field is wrong."""

    def __init__(self, reason: str, more: Mapping[str, object] = MappingProxyType({})) -> None:
        """Args:
        reason: What is wrong, and how to fix it.
        more: Further keys of the answer.
        """
        super().__init__(reason)
        self.more = more


def _key_of(request: Request) -> str:
    """Returns the idempotency key of a request; empty if it has none."""
    keys = request.headers.getlist("Idempotency-Key")
    if not keys:
        return ""
    key = keys[0].strip()
    if len(set(keys)) > 1 or not (0 < len(key) <= MAX_KEY and key.isascii() and key.isprintable()):
        raise _BadRequestError(
            f"the Idempotency-Key is not one text of 1 to {MAX_KEY} ASCII characters; take a UUID for each submission"
        )
    return key


def _claims_of(submission: SubmitBody) -> SubmissionClaims:
    """Returns what the agent says of its submission. What is no text or number is left out."""
    said = {name: getattr(submission, name) for name in SubmissionClaims.model_fields}
    texts = {name: str(value) for name, value in said.items() if isinstance(value, str | int | float)}
    return SubmissionClaims(**{name: bounded(text, MAX_CLAIM) for name, text in texts.items()})


def _gpu_of(submission: SubmitBody, gpus: list[str]) -> str:
    """Returns the GPUs that a submission asks for, in one spelling; empty if it does not ask.

    Agents of the reference send positions in the list of GPUs: 0, or "0,1".
    """
    if submission.gpu is None:
        return ""
    by_position = {str(place): gpu for place, gpu in enumerate(gpus)}
    chosen = [by_position.get(each, each) for each in named_devices(str(submission.gpu))]
    wanted = named_devices(",".join(chosen))  # several GPUs may be one device
    if not wanted or wanted - named_devices(",".join(gpus)):
        there = f"grading uses the GPUs {', '.join(gpus)}; name one of them" if gpus else "grading uses no GPU here"
        what = f'"gpu" cannot be {str(submission.gpu)!r}'
        raise _BadRequestError(f'{what}: {there}, or leave "gpu" out', {"available_gpus": gpus})
    return ",".join(sorted(wanted))


async def _stored_status(
    service: GradingService, receipt: int, request: Request, *, has_ended: bool = False
) -> SubmissionStatus:
    """Waits until a submission, or its end, would survive the loss of this machine, if the run is copied to a store."""
    while True:
        status = await run_in_threadpool(service.status, receipt)
        if status is not None and (status.state in SETTLED or not has_ended):
            return status
        await _pause(request)


async def _pause(request: Request) -> None:
    """Waits a moment; raises an error if the client has left meanwhile."""
    await asyncio.sleep(POLL_INTERVAL_S)
    if await request.is_disconnected():
        raise HTTPException(CLIENT_CLOSED_REQUEST, "the client has disconnected")


ALIVE_EVERY_S = 1
MAX_LOG_BYTES = 8 << 20


def main() -> None:
    """Serves the run in the arguments until stdin closes."""
    die_with_parent()
    _, most_files = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most_files, most_files))
    receive_keys(sys.stdin)
    run, settings, channel = RunDir(Path(sys.argv[1])), Settings.load(), int(sys.argv[3])
    os.set_blocking(channel, False)
    share = share_of(run, settings)
    devices = devices_of(share.graders, run.spec.gpus_for_one)
    with GraderPool(settings, devices) as pool, services_of(run, settings) as services:
        service = GradingService(run, pool)
        log = EventLog(run.logs / "api.jsonl", MAX_LOG_BYTES)
        gpus = devices if share.graders else []
        app = create_app(service, run.spec.task, gpus, log, services)

        async def report_alive() -> None:
            with suppress(OSError):  # the parent is busy or has ended
                os.write(channel, json.dumps({"problem": service.problem[:MAX_REASON]}).encode() + b"\n")
            with suppress(A2rlError):
                await asyncio.to_thread(service.submissions.refusals.flush, only_if_due=True)

        def finish() -> None:
            with suppress(A2rlError):  # the parent asks again
                service.finish()

        serve_for_parent(
            app,
            int(sys.argv[2]),
            lifespan="off",
            on_line=finish,
            http=Connection,
            ws="none",  # websocket connections would not be counted
            log_level="error",  # a warning for every malformed request would fill the disk
            access_log=False,
            h11_max_incomplete_event_size=MAX_HEAD_BYTES,
            callback_notify=report_alive,
            timeout_notify=ALIVE_EVERY_S,
        )


if __name__ == "__main__":
    main()
