"""Judges of this machine, served by a child process over the same API as others: rules, and local models.

# tasks/x/annotator.py
if __name__ == "__main__":
    serve_for_parent(create_app(rule), int(sys.argv[1]), lifespan="off")

with open_judge(config, "tasks.x.annotator", annotator="...") as judge:
    answers = judge.ask(...)
"""

import math
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from a2rl.core.errors import InfrastructureError
from a2rl.core.processes import Child
from a2rl.core.settings import Settings
from a2rl.judge.client import Judge
from a2rl.judge.params import JudgeConfig, JudgeParams

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 600.0
"""Timeout of the start of a model."""
SERVED_MODEL = "a2rl.judge.served_model"
END_TIMEOUT_S = 10


class ChatMessage(BaseModel):
    """One turn of a chat."""

    role: str
    content: str


class ChatRequest(BaseModel):
    """The body of POST /chat/completions, as far as rules use it; other keys are ignored."""

    model: str
    messages: list[ChatMessage]


Rule = Callable[[list[ChatMessage]], dict[str, float]]
"""Returns the possible answer tokens for a chat, with their probabilities; raises ValueError if it cannot judge it."""


def create_app(rule: Rule) -> FastAPI:
    """Makes the API for a rule, which answers with one token and the log probabilities of all possible tokens."""
    app = FastAPI(title="a2rl rule-based judge", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/chat/completions")
    def judge(request: ChatRequest) -> dict[str, Any]:
        try:
            likely = rule(request.messages)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error
        words = sum(len(message.content.split()) for message in request.messages)
        return completion(request.model, likely, prompt_tokens=words)

    return app


def completion(model: str, likely: dict[str, float], prompt_tokens: int) -> dict[str, Any]:
    """Returns the body of a reply; tokens of probability 0 are left out of the top tokens."""
    top = [
        {"token": token, "logprob": math.log(share), "bytes": list(token.encode())}
        for token, share in sorted(likely.items(), key=lambda item: -item[1])
        if share > 0
    ]
    said = top[0]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": said["token"]},
        "logprobs": {"content": [{**said, "top_logprobs": top}]},
        "finish_reason": "length",
    }
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": 1, "total_tokens": prompt_tokens + 1}
    return {"id": "judgement", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


class LocalJudge:
    """A judge's process on a free loopback port; it ends with the context or with this process."""

    def __init__(self, module: str, settings: Settings, *arguments: str, timeout_s: float = START_TIMEOUT_S) -> None:
        self._module, self._timeout_s = module, timeout_s
        with socket.create_server((LOOPBACK, 0), backlog=128) as listener:
            self.base_url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
            descriptor = listener.fileno()
            self._process = Child.of_module(module, descriptor, *arguments, settings=settings, descriptors=[descriptor])

    @property
    def pid(self) -> int:
        """The process id of the judge."""
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Waits until the judge answers.

        Raises:
            InfrastructureError: It does not start.
        """
        if not self._process.is_healthy(self.base_url, self._timeout_s):
            raise InfrastructureError(f"the judge {self._module} does not start: see the lines above it in the log")

    def __enter__(self) -> "LocalJudge":
        try:
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the judge, whatever it is doing."""
        self._process.end(END_TIMEOUT_S)


@contextmanager
def serve_rule_judge(module: str, annotator: str) -> Iterator[JudgeConfig]:
    """Serves a task's own rule-based judge within the context; its answers cost nothing and are not kept."""
    with LocalJudge(module, Settings.load()) as served, tempfile.TemporaryDirectory() as scratch:
        params = JudgeParams(
            annotator=annotator,
            base_url=served.base_url,
            api_key_env=None,
            model="rule",
        )
        yield JudgeConfig(params, Path(scratch) / "judgements.db")


@contextmanager
def serve_model_judge(config: JudgeConfig, folder: Path) -> Iterator[JudgeConfig]:
    """Serves a local model as a judge within the context."""
    settings = Settings.load()
    with LocalJudge(SERVED_MODEL, settings, str(folder), timeout_s=LOAD_TIMEOUT_S) as served:
        yield replace(config, params=config.params.served_at(served.base_url))


@contextmanager
def open_judge(config: JudgeConfig | None, module: str = "", annotator: str = "") -> Iterator[Judge]:
    """Opens the configured judge or, without one, the task's own rule-based judge.

    Args:
        config: The judge; None for the task's own.
        module: The module that serves the task's own judge.
        annotator: The annotator of the task's own judge.
    """
    with ExitStack() as stack:
        if config is None:
            config = stack.enter_context(serve_rule_judge(module, annotator))
        elif config.served is not None:
            config = stack.enter_context(serve_model_judge(config, config.served))
        yield stack.enter_context(Judge(config))
