"""A judge for tests, in a separate process, that counts its requests and can misbehave.

    python -m tests.fake_judge DESCRIPTOR LOG

The model that a request names decides how the judge behaves (see `_answer`). Each request is a line of LOG: the digest
of its body, and the number of requests in progress at that time.
"""

import json
import math
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from a2rl.core.serving import serve_for_parent
from a2rl.judge.params import JudgeParams
from tests.http_server import served_by

JUDGE: dict[str, Any] = {
    "annotator": "weighted_alpaca_eval_gpt4_turbo",
    "decoding": {"max_tokens": 1, "logprobs": True, "top_logprobs": 5},
    "dollars_per_million_prompt_tokens": 10.0,
    "dollars_per_million_completion_tokens": 30.0,
}
SURE = {"m": 0.75, "M": 0.25}


def reply(shares: dict[str, float] = SURE, text: str = "m", **changes: Any) -> dict[str, Any]:
    """Returns the body of an answer with these token probabilities."""
    top = [{"token": token, "logprob": math.log(share)} for token, share in shares.items()]
    choice = {"message": {"role": "assistant", "content": text}, "logprobs": {"content": [{"top_logprobs": top}]}}
    return {"choices": [choice], "usage": {"prompt_tokens": 100, "completion_tokens": 1}, **changes}


def _answer(mood: str, times: int) -> Response:
    """Returns the answer to a request that arrives for the `times`-th time."""
    awkward = {
        "busy": Response("too many requests", 429, {"Retry-After": "1"}),
        "broken": Response("out of order", 500),
        "forbidden": Response("no such key", 401),
        "missing": Response("no such model", 404),
        "odd": Response("Unsupported parameter:\x1b[2J 'max_tokens'", 400),
        "exhausted": Response('{"error": {"code": "insufficient_quota"}}', 429),
        "huge": Response("[" + "0," * (10 << 20) + "0]", 200),
        "list": Response("[]", 200),
        "routed": _json({"error": {"code": 502, "message": "the provider failed"}}),
        "reasoned": _json(reply(usage={"prompt_tokens": 100, "completion_tokens": 1, "total_tokens": 131})),
        "garbled": Response('{"choices": [', 200),
        "no-logprobs": _json({"choices": [{"message": {"content": "m"}, "logprobs": None}]}),
        "endless-usage": _json(reply(usage={"prompt_tokens": 10**400})),
        "negative-usage": _json(reply(usage={"prompt_tokens": -5})),
        "nan-usage": _json(reply(usage={"prompt_tokens": math.nan})),
        "says correct": _json(reply(text="Correct.")),
        "no-usage": _json(reply(usage=None)),
        "nested": Response("[" * 200_000, 200),
        "chatty": _json(reply({"The": 0.9, "I": 0.1}, "The better one is m")),
    }
    name = mood.removesuffix("-once")
    return _json(reply()) if mood.endswith("-once") and times > 1 else awkward.get(name, _json(reply()))


def _json(body: dict[str, Any]) -> Response:
    return Response(json.dumps(body), media_type="application/json")


def create_app(log: Path) -> FastAPI:
    app = FastAPI()
    seen: Counter[str] = Counter()
    under_way = [0]
    lock = threading.Lock()

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/chat/completions")
    async def judge(request: Request) -> Response:
        from starlette.concurrency import run_in_threadpool

        return await run_in_threadpool(respond, await request.body())

    def respond(body: bytes) -> Response:
        digest, mood = sha256(body).hexdigest(), json.loads(body)["model"]
        with lock:
            seen[digest] += 1
            under_way[0] += 1
            with log.open("a") as file:
                file.write(f"{digest} {under_way[0]}\n")
        time.sleep(0.1 if mood == "slow" else 0.0)
        with lock:
            under_way[0] -= 1
            times = seen[digest]
        return _answer(mood, times)

    return app


class FakeJudge:
    """The judge's process, for tests."""

    def __init__(self, base_url: str, log: Path, process: "subprocess.Popen[bytes]") -> None:
        self.base_url, self._log, self.process = base_url, log, process

    def params(self, mood: str = "kind", **changes: Any) -> JudgeParams:
        values = {"base_url": self.base_url, "api_key_env": None, "model": mood, "backoff_s": 0.01, "timeout_s": 20.0}
        return JudgeParams(**JUDGE | values | changes)

    def asked(self) -> list[str]:
        """Returns the digests of all requests so far."""
        return [line.split()[0] for line in self._lines()]

    def most_at_once(self) -> int:
        return max(int(line.split()[1]) for line in self._lines())

    def _lines(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@contextmanager
def fake_judge(folder: Path, port: int = 0) -> Iterator[FakeJudge]:
    """Runs a fake judge on a port within the context. Another judge can use the same port and log later."""
    log = folder / "asked.log"
    with served_by("tests.fake_judge", str(log), port=port) as (url, process):
        yield FakeJudge(url, log, process)


if __name__ == "__main__":
    serve_for_parent(create_app(Path(sys.argv[2])), int(sys.argv[1]), lifespan="off")
