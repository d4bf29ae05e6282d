"""The child process of `vllm_backend`: runs in vLLM's own environment, where a2rl is not installed.

    python -I vllm_worker.py <model folder> '{"exact": bool, "engine": {<option of vllm.LLM>: <value>, ...}}'

Speaks JSON lines. The first it writes is one of
    {"ready": true, "has_chat_template": bool}
    {"error": "..."}    the folder cannot be loaded as a checkpoint
Then it answers each request line on stdin with one line on stdout, in the order in which they are finished:
    {"id": int, "prompt": "text" | [{"role": ..., "content": ...}, ...], "seed": int,
     "max_new_tokens": int, "stop": [str, ...], "temperature": float, "top_p": float, "top_k": int,
     "chat_template_kwargs": {str: any, ...}}
    {"id": int, "completion": {"text": ..., "finish": "stop" | "length", "prompt_tokens": int, "tokens": int}}
or, for a request for the number of tokens that a prompt leaves free,
    {"count": <a prompt>, "chat_template_kwargs": {str: any, ...}}
    {"room": int}
or, if the request is wrong,
    {"error": "..."}
Requests that arrive while others are in progress join their batch. Every few seconds it also writes
    {"alive": true}
so that the parent does not wait for a worker that was stopped.

Any other failure ends the process with a traceback on stderr. It also ends when its parent ends.
"""

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

Json = dict[str, Any]
ALIVE_EVERY_S = 5


class RequestError(Exception):
    """The request is wrong; the parent raises a UsageError with this text."""


class Engine:
    """A vLLM engine, in this process, and the tokenizer that goes with it."""

    def __init__(self, model: str, exact: bool, options: Json) -> None:
        # Read when vllm is imported. In one process, so that no other has to be ended and scheduling is repeatable.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        import torch

        has_gpu = torch.cuda.is_available()
        if exact and has_gpu:
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        from huggingface_hub.errors import StrictDataclassError
        from safetensors import SafetensorError
        from transformers import AutoConfig, AutoTokenizer

        try:
            AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, StrictDataclassError) as error:
            raise RequestError(f"{model} cannot be loaded as a checkpoint: {first_line(error)}") from error
        if not self._tokenizer("a")["input_ids"]:
            raise RequestError(f"{model} has no tokenizer: save the base model's tokenizer next to the weights")
        from vllm import LLM

        try:
            self._llm = LLM(
                model=model,
                trust_remote_code=False,
                load_format="safetensors",
                # The numbers of a prompt must not depend on earlier content of the cache.
                enable_prefix_caching=not exact,
                **{
                    "max_model_len": -1,  # the model's own context, or as much of it as fits into memory
                    **(gpu_options() if has_gpu else cpu_options(exact)),
                    **options,
                },
            )
        except SafetensorError as error:
            raise RequestError(f"{model} cannot be loaded as a checkpoint: {first_line(error)}") from error
        self._context: int = self._llm.llm_engine.model_config.max_model_len
        self._added = 0
        self._callers: dict[str, int] = {}

    @property
    def has_chat_template(self) -> bool:
        """Whether the tokenizer has a chat template."""
        return bool(self._tokenizer.chat_template)

    @property
    def busy(self) -> bool:
        """Whether requests are in progress."""
        return bool(self._llm.llm_engine.has_unfinished_requests())

    def room_after(self, request: Json) -> int:
        """Returns how many tokens of the context the request's prompt leaves free."""
        return self._context - len(self._all_tokens(request["count"], request["chat_template_kwargs"]))

    def add(self, request: Json) -> None:
        """Adds a request to the batch."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        tokens = self._tokens(request)
        sampling = SamplingParams(
            max_tokens=min(request["max_new_tokens"], self._context - len(tokens)),
            stop=request["stop"] or None,
            temperature=request["temperature"],
            top_p=request["top_p"],
            top_k=request["top_k"],
            seed=request["seed"] if request["temperature"] > 0 else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # The engine needs a new id for each request; the caller's id is the same in every turn.
        self._added += 1
        self._callers[str(self._added)] = request["id"]
        self._llm.llm_engine.add_request(str(self._added), TokensPrompt(prompt_token_ids=tokens), sampling)

    def step(self) -> list[Json]:
        """Makes one pass over the batch and returns the completed answers."""
        return [
            {"id": self._callers.pop(output.request_id), "completion": self._completion(output)}
            for output in self._llm.llm_engine.step()
            if output.finished
        ]

    def _tokens(self, request: Json) -> list[int]:
        """The prompt's tokens; as in transformers_backend, a prompt that is too long loses its beginning."""
        room = max(self._context - request["max_new_tokens"], self._context // 2)
        tokens = self._all_tokens(request["prompt"], request["chat_template_kwargs"])
        return tokens[-room:] or [self._tokenizer.eos_token_id or 0]

    def _all_tokens(self, prompt: str | list[Json], chat_template_kwargs: Json) -> list[int]:
        if isinstance(prompt, str):
            tokens: list[int] = self._tokenizer(prompt)["input_ids"]
        else:
            tokens = self._tokenizer(self._render(prompt, chat_template_kwargs), add_special_tokens=False)["input_ids"]
        return tokens

    def _render(self, chat: list[Json], chat_template_kwargs: Json) -> str:
        from jinja2 import TemplateError

        try:
            return str(
                self._tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=True, **chat_template_kwargs
                )
            )
        except TemplateError as error:
            raise RequestError(f"the model's chat template refuses the chat: {error}") from error

    def _completion(self, output: Any) -> Json:
        [generated] = output.outputs
        return {
            "text": generated.text,
            "finish": "length" if generated.finish_reason == "length" else "stop",
            "prompt_tokens": len(output.prompt_token_ids),
            "tokens": len(generated.token_ids),
        }


