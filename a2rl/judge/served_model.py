"""A model of this machine as a judge, behind the API of the other judges.

Run as `python -P -m a2rl.judge.served_model DESCRIPTOR FOLDER`, with a listening socket; it ends when its standard
input closes. It needs no network: a base model that a2rl has can judge. Requests are answered one at a time. For a
large model, serve it with vLLM instead (`vllm serve MODEL`) and give its URL as the judge's `base_url`.
"""

import sys
import threading
from pathlib import Path
from typing import Any

from fastapi import FastAPI, HTTPException
from pydantic import BaseModel, Field

from a2rl.core.serving import serve_for_parent
from a2rl.judge.local import ChatMessage

MAX_NEW_TOKENS = 2048
DEFAULT_NEW_TOKENS = 256


class ModelRequest(BaseModel):
    """The body of POST /chat/completions; other keys are ignored."""

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


class ServedModel:
    """A causal language model with its tokenizer, in this process."""

    def __init__(self, folder: Path) -> None:
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self._torch, self._lock = torch, threading.Lock()
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto")
        self._model = model.to(self._device).eval()

    def answer(self, request: ModelRequest) -> dict[str, Any]:
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
        """Returns the chat as tokens, of shape (1, tokens). Without a template, the turns follow each other."""
        if self._tokenizer.chat_template:
            turns = [message.model_dump() for message in messages]
            text = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            tokens = self._tokenizer(text, return_tensors="pt", add_special_tokens=False)
        else:
            tokens = self._tokenizer("\n\n".join(message.content for message in messages), return_tensors="pt")
        return tokens["input_ids"].to(self._device)

    def _generate(self, prompt: Any, request: ModelRequest) -> tuple[list[int], list[Any]]:
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

    def _reply(self, request: ModelRequest, prompt_tokens: int, written: list[int], steps: list[Any]) -> dict[str, Any]:
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
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": len(written)}
        return {
            "id": "judgement",
            "object": "chat.completion",
            "model": request.model,
            "choices": [choice],
            "usage": usage,
        }

    def _logprobs(self, token: int, step: Any, count: int) -> dict[str, Any]:
        top = step.topk(min(count, step.shape[-1]))
        ranked = [
            self._token(each, value) for each, value in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        ]
        return {**self._token(token, step[token].item()), "top_logprobs": ranked}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        return {"token": self._tokenizer.decode([token]), "logprob": logprob}


def create_app(model: ServedModel) -> FastAPI:
    """Makes the API of a model."""
    app = FastAPI(title="a2rl served judge", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/health")
    def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/chat/completions")
    def chat(request: ModelRequest) -> dict[str, Any]:
        try:
            return model.answer(request)
        except ValueError as error:
            raise HTTPException(400, str(error)) from error

    return app


if __name__ == "__main__":
    serve_for_parent(create_app(ServedModel(Path(sys.argv[2]))), int(sys.argv[1]), lifespan="off")
