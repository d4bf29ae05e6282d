"""The driver's HTTP server: the APIs of several providers at one address, and a log of the requests.

POST /v1/messages[/count_tokens]                                    Anthropic Messages
POST /v1/chat/completions, /v1/responses; GET /v1/models            OpenAI
POST /v1beta/models/MODEL:generateContent|streamGenerateContent|countTokens    Gemini
GET  /health
"""

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import uvicorn
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import ValidationError

from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel
from a2rl.mock_llm import anthropic_messages, gemini, openai_chat, openai_responses
from a2rl.mock_llm.dialogue import Dialect, Json, LlmRequest
from a2rl.mock_llm.play import Player, ScenarioStep, count_tokens
from a2rl.mock_llm.scenario import Scenario, Usage

NOTHING = Usage(input_tokens=0, output_tokens=0)
WHY = {401: "invalid API key", 429: "too many requests", 500: "internal error", 529: "overloaded"}
HOST = "127.0.0.1"


class Served(StrictModel):
    """A line of the log: one request. The sums over all lines are an agent's usage."""

    time: float
    protocol: str
    model: str
    stream: bool
    kind: str
    """`main`, `side` (no shell tool was offered), or `count` (the request only counted tokens, at no cost)."""
    turn: int | None
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    status: int


async def _body(request: Request) -> Json:
    """Reads the body of a request; it is empty, and then rejected as malformed, if it is not a JSON object."""
    try:
        body = await request.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


Body = Annotated[Json, Depends(_body)]


class Driver:
    """Answers requests in all protocols."""

    def __init__(self, scenario: Scenario, log: Path | None) -> None:
        self._scenario = scenario
        self._player = Player(scenario)
        self._log = log

    def answer(self, dialect: Dialect, request: Request, body: Json) -> Response:
        """Answers a request for the next turn."""
        asked = _read(dialect, body)
        if asked is None:
            return self._refuse(dialect, 400, "malformed request", None)
        if not self._may(request):
            return self._refuse(dialect, 401, WHY[401], asked)
        step = self._player.step(asked)
        if (fault := self._player.fault(asked, step)) is not None:
            return self._refuse(dialect, fault.status, WHY[fault.status], asked, step)
        self._note(dialect, asked, step, 200, step.reply.usage)
        if not asked.stream:
            return JSONResponse(dialect.whole(asked, step.reply))
        return Response("".join(dialect.events(asked, step.reply)), media_type="text/event-stream")

    def count(self, dialect: Dialect, body: Json, name: str) -> Response:
        """Answers a request that only counts tokens."""
        asked = _read(dialect, body)
        if asked is None:
            return self._refuse(dialect, 400, "malformed request", None)
        self._note(dialect, asked, None, 200, NOTHING)
        return JSONResponse({name: count_tokens(asked)})

    def models(self) -> Json:
        """Lists the models in a form that both OpenAI's and Anthropic's clients understand."""
        described = [
            {
                "id": model,
                "object": "model",
                "type": "model",
                "display_name": model,
                "created": 0,
                "created_at": "2026-01-01T00:00:00Z",
                "owned_by": "a2rl",
            }
            for model in self._scenario.models
        ]
        return {"object": "list", "data": described, "has_more": False}

    def _may(self, request: Request) -> bool:
        key, headers = self._scenario.api_key, request.headers
        given = (
            headers.get("authorization", "").removeprefix("Bearer "),
            headers.get("x-api-key"),
            headers.get("x-goog-api-key"),
            request.query_params.get("key"),
        )
        return key is None or key in given

    def _refuse(
        self, dialect: Dialect, status: int, message: str, asked: LlmRequest | None, step: ScenarioStep | None = None
    ) -> Response:
        self._note(dialect, asked, step, status, NOTHING)
        headers = {"Retry-After": "1"} if status in {429, 529} else None
        return JSONResponse(dialect.error(status, message), status, headers)

    def _note(
        self, dialect: Dialect, asked: LlmRequest | None, step: ScenarioStep | None, status: int, usage: Usage
    ) -> None:
        if self._log is None:
            return
        line = Served(
            time=time.time(),
            protocol=dialect.PROTOCOL,
            model=asked.model if asked else "",
            stream=asked.stream if asked else False,
            kind=step.kind if step else "count" if status == 200 else "side",
            turn=step.turn if step else None,
            **usage.model_dump(),
            status=status,
        )
        with self._log.open("a", encoding="utf-8") as file:
            file.write(line.model_dump_json() + "\n")


def create_app(scenario: Scenario, log: Path | None = None) -> FastAPI:
    """Creates the server for a scenario; each served request becomes a line in the log."""
    app, driver = FastAPI(), Driver(scenario, log)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/v1/models")
    def models() -> Json:
        return driver.models()

    @app.post("/v1/messages")
    async def messages(request: Request, body: Body) -> Response:
        return driver.answer(anthropic_messages, request, body)

    @app.post("/v1/messages/count_tokens")
    async def count_messages(body: Body) -> Response:
        return driver.count(anthropic_messages, body, "input_tokens")

    @app.post("/v1/chat/completions")
    async def chat(request: Request, body: Body) -> Response:
        return driver.answer(openai_chat, request, body)

    @app.post("/v1/responses")
    async def responses(request: Request, body: Body) -> Response:
        return driver.answer(openai_responses, request, body)

    @app.post("/v1beta/models/{model}:{method}")
    async def generate(request: Request, body: Body, model: str, method: str) -> Response:
        if method == "countTokens":
            return driver.count(gemini, {"model": model, **body}, "totalTokens")
        return driver.answer(gemini, request, {**body, "model": model, "stream": method.startswith("stream")})

    return app


def _read(dialect: Dialect, body: Json) -> LlmRequest | None:
    try:
        return dialect.read(body)
    except (KeyError, TypeError, ValueError, AttributeError, ValidationError):
        return None


def serve(scenario: Scenario, port: int, log: Path | None, announce: Callable[[str], None]) -> None:
    """Serves until Ctrl-C.

    Args:
        port: The port to listen on; 0 chooses a free one.
        log: A file that gets one line for each request; None for no log.
        announce: Called with the URL before the first request.

    Raises:
        UsageError: The port or the log cannot be used.
    """
    try:
        if log is not None:
            log.open("a").close()
    except OSError as error:
        raise UsageError(f"the log {log} cannot be written: {error.strerror}") from error
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        raise UsageError(f"port {port} cannot be used ({error.strerror}): choose another --port, or 0") from error
    with listener:
        announce(f"http://{HOST}:{listener.getsockname()[1]}")
        config = uvicorn.Config(create_app(scenario, log), log_level="warning", lifespan="off")
        uvicorn.Server(config).run(sockets=[listener])
