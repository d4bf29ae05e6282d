"""Generation with vLLM: a worker process (`vllm_worker.py`) in its own environment, asked over JSON lines.

vLLM needs other versions of torch and transformers than the rest of the project, so it is never imported here.
`make setup-vllm` installs it into `.venv-vllm`; A2RL_VLLM_PYTHON names another interpreter that has it.
"""

import json
import os
import random
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import psutil

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.sampling import NO_KWARGS, Completion, Conversation, OnEnd, Prompt, SamplingParams, one_turn
from a2rl.sampling.engine_params import Dtype, VllmParams

WORKER = Path(__file__).with_name("vllm_worker.py")
CLOSE_TIMEOUT_S = 10
LOG_TAIL_LINES = 25
SILENCE_S = 120.0
"""A worker that is silent for so long (it reports every few seconds) is stuck."""
BLOCK = 1 << 16

Json = dict[str, Any]
T = TypeVar("T")


class VllmSampler:
    """A checkpoint folder served by a vLLM worker; see `a2rl.sampling.Sampler` for the contract."""

    def __init__(
        self, model: Path, exact: bool, on_end: OnEnd, dtype: Dtype | None = None, params: VllmParams | None = None
    ) -> None:
        self._on_end = on_end
        settings = Settings.load()
        python = settings.vllm_python
        if not python.is_file():
            raise InfrastructureError("vLLM is not installed: run `make setup-vllm`")
        _check_folder(model)
        options = {
            "exact": exact,
            "engine": (params or VllmParams()).engine_options() | ({"dtype": dtype} if dtype else {}),
        }
        descriptor, log = tempfile.mkstemp(prefix="a2rl-vllm-", suffix=".log")
        self._log = Path(log)
        with os.fdopen(descriptor, "wb") as stderr:
            self._worker = subprocess.Popen(
                # -I: neither PYTHONPATH nor the current folder may add modules to vLLM's environment.
                [python, "-I", WORKER, model.resolve(), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=_worker_environment(settings),
                # Its own group, so that close() can end whatever vLLM started, and a Ctrl-C reaches us first.
                start_new_session=True,
            )
        assert self._worker.stdin is not None
        assert self._worker.stdout is not None
        self._requests = self._worker.stdin
        self._answers = self._worker.stdout
        self._said = b""
        try:
            self._has_chat_template = bool(self._receive()["has_chat_template"])
        except BaseException:
            self.close()
            raise

    @property
    def has_chat_template(self) -> bool:
        """See `Sampler`."""
        return self._has_chat_template

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        """See `Sampler`."""
        self._send({"count": self._in_json(prompt), "chat_template_kwargs": dict(chat_template_kwargs)})
        return int(self._receive()["room"])

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Completion]:
        """See `Sampler`."""
        return self.converse([one_turn(prompt) for prompt in prompts], params)

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """See `Sampler`.

        Raises:
            InfrastructureError: The worker has died or is stuck.
        """
        decoding = {
            "max_new_tokens": params.max_new_tokens,
            "stop": params.stop,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "chat_template_kwargs": dict(params.chat_template_kwargs),
        }
        seeds = [random.Random(f"{params.seed}/{index}") for index in range(len(conversations))]
        results: dict[int, T] = {}
        in_work: set[int] = set()
        away: dict[int, Future[Any]] = {}

        def go_on(index: int, completion: Completion | None) -> None:
            """Asks for the conversation's next turn, or keeps its result."""
            conversation = conversations[index]
            try:
                prompt = next(conversation) if completion is None else conversation.send(completion)
            except StopIteration as end:
                results[index] = end.value
                self._on_end()
                return
            if isinstance(prompt, Future):
                away[index] = prompt
                return
            request = {"id": index, "prompt": self._in_json(prompt), "seed": seeds[index].getrandbits(63), **decoding}
            in_work.add(index)
            self._send(request)

        try:
            for index in range(len(conversations)):
                go_on(index, None)
            while len(results) < len(conversations):
                if in_work:
                    answer = self._receive()
                    in_work.remove(answer["id"])
                    go_on(answer["id"], Completion(**answer["completion"]))
                else:
                    wait(away.values(), return_when=FIRST_COMPLETED)
                for index in [index for index, pending in away.items() if pending.done()]:
                    del away[index]
                    go_on(index, None)
        except BaseException:
            if in_work:
                self.close()  # answers that are still to come would be taken for those of the next call
            raise
        return [results[index] for index in range(len(conversations))]

    def _in_json(self, prompt: Prompt) -> Any:
        if isinstance(prompt, str):
            return prompt
        if not self._has_chat_template:
            raise UsageError("the model's tokenizer has no chat template: give it one, or send plain text")
        return [asdict(message) for message in prompt]

    def close(self) -> None:
        """Ends the worker, if necessary by force. Its log is kept only if it failed."""
        with suppress(BrokenPipeError):
            self._requests.close()
        try:
            code = self._worker.wait(CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        with suppress(ProcessLookupError):
            os.killpg(self._worker.pid, signal.SIGKILL)
        self._worker.wait()
        self._answers.close()
        if code == 0:
            self._log.unlink(missing_ok=True)

    def _send(self, request: Json) -> None:
        try:
            self._requests.write(json.dumps(request).encode() + b"\n")
            self._requests.flush()
        except (BrokenPipeError, ValueError) as error:
            # ValueError: the sampler was closed, or an earlier failure closed it.
            raise self._death() from error

    def _receive(self) -> Json:
        """The next answer."""
        while True:
            line = self._line()
            if not line.endswith(b"\n"):  # also one that broke off
                raise self._death()
            answer: Json = json.loads(line)
            if "error" in answer:
                raise UsageError(answer["error"])
            if "alive" not in answer:
                return answer

    def _line(self) -> bytes:
        """The next line, or what there is of it at the end."""
        while b"\n" not in self._said:
            if not select.select([self._answers], [], [], SILENCE_S)[0]:
                os.killpg(self._worker.pid, signal.SIGKILL)
                raise self._death(f"it gave no sign of life for {SILENCE_S:.0f} s")
            block = os.read(self._answers.fileno(), BLOCK)
            if not block:
                return self._said
            self._said += block
        line, _, self._said = self._said.partition(b"\n")
        return line + b"\n"

    def _death(self, why: str = "") -> InfrastructureError:
        """Returns the error for a dead worker, with the end of its log as a note."""
        self.close()
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        last = why or (lines[-1].strip() if lines else "it wrote nothing")
        error = InfrastructureError(
            f"the vLLM worker ended (exit code {self._worker.returncode}): {last}; log: {self._log}"
        )
        error.add_note("\n".join(lines[-LOG_TAIL_LINES:]))
        return error


def _check_folder(folder: Path) -> None:
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not a checkpoint folder: it has no config.json")
    if (folder / "adapter_config.json").exists():
        raise UsageError(f"{folder} is an adapter (adapter_config.json): merge it into its base model first")


def _worker_environment(settings: Settings) -> dict[str, str]:
    available_gib = psutil.virtual_memory().available >> 30
    return {
        **{name: value for name, value in settings.environ.items() if name not in Settings.handed_over()},
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(min(max(available_gib // 4, 1), 8)),
        # OpenMP threads that spin at their barriers slow down twentyfold when another process wants the same cores.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
