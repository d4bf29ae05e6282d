"""Generation with vLLM: a worker process (`vllm_worker.py`) in its own environment, asked over JSON lines.

vLLM needs other versions of torch and transformers than the rest of the project, so it is never imported here.
`scripts/setup_environment.sh vllm` installs it into `.venv-vllm`; A2RL_VLLM_PYTHON names another
interpreter that has it.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from a2rl.core.errors import UsageError
from a2rl.sampling import NO_KWARGS, Completion, Conversation, OnEnd, Prompt, Sampler, SamplingParams
from a2rl.sampling.engine_params import Dtype, EngineMemory, VllmParams
from a2rl.sampling.loading import check_folder
from a2rl.sampling.vllm_conversations import Conversations
from a2rl.sampling.vllm_process import (
    CLOSE_TIMEOUT_S,
    EngineConnection,
    EngineLease,
    EngineLostError,
    EngineProcess,
    EngineStart,
    Json,
)

VERIFIED = "every weight in the engine was compared with the files"
T = TypeVar("T")


class VllmSampler(Sampler):
    """A checkpoint folder served by a vLLM worker; see `a2rl.sampling.Sampler` for the contract."""

    def __init__(
        self,
        model: Path,
        exact: bool,
        on_end: OnEnd,
        dtype: Dtype | None = None,
        params: VllmParams | None = None,
        lease: EngineLease | None = None,
        memory: EngineMemory | None = None,
    ) -> None:
        """Starts a worker, or takes a lent one, which then stays when the sampler is closed."""
        check_folder(model)
        self._on_end = on_end
        began = time.monotonic()
        self._own = None if lease else EngineProcess.start(model, exact, dtype, params, memory)
        self._connection = self._own.connection if self._own else _lent(lease)
        is_warm = lease is not None and lease.is_warm
        try:
            about = self._connection.load(model) if is_warm else self._receive()
        except BaseException:
            self.close()
            raise
        self._has_chat_template = bool(about["has_chat_template"])
        self._cache_tokens: int | None = about["cache_tokens"]
        why = VERIFIED if is_warm else lease.why if lease else "it is not kept"
        seconds = round(time.monotonic() - began, 3)
        self.engine_start = EngineStart(kind="warm" if is_warm else "cold", why=why, seconds=seconds)

    @property
    def has_chat_template(self) -> bool:
        """See `Sampler`."""
        return self._has_chat_template

    @property
    def worker_pid(self) -> int | None:
        """The process id of the sampler's own worker; None if it is lent."""
        return self._own.pid if self._own else None

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        """See `Sampler`."""
        self._send({"count": self._in_json(prompt), "chat_template_kwargs": dict(chat_template_kwargs)})
        return int(self._receive()["room"])

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """See `Sampler`.

        Raises:
            EngineLostError: The worker has died or is stuck.
        """
        work = Conversations(conversations, params.seed, self._cache_tokens, self._on_end)
        decoding = _decoding(params)
        in_work: set[int] = set()
        try:
            while True:
                for index, prompt, seed in work.asked():
                    request = {"id": index, "prompt": self._in_json(prompt), "seed": seed, **decoding}
                    in_work.add(index)
                    self._send(request)
                if in_work:
                    answer = self._receive()
                    in_work.remove(answer["id"])
                    completion = Completion(**answer["completion"]).until(params.stop)
                    work.answer(answer["id"], completion, answer["cached_tokens"])
                elif not work.wait_for_futures():
                    return work.results()
        except BaseException:
            if in_work:
                self.close()  # answers that are still to come would be taken for those of the next call
            raise

    def close(self) -> None:
        """Ends the sampler's own worker."""
        if self._own is not None:
            self._own.close()

    def _in_json(self, prompt: Prompt) -> Any:
        if isinstance(prompt, str):
            return prompt
        if not self._has_chat_template:
            raise UsageError("the model's tokenizer has no chat template: give it one, or send plain text")
        return [asdict(message) for message in prompt]

    def _send(self, request: Json) -> None:
        try:
            self._connection.send(request)
        except EngineLostError as lost:
            raise self._with_ending(lost) from lost

    def _receive(self) -> Json:
        try:
            return self._connection.receive()
        except EngineLostError as lost:
            raise self._with_ending(lost) from lost

    def _with_ending(self, lost: EngineLostError) -> EngineLostError:
        """Ends the sampler's own worker, and adds to the error how it ended."""
        if self._own is None:
            return lost
        ended = self._own.close(0 if lost.why else CLOSE_TIMEOUT_S)
        return self._connection.lost(lost.why, ended)


def engine_start_of(sampler: Sampler) -> EngineStart | None:
    """Returns how the engine of a sampler got its weights; None with another back end."""
    return sampler.engine_start if isinstance(sampler, VllmSampler) else None


def _decoding(params: SamplingParams) -> Json:
    return {
        "max_new_tokens": params.max_new_tokens,
        "stop": params.stop,
        "temperature": params.temperature,
        "top_p": params.top_p,
        "top_k": params.top_k,
        "chat_template_kwargs": dict(params.chat_template_kwargs),
    }


def _lent(lease: EngineLease | None) -> EngineConnection:
    assert lease is not None
    return lease.connection
