"""Judges of this machine, served by a child process over the same API as others: rules, and local models.

# tasks/x/annotator.py
if __name__ == "__main__":
    serve_for_parent(create_app(rule), int(sys.argv[1]), lifespan="off")

with open_judge(config, "tasks.x.annotator", annotator="...") as judge:
    answers = judge.ask(...)

For a model, `python -P -m a2rl.judge.local DESCRIPTOR FOLDER` is the child process. It needs no network: a base model
that a2rl has can judge. Requests are answered one at a time. For a large model, serve it with vLLM instead (`vllm serve
MODEL`) and give its URL as the judge's `base_url`.
"""

import math
import re
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from a2rl.core.errors import InfrastructureError
from a2rl.core.processes import Child
from a2rl.core.settings import Settings
from a2rl.judge.client import Judge
from a2rl.judge.params import JudgeConfig, JudgeParams

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 600.0
"""Timeout of the start of a model."""
SERVED_MODEL = "a2rl.judge.local"
END_TIMEOUT_S = 10
MAX_NEW_TOKENS = 2048
DEFAULT_NEW_TOKENS = 256


class ChatMessage(BaseModel):
    """One turn of a chat."""

    role: str
    content: str


class ChatRequest(BaseModel):
    """The body of POST /chat/completions; other keys are ignored. Rules use only the messages."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)
    max_tokens: int | None = Field(default=None, ge=1, le=MAX_NEW_TOKENS)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=MAX_NEW_TOKENS)
    temperature: float = Field(default=1.0, ge=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    seed: int = 0
    logprobs: bool = False
    top_logprobs: int = Field(default=0, ge=0)
    tools: list[dict[str, Any]] | None = None

    @property
    def new_tokens(self) -> int:
        """The limit on the answer's tokens."""
        return self.max_completion_tokens or self.max_tokens or DEFAULT_NEW_TOKENS


Rule = Callable[[list[ChatMessage]], dict[str, float]]
"""Returns the possible answer tokens for a chat, with their probabilities; raises ValueError if it cannot judge it."""


def create_app(rule: Rule) -> FastAPI:
    """Makes the API for a rule, which answers with one token and the log probabilities of all possible tokens."""

    def answer(request: ChatRequest) -> dict[str, Any]:
        words = sum(len(message.content.split()) for message in request.messages)
        return completion(request.model, rule(request.messages), prompt_tokens=words)

    return _app(answer)


