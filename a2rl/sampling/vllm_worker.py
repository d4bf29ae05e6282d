"""The child process of `vllm_backend`: runs inside vLLM's own environment, where a2rl is not installed.

    python -I vllm_worker.py <model folder> [--exact]

Speaks JSON lines. The first it writes is one of
    {"ready": true, "has_chat_template": bool}
    {"error": "..."}    the folder cannot be loaded as a checkpoint
Then it answers the request lines on stdin, each with one line on stdout, in the order in which they are done:
    {"id": int, "prompt": "text" | [{"role": ..., "content": ...}, ...], "seed": int,
     "max_new_tokens": int, "stop": [str, ...], "temperature": float, "top_p": float}
    {"id": int, "completion": {"text": ..., "finish": "stop" | "length", "prompt_tokens": int, "tokens": int}}
or, asked for the tokens that a prompt leaves free,
    {"count": <a prompt>}
    {"room": int}
or, where the request is at fault,
    {"error": "..."}
Requests that come while others are in work join them: vLLM batches continuously. Every few seconds it also says
    {"alive": true}
whatever it is doing, so that a worker that was stopped is not waited for.

Any other failure ends the process with a traceback on stderr. It also ends when its parent does.
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
    """What was asked for cannot be; the parent raises a UsageError with this text."""


class Engine:
    """A vLLM engine, in this process, and the tokenizer that goes with it."""

    def __init__(self, model: str, exact: bool) -> None:
        # Read when vllm is imported. In-process: nothing else to end with us, and the same schedule each time.
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
                dtype="bfloat16" if has_gpu else "float32",
                max_model_len=-1,  # the model's own context, or what of it fits into memory
                # A prompt's numbers must not depend on what was in the cache before it.
                enable_prefix_caching=not exact,
                **(gpu_options() if has_gpu else cpu_options(exact)),
            )
        except SafetensorError as error:
            raise RequestError(f"{model} cannot be loaded as a checkpoint: {first_line(error)}") from error
        self._context: int = self._llm.llm_engine.model_config.max_model_len
        self._added = 0
        self._callers: dict[str, int] = {}

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    @property
    def busy(self) -> bool:
        return bool(self._llm.llm_engine.has_unfinished_requests())

    def room_after(self, prompt: str | list[Json]) -> int:
        return self._context - len(self._all_tokens(prompt))

    def add(self, request: Json) -> None:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        tokens = self._tokens(request["prompt"], request["max_new_tokens"])
        sampling = SamplingParams(
            max_tokens=min(request["max_new_tokens"], self._context - len(tokens)),
            stop=request["stop"] or None,
            temperature=request["temperature"],
            top_p=request["top_p"],
            seed=request["seed"] if request["temperature"] > 0 else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # The engine wants an id that it has never seen; the caller's comes again with every turn.
        self._added += 1
        self._callers[str(self._added)] = request["id"]
        self._llm.llm_engine.add_request(str(self._added), TokensPrompt(prompt_token_ids=tokens), sampling)

    def step(self) -> list[Json]:
        """One pass over everything in work; what it completed."""
        return [
            {"id": self._callers.pop(output.request_id), "completion": self._completion(output)}
            for output in self._llm.llm_engine.step()
            if output.finished
        ]

    def _tokens(self, prompt: str | list[Json], max_new_tokens: int) -> list[int]:
        """As in transformers_backend: of a prompt that is too long for the context the last part stays."""
        room = max(self._context - max_new_tokens, self._context // 2)
        return self._all_tokens(prompt)[-room:] or [self._tokenizer.eos_token_id or 0]

    def _all_tokens(self, prompt: str | list[Json]) -> list[int]:
        if isinstance(prompt, str):
            tokens: list[int] = self._tokenizer(prompt)["input_ids"]
        else:
            tokens = self._tokenizer(self._render(prompt), add_special_tokens=False)["input_ids"]
        return tokens

    def _render(self, chat: list[Json]) -> str:
        from jinja2 import TemplateError

        try:
            return str(self._tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))
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
    return {
        # Compiling costs more seconds than it saves on the small models that anyone runs on a CPU.
        "enforce_eager": True,
        # A seeded request whose prompt is split kills the engine (0.32: "CPU Generator does not use offset").
        "enable_chunked_prefill": False,
        "max_num_seqs": 1 if exact else 256,
    }


def gpu_options() -> Json:
    import torch

    # vLLM refuses to start when its share of the whole memory is not free, and others may use the GPU as well.
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    return {"gpu_memory_utilization": round(0.9 * free_bytes / total_bytes, 3)}


def first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def take_over_stdout() -> TextIO:
    """The real stdout, for answers alone; whatever a library prints goes to stderr from now on."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def read_requests(requests: "queue.Queue[Json]") -> None:
    """A thread: ends the process when the parent closes stdin, even in the middle of a generation."""
    for line in sys.stdin:
        requests.put(json.loads(line))
    os._exit(0)


def say_alive(say: Callable[[Json], None]) -> None:
    """A thread: shows that the process runs."""
    while True:
        say({"alive": True})
        time.sleep(ALIVE_EVERY_S)


def end_with_parent(parent: int) -> None:
    """A thread, for a parent that died while another child still held our stdin open.

    Not PR_SET_PDEATHSIG: that one fires when the thread that started us ends, not only its process.
    """
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def main() -> None:
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
        engine = Engine(sys.argv[1], exact="--exact" in sys.argv[2:])
    except RequestError as error:
        say({"error": str(error)})
        return
    say({"ready": True, "has_chat_template": engine.has_chat_template})
    while True:
        while not (engine.busy and requests.empty()):
            request = requests.get()
            try:
                if "count" in request:
                    say({"room": engine.room_after(request["count"])})
                else:
                    engine.add(request)
            except RequestError as error:
                say({"error": str(error)})
        for answer in engine.step():
            say(answer)


if __name__ == "__main__":
    main()