def cpu_options(exact: bool) -> Json:
    """Returns the options of vLLM for a machine without a GPU."""
    return {
        "dtype": "float32",
        # Compiling costs more seconds than it saves on the small models that anyone runs on a CPU.
        "enforce_eager": True,
        # A seeded request whose prompt is split kills the engine (0.32: "CPU Generator does not use offset").
        "enable_chunked_prefill": False,
        "max_num_seqs": 1 if exact else 256,
    }


def gpu_options() -> Json:
    """Returns the options of vLLM for a GPU."""
    import torch

    # vLLM refuses to start when its share of the whole memory is not free, and others may use the GPU as well.
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return {"dtype": "bfloat16", "gpu_memory_utilization": round(0.9 * free_bytes / total_bytes, 3)}


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def take_over_stdout() -> TextIO:
    """Returns the real stdout for answers; from now on, output of libraries goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def read_requests(requests: "queue.Queue[Json]") -> None:
    """Runs in a thread: reads requests, and ends the process when stdin closes, even during generation."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def say_alive(say: Callable[[Json], None]) -> None:
    """Runs in a thread: reports that the process is alive."""
    while True:
        say({"alive": True})
        time.sleep(ALIVE_EVERY_S)


def end_with_parent(parent: int) -> None:
    """Runs in a thread: ends the process when its parent has died but another process still holds stdin open.

    PR_SET_PDEATHSIG cannot be used: it also fires when only the thread that started us ends.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
    """Loads the model and answers requests until stdin closes."""
    answers = take_over_stdout()
    requests: queue.Queue[Json] = queue.Queue()
    threading.Thread(target=end_with_parent, args=(os.getppid(),), daemon=True).start()
    threading.Thread(target=read_requests, args=(requests,), daemon=True).start()
    whole = threading.Lock()

    def say(message: Json) -> None:
        with whole:
            answers.write(json.dumps(message) + "\n")
            answers.flush()

    threading.Thread(target=say_alive, args=(say,), daemon=True).start()

    try:
        told = json.loads(sys.argv[2])
        engine = Engine(sys.argv[1], told["exact"], told["engine"])
    except RequestError as error:
        say({"error": str(error)})
        return
    say({"ready": True, "has_chat_template": engine.has_chat_template})
    while True:
        while not (engine.busy and requests.empty()):
            request = requests.get()
            try:
                if "count" in request:
                    say({"room": engine.room_after(request)})
                else:
                    engine.add(request)
            except RequestError as error:
                say({"error": str(error)})
        for answer in engine.step():
            say(answer)


if __name__ == "__main__":
    main()