def _app(answer: Callable[[ChatRequest], dict[str, Any]]) -> FastAPI:
    """Makes the API for a function that answers, or raises ValueError if it cannot."""
    app = FastAPI(title="a2rl judge", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/chat/completions")
    def chat(request: ChatRequest) -> dict[str, Any]:
        try:
            return answer(request)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

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
    return _reply(model, choice, prompt_tokens, 1)


def _reply(model: str, choice: dict[str, Any], prompt_tokens: int, tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": prompt_tokens, "completion_tokens": tokens, "total_tokens": prompt_tokens + tokens}
    return {"id": "judgement", "object": "chat.completion", "model": model, "choices": [choice], "usage": usage}


def breaker_of(tokenizer: Any) -> Callable[[str], str]:
    """Returns a function that breaks what the tokenizer would take for a token with a meaning of its own in a chat.

    These are the special ones and those of the chat template. Other added tokens are runs of spaces, tags of HTML and
    the like, which an honest text may have.
    """
    template, added = str(tokenizer.chat_template or ""), tokenizer.added_tokens_decoder.values()
    tokens = {each.content for each in added if each.special or each.content in template}
    tokens = {each for each in tokens.union(tokenizer.all_special_tokens) if len(each) > 1 and each.strip()}
    if not tokens:
        return str
    pattern = f"(?={'|'.join(map(re.escape, sorted(tokens)))})."
    begins = re.compile(pattern, re.DOTALL)
    return lambda text: begins.sub(r"\g<0>\\", text)


class ServedModel:
    """A causal language model with its tokenizer, in this process."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

        self._torch, self._lock = torch, threading.Lock()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
        # Nothing counts but what is asked: a model's own settings would, such as a penalty for repeated words.
        model.generation_config = GenerationConfig(eos_token_id=model.generation_config.eos_token_id)
        self._model = model.to(self._device).eval()
        self._break_tokens = breaker_of(self._tokenizer)

    def answer(self, request: ChatRequest) -> dict[str, Any]:
        """Returns the body of a reply.

        Raises:
            ValueError: The model cannot answer such a request.
        """
        if request.tools:
            raise ValueError("a model that a2rl serves calls no functions: choose an annotator that reads text")
        prompt = self._prompt(request.messages)
        context = getattr(self._model.config, "max_position_embeddings", 1 << 20)
        if prompt.shape[1] + request.new_tokens > context:
            raise ValueError(f"the prompt has {prompt.shape[1]} tokens; the model's context is {context}")
        with self._lock:
            written, steps = self._generate(prompt, request)
        return self._reply(request, prompt.shape[1], written, steps)

    def _prompt(self, messages: list[ChatMessage]) -> Any:
        """Returns the chat as tokens, of shape (1, tokens). Without a template, the turns follow each other.

        A token of the model's own in a message is text: a backslash after its first character sees to that.

        Raises:
            ValueError: The chat template refuses the chat.
        """
        turns = [{**message.model_dump(), "content": self._break_tokens(message.content)} for message in messages]
        if self._tokenizer.chat_template:
            tokens = self._tokenizer(self._as_chat(turns), return_tensors="pt", add_special_tokens=False)
        else:
            tokens = self._tokenizer("\n\n".join(turn["content"] for turn in turns), return_tensors="pt")
        return tokens["input_ids"].to(self._device)

    def _as_chat(self, turns: list[dict[str, str]]) -> str:
        """Returns the turns in the model's template. Where that refuses a system's turn, its text begins the next one.

        Raises:
            ValueError: The template refuses the chat.
        """
        from jinja2 import TemplateError

        given, refusal = [turns], ""
        if len(turns) > 1 and turns[0]["role"] == "system":
            text = f"{turns[0]['content']}\n\n{turns[1]['content']}"
            given.append([{**turns[1], "content": text}, *turns[2:]])
        for chat in given:
            try:
                return str(self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
            except TemplateError as error:
                refusal = f"the judge's chat template refuses the prompt: {error}"
        raise ValueError(refusal)

    def _generate(self, prompt: Any, request: ChatRequest) -> tuple[list[int], list[Any]]:
        """Returns the new tokens, and for each the log probabilities of the whole vocabulary."""
        self._torch.manual_seed(request.seed)
        sampling = {"do_sample": True, "temperature": request.temperature, "top_p": request.top_p, "top_k": 0}
        with self._torch.inference_mode():
            done = self._model.generate(
                prompt,
                attention_mask=self._torch.ones_like(prompt),
                max_new_tokens=request.new_tokens,
                return_dict_in_generate=True,
                output_logits=request.logprobs,
                pad_token_id=self._tokenizer.pad_token_id or self._tokenizer.eos_token_id or 0,
                **(sampling if request.temperature else {"do_sample": False}),
            )
        steps = [logits[0].float().log_softmax(-1) for logits in done.logits] if request.logprobs else []
        return done.sequences[0, prompt.shape[1] :].tolist(), steps

    def _reply(self, request: ChatRequest, prompt_tokens: int, written: list[int], steps: list[Any]) -> dict[str, Any]:
        text = self._tokenizer.decode(written, skip_special_tokens=True)
        content = [
            self._logprobs(token, step, request.top_logprobs) for token, step in zip(written, steps, strict=False)
        ]
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": text},
            "logprobs": {"content": content} if request.logprobs else None,
            "finish_reason": "length" if len(written) == request.new_tokens else "stop",
        }
        return _reply(request.model, choice, prompt_tokens, len(written))

    def _logprobs(self, token: int, step: Any, count: int) -> dict[str, Any]:
        top = step.topk(min(count, step.shape[-1]))
        ranked = [
            self._token(each, value) for each, value in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        return {**self._token(token, step[token].item()), "top_logprobs": ranked}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._tokenizer.decode([token]), "logprob": logprob}


@contextmanager
def _process(module: str, *arguments: str, timeout_s: float = START_TIMEOUT_S) -> Iterator[str]:
    """Runs a judge's process on a free loopback port within the context, and yields its address.

    Raises:
        InfrastructureError: It does not start.
    """
    with socket.create_server((LOOPBACK, 0), backlog=128) as listener:
        base_url, descriptor = f"http://{LOOPBACK}:{listener.getsockname()[1]}", listener.fileno()
        process = Child.of_module(module, descriptor, *arguments, settings=Settings.load(), descriptors=[descriptor])
    try:
        if not process.is_healthy(base_url, timeout_s):
            raise InfrastructureError(f"the judge {module} does not start: see the lines above it in the log")
        yield base_url
    finally:
        process.end(END_TIMEOUT_S)


@contextmanager
def serve_rule_judge(module: str, annotator: str) -> Iterator[JudgeConfig]:
    """Serves a task's own rule-based judge within the context; its answers cost nothing and are not kept."""
    with _process(module) as base_url, tempfile.TemporaryDirectory() as scratch:
        params = JudgeParams(annotator=annotator, base_url=base_url, api_key_env=None, model="rule")
        yield JudgeConfig(params, Path(scratch) / "judgements.db")


@contextmanager
def serve_model_judge(config: JudgeConfig, folder: Path) -> Iterator[JudgeConfig]:
    """Serves a local model as a judge within the context."""
    with _process(SERVED_MODEL, str(folder), timeout_s=LOAD_TIMEOUT_S) as base_url:
        yield replace(config, params=config.params.model_copy(update={"base_url": base_url}))


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


if __name__ == "__main__":
    from a2rl.core.serving import serve_for_parent

    serve_for_parent(_app(ServedModel(Path(sys.argv[2])).answer), int(sys.argv[1]), lifespan="off")
