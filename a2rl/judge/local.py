"""Judges that follow a rule, served by this repo over the API of the real ones, in a process of their own.

# tasks/x/served.py
if __name__ == "__main__":
    serve_for_parent(create_app(rule), int(sys.argv[1]), lifespan="off")

with open_judge(judging, "tasks.x.served", annotator="...") as judge:
    answers = judge.ask(...)
"""

import math
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from a2rl.errors import InfrastructureError
from a2rl.judge.client import Judge
from a2rl.judge.params import JudgeParams, Judging
from a2rl.process import child_environment, end_child, is_healthy, module_command
from a2rl.settings import Settings

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 30
END_TIMEOUT_S = 10


class ChatMessage(BaseModel):
    """One turn of a chat."""

    role: str
    content: str


class ChatRequest(BaseModel):
    """What a judge here looks at in the body of POST /chat/completions; other keys are ignored."""

    model: str
    messages: list[ChatMessage]


Rule = Callable[[list[ChatMessage]], dict[str, float]]
"""The tokens that a judge may answer a chat with, and how likely it gives each. ValueError: it cannot judge this."""


def create_app(rule: Rule) -> FastAPI:
    """The API over a rule: one token, with the log probabilities of all that it may say."""
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
    """The body of a reply; a token of probability 0 is not among the top ones."""
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
    """A judge's process on a free port of the loopback; it ends with the context, and with this process."""

    def __init__(self, module: str, settings: Settings) -> None:
        self._module = module
        with socket.create_server((LOOPBACK, 0), backlog=128) as listener:
            self.base_url = f"http://{LOOPBACK}:{listener.getsockname()[1]}"
            self._process = subprocess.Popen(
                module_command(module, str(listener.fileno())),
                cwd=settings.root,
                env=child_environment(settings),
                stdin=subprocess.PIPE,
                pass_fds=(listener.fileno(),),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Raises InfrastructureError: it does not start."""
        if not is_healthy(self._process, self.base_url, START_TIMEOUT_S):
            raise InfrastructureError(f"the judge {self._module} does not start: `python -m {self._module}` says why")

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
        end_child(self._process, END_TIMEOUT_S)


@contextmanager
def rule_judging(module: str, annotator: str) -> Iterator[Judging]:
    """The judge that a task serves itself while it is needed, free of charge and with nothing kept."""
    with LocalJudge(module, Settings.load()) as served, tempfile.TemporaryDirectory() as scratch:
        params = JudgeParams(
            annotator=annotator,
            base_url=served.base_url,
            api_key_env=None,
            model="rule",
            dollars_per_million_prompt_tokens=0,
            dollars_per_million_completion_tokens=0,
        )
        yield Judging(params, Path(scratch) / "judgements.db")


@contextmanager
def open_judge(judging: Judging | None, module: str, annotator: str) -> Iterator[Judge]:
    """The judge that is set up, or where there is none the one that the task serves itself."""
    if judging is None:
        with rule_judging(module, annotator) as served, Judge(served) as judge:
            yield judge
    else:
        with Judge(judging) as judge:
            yield judge
