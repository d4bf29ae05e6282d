"""The child process of `vllm_backend`: runs in vLLM's own environment, where a2rl is not installed.

    python -I vllm_worker.py <model folder> '{"exact": bool, "engine": {<option of vllm.LLM>: <value>, ...},
        "on_gpu": {<option of vllm.LLM for GPUs alone>: <value>, ...}, "start_bytes": int, "waking_bytes": int}'

The last two are what must be free on a GPU when it starts, and when it wakes up. Speaks JSON lines. The first it writes
is one of
    {"ready": true, "has_chat_template": bool, "cache_tokens": <that it keeps between turns> | null}
    {"error": "..."}    the folder cannot be loaded as a checkpoint
    {"machine": "..."}  this machine cannot do what was asked for
    {"memory": "..."}   too little memory of the GPU is free; also said later by a process that ends for this reason
Then it answers each request line on stdin with one line on stdout, in the order in which they are finished:
    {"id": int, "prompt": "text" | [{"role": ..., "content": ...}, ...], "seed": int,
     "max_new_tokens": int, "stop": [str, ...], "temperature": float, "top_p": float, "top_k": int,
     "chat_template_kwargs": {str: any, ...}}
    {"id": int, "completion": {"text": ..., "finish": "stop" | "length", "prompt_tokens": int, "tokens": int},
     "cached_tokens": <how many tokens of the prompt were in the cache>}
or, for a request for the number of tokens that a prompt leaves free,
    {"count": <a prompt>, "chat_template_kwargs": {str: any, ...}}
    {"room": int}
or, if the request is wrong,
    {"error": "..."}
Requests that arrive while others are in progress join their batch. Two more requests concern the engine itself:
    {"load": <model folder>, "nonce": "..."}    takes the weights in the folder, in place of those that it has
    {"loaded": <the nonce>, "problem": "...", "has_chat_template": bool, "cache_tokens": int | null}
The problem is empty if every weight was replaced and compared with the files. Otherwise the engine is of no more use.
If too little memory of a GPU is free, there is `"memory": "..."` in its place, and the engine goes on resting.
    {"rest": true}
Until the next load, the engine leaves a GPU's memory to others. There is no answer. A worker that still generates ends.

Every few seconds the worker also writes
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
import traceback
from collections.abc import Callable
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from a2rl.sampling import vllm_weights
    from a2rl.sampling.decoder import conversation
else:  # the folder of this file is not searched for modules, so that none of them can hide another one

    def _module(path):
        found = spec_from_file_location(path.stem, path)
        module = module_from_spec(found)
        found.loader.exec_module(module)
        return module

    vllm_weights = _module(Path(__file__).with_name("vllm_weights.py"))
    conversation = _module(Path(__file__).with_name("decoder") / "conversation.py")

Json = dict[str, Any]
GIB = 1 << 30
ALIVE_EVERY_S = 5
CACHE_BYTES = GIB
"""The size of the cache, unless the parent says another one."""
GPU_OPTIONS: Json = {
    "dtype": "bfloat16",
    "enable_sleep_mode": True,
    # With a size, vLLM 0.32 does not measure how much memory is free, which others may change meanwhile.
    "kv_cache_memory_bytes": CACHE_BYTES,
    # With a size, this has only one use: vLLM starts if this share of the memory is free.
    "gpu_memory_utilization": 0.01,
}
"""The options of vLLM for a GPU."""
OUT_OF_MEMORY, ABANDONED = 2, 3
"""The exit codes of a worker that ran out of memory, and of one whose parent went away while it generated."""


class RequestError(Exception):
    """The request is wrong; the parent raises a UsageError with this text."""


class MachineError(Exception):
    """This machine cannot do it; the parent raises an InfrastructureError with this text."""


class OutOfMemoryError(Exception):
    """A GPU has too little free memory for the engine, which has not taken any of it yet."""


SIGNS_OF_NO_MEMORY = (
    "OutOfMemoryError",
    "out of memory",
    "can't allocate memory",
    "Cannot allocate memory",
    # What vLLM says when other processes change how much of a GPU is free.
    "Error in memory profiling",
    "Memory usage increased after sleeping",
    "Free memory on device",
    "less than requested memory for kv",
)
"""How torch, CUDA, the system and vLLM say that there is no memory left."""


def lacks_memory(text: str) -> bool:
    """Whether the text of an error says that there is no memory left."""
    return any(sign in text for sign in SIGNS_OF_NO_MEMORY)


def free_gpu_bytes() -> int:
    """Returns how much memory is free on each of this process's GPUs."""
    import torch

    return min(torch.cuda.mem_get_info(device)[0] for device in range(torch.cuda.device_count()))


def require_free(needed: int, free: int) -> None:
    """Raises OutOfMemoryError if less is free than what is needed."""
    if free < needed:
        gib = "{:.1f} GiB".format
        raise OutOfMemoryError(
            f"the grader needs {gib(needed / GIB)} of the GPU's memory, of which {gib(free / GIB)} are free: "
            f"{gib((needed - free) / GIB)} are missing"
        )


class Engine:
    """A vLLM engine, in this process, and the tokenizer that goes with it."""

    def __init__(self, llm: Any, tokenizer: Any, sleeps: bool, waking_bytes: int) -> None:
        self._llm, self._tokenizer = llm, tokenizer
        self._sleeps, self._waking_bytes = sleeps, waking_bytes
        self._is_asleep = False
        self._context: int = llm.llm_engine.model_config.max_model_len
        self._added = 0
        self._callers: dict[str, tuple[int, bool]] = {}

    @classmethod
    def start(cls, model: str, told: Json) -> "Engine":
        """Starts the engine that the parent has described, on a checkpoint folder.

        Raises:
            RequestError: The folder is not a checkpoint.
            MachineError: This machine cannot do it.
            OutOfMemoryError: The GPU has too little free memory.
        """
        # Read when vllm is imported. In one process, so that no other has to be ended and scheduling is repeatable.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        has_gpu, exact = finds_gpu(), told["exact"]
        if exact and has_gpu:
            os.environ["VLLM_BATCH_INVARIANT"] = "1"
        tokenizer = load_tokenizer(model)
        defaults = cpu_options(exact)
        if has_gpu:
            require_free(told.get("start_bytes", 0), free_gpu_bytes())
            defaults = {**GPU_OPTIONS, **told.get("on_gpu", {})}
        llm = load_engine(model, exact, {**defaults, **told["engine"]})
        return cls(llm, tokenizer, has_gpu, told.get("waking_bytes", 0))

    def load(self, model: str) -> str:
        """Replaces the weights by those of another folder of the same architecture.

        Returns:
            Why that failed, or could not be verified; empty if it succeeded.

        Raises:
            OutOfMemoryError: The GPU has too little free memory. The engine goes on resting.
            Exception: It ran out of memory nevertheless, and is of no more use.
        """
        if self.busy:
            return "the engine still generates"
        if self._is_asleep:
            require_free(self._waking_bytes, free_gpu_bytes())
        try:
            if self._is_asleep:
                self._llm.wake_up(tags=["weights"])
            self._llm.apply_model(vllm_weights.forget_packing)
            self._llm.collective_rpc("reload_weights", kwargs={"weights_path": model})
            self._llm.apply_model(vllm_weights.pack_again)
            self._require_weights_of(model)
            if self._is_asleep:
                self._llm.wake_up(tags=["kv_cache"])
                self._is_asleep = False
            if not self._llm.reset_prefix_cache():
                return "the cache of prefixes could not be emptied"
        except Exception as error:
            if lacks_memory(repr(error)):
                raise
            # Whatever else it is, the caller starts a new engine.
            return f"{type(error).__name__}: {first_line(error)}"
        return ""

    def rest(self) -> None:
        """Leaves the memory of a GPU to others, and forgets the weights."""
        if self._sleeps and not self._is_asleep:
            self._llm.sleep(level=2)
            self._is_asleep = True

    def _require_weights_of(self, model: str) -> None:
        dtype = self._llm.llm_engine.model_config.dtype
        self._llm.apply_model(lambda module: vllm_weights.require_equal(model, module, dtype))

    @property
    def about(self) -> Json:
        """What the parent must know of the model and the engine."""
        cache = self._llm.llm_engine.vllm_config.cache_config
        return {
            "has_chat_template": bool(self._tokenizer.chat_template),
            "cache_tokens": cache.kv_cache_size_tokens if cache.enable_prefix_caching else None,
        }

    @property
    def busy(self) -> bool:
        """Whether requests are in progress."""
        return bool(self._llm.llm_engine.has_unfinished_requests())

    @cached_property
    def _ends(self) -> list[int] | None:
        return sorted(conversation.end_of_answer(self._tokenizer)) or None

    def room_after(self, request: Json) -> int:
        """Returns how many tokens of the context the request's prompt leaves free."""
        return self._context - len(self._all_tokens(request["count"], request["chat_template_kwargs"]))

    def add(self, request: Json) -> None:
        """Adds a request to the batch."""
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt
        from vllm.sampling_params import RequestOutputKind

        tokens, is_cut = self._tokens(request)
        sampling = SamplingParams(
            max_tokens=min(request["max_new_tokens"], self._context - len(tokens)),
            # The engine would find them in a model's thoughts, too; the parent cuts the answer.
            stop=request["stop"] if conversation.channel_token(self._tokenizer) is None else None,
            stop_token_ids=self._ends,
            temperature=request["temperature"],
            top_p=request["top_p"],
            top_k=request["top_k"],
            seed=request["seed"] if request["temperature"] > 0 else None,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        # The engine needs a new id for each request; the caller's id is the same in every turn.
        self._added += 1
        self._callers[str(self._added)] = request["id"], is_cut
        self._llm.llm_engine.add_request(str(self._added), TokensPrompt(prompt_token_ids=tokens), sampling)

    def step(self) -> list[Json]:
        """Makes one pass over the batch and returns the completed answers."""
        answers = []
        for output in filter(lambda each: each.finished, self._llm.llm_engine.step()):
            caller, is_cut = self._callers.pop(output.request_id)
            completion = self._completion(output, is_cut)
            answers.append({"id": caller, "completion": completion, "cached_tokens": output.num_cached_tokens or 0})
        return answers

    def _tokens(self, request: Json) -> tuple[list[int], bool]:
        """The prompt's tokens; as in transformers_backend, a prompt that is too long is cut: it loses its beginning."""
        room = conversation.longest_prompt(self._context, request["max_new_tokens"])
        tokens = self._all_tokens(request["prompt"], request["chat_template_kwargs"])
        return tokens[-room:] or [self._tokenizer.eos_token_id or 0], len(tokens) > room

    def _all_tokens(self, prompt: str | list[Json], chat_template_kwargs: Json) -> list[int]:
        from jinja2 import TemplateError

        try:
            return conversation.prompt_tokens(self._tokenizer, prompt, chat_template_kwargs)
        except TemplateError as error:
            raise RequestError(f"the model's chat template refuses the chat: {error}") from error

    def _completion(self, output: Any, is_cut: bool) -> Json:
        [generated] = output.outputs
        written = list(generated.token_ids)
        answer = conversation.told(self._tokenizer, written)
        return {
            "text": generated.text if answer == written else self._tokenizer.decode(answer, skip_special_tokens=True),
            "finish": "length" if generated.finish_reason == "length" else "stop",
            "prompt_tokens": len(output.prompt_token_ids),
            "tokens": len(written),
            "is_cut": is_cut,
        }


def finds_gpu() -> bool:
    """Says whether there is a GPU.

    Raises:
        MachineError: One was given to this process, but CUDA does not see it.
    """
    import torch

    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    if not given or torch.cuda.is_available():
        return torch.cuda.is_available()
    if torch.version.cuda is None:
        why = "is a build without CUDA"
        remedy = "run `scripts/setup_environment.sh vllm` again where `nvidia-smi` lists the GPU"
    else:
        why, remedy = "sees no GPU", "`nvidia-smi` may say what has happened to it"
    raise MachineError(f"vLLM was given the GPU {given}, but its torch {torch.__version__} {why}: {remedy}")


def load_tokenizer(model: str) -> Any:
    """Returns the tokenizer of a checkpoint folder.

    Raises:
        RequestError: The folder has none, or is not a checkpoint.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import AutoConfig, AutoTokenizer

    try:
        AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(model, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError, StrictDataclassError) as error:
        raise RequestError(f"{model} cannot be loaded as a checkpoint: {first_line(error)}") from error
    if not tokenizer("a")["input_ids"]:
        raise RequestError(f"{model} has no tokenizer: save the base model's tokenizer next to the weights")
    return tokenizer


def load_engine(model: str, exact: bool, options: Json) -> Any:
    """Starts an engine of vLLM on a checkpoint folder.

    Raises:
        RequestError: The folder is not a checkpoint, or not one for these options.
    """
    from pydantic import ValidationError
    from safetensors import SafetensorError
    from vllm import LLM

    try:
        return LLM(
            model=model,
            trust_remote_code=False,
            # Repositories of Mistral also have everything in a format of their own, which submissions do not have.
            load_format="safetensors",
            config_format="hf",
            tokenizer_mode="hf",
            # The numbers of a prompt must not depend on earlier content of the cache.
            enable_prefix_caching=not exact,
            **options,
        )
    except SafetensorError as error:
        raise RequestError(f"{model} cannot be loaded as a checkpoint: {first_line(error)}") from error
    except ValidationError as error:
        raise RequestError(f"vLLM does not take {model}: {error.errors()[0]['msg']}") from error


def cpu_options(exact: bool) -> Json:
    """Returns the options of vLLM for a machine without a GPU."""
    return {
        "dtype": "float32",
        "kv_cache_memory_bytes": CACHE_BYTES,
        # Compiling costs more seconds than it saves on the small models that anyone runs on a CPU.
        "enforce_eager": True,
        # A seeded request whose prompt is split kills the engine (0.32: "CPU Generator does not use offset").
        "enable_chunked_prefill": False,
        "max_num_seqs": 1 if exact else 256,
    }


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
        engine = Engine.start(sys.argv[1], json.loads(sys.argv[2]))
        say({"ready": True, **engine.about})
        serve(engine, requests, say)
    except RequestError as error:
        say({"error": str(error)})
    except MachineError as error:
        say({"machine": str(error)})
    except OutOfMemoryError as error:
        say({"memory": str(error)})
    except Exception as error:
        if not lacks_memory(repr(error)):
            raise
        traceback.print_exc()
        say({"memory": f"others took memory that it needed ({first_line(error)})"})
        os._exit(OUT_OF_MEMORY)  # nothing else could delay that its own memory is free again


def serve(engine: Engine, requests: "queue.Queue[Json]", say: Callable[[Json], None]) -> None:
    """Answers requests for ever."""
    while True:
        while not (engine.busy and requests.empty()):
            request = requests.get()
            try:
                take(engine, request, say)
            except RequestError as error:
                say({"error": str(error)})
        for answer in engine.step():
            say(answer)


def take(engine: Engine, request: Json, say: Callable[[Json], None]) -> None:
    """Answers one request, or adds it to the batch. Raises RequestError."""
    if "count" in request:
        say({"room": engine.room_after(request)})
    elif "load" in request:
        try:
            outcome = {"problem": engine.load(request["load"])}
        except OutOfMemoryError as error:
            outcome = {"memory": str(error)}
        say({"loaded": request["nonce"], **outcome, **engine.about})
    elif "rest" in request:
        if engine.busy:
            os._exit(ABANDONED)
        engine.rest()
    else:
        engine.add(request)


if __name__ == "__main__":
    main()
