"""Generation with transformers, in process: on a GPU, unless told otherwise in bfloat16, or a CPU, in float32.

It has its own decoding loop (`decoder`) instead of `generate()`: rows leave the batch when they finish and others take
their place, and an episode keeps its key-value cache from turn to turn.

Numbers to the last bit depend on the shape of a batch. Outside `exact` mode, where two tokens tie within rounding, a
text may therefore differ with the batch size, sampled texts included; the random numbers behind them never do.
"""

from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import torch
from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers.utils import logging as transformers_logging

from a2rl.core.cgroup_folders import free_memory
from a2rl.core.errors import InvalidSubmissionError, LackOfMemoryError, UsageError, first_line
from a2rl.sampling import NO_KWARGS, Completion, Conversation, OnEnd, Prompt, Sampler, SamplingParams, translated
from a2rl.sampling.decoder import (
    Decoder,
    Decoding,
    OutOfMemoryError,
    StopStrings,
    Turn,
    Written,
    end_tokens,
    is_out_of_memory,
    longest_prompt,
    prompt_tokens,
    told,
    unsupported_layers,
)
from a2rl.sampling.engine_params import Dtype
from a2rl.sampling.loading import check_folder, load_model, load_tokenizer

MAX_BATCH = {"cpu": 128, "cuda": 512}
FREE_MEMORY_SHARE = 0.4
"""Share of the free memory for the key-value cache; the rest is for activations and the copy made when it grows."""
DECODED_BEFORE = 16
"""So many tokens at the end of the prompt are decoded together with the completion."""

T = TypeVar("T")

UNLOADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, ImportError),
    *(SafetensorError, StrictDataclassError),
)
"""Errors that transformers raises for a folder that is not a valid checkpoint."""


class TransformersSampler(Sampler):
    """A checkpoint folder loaded with transformers; see `a2rl.sampling.Sampler` for the contract."""

    def __init__(
        self, model: Path, exact: bool, on_end: OnEnd, dtype: Dtype | None = None, sharing: bool = True
    ) -> None:
        transformers_logging.set_verbosity_error()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._exact = exact
        # In exact mode a text must not depend on what other prompts have in common with its own.
        self._shares = sharing and not exact
        self._on_end = on_end
        self._tokenizer, self._model = _load(model, self._device, dtype)
        config = self._model.config.get_text_config()
        if unsupported := unsupported_layers(config):
            layers = ", ".join(sorted(unsupported))
            raise UsageError(f"{model}: the transformers back end does not support {layers} layers: use vllm")
        self._context: int = config.max_position_embeddings
        self._eos = end_tokens(self._model, self._tokenizer)

    @property
    def has_chat_template(self) -> bool:
        """See `Sampler`."""
        return bool(self._tokenizer.chat_template)

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        """See `Sampler`."""
        return self._context - len(self._tokens(prompt, chat_template_kwargs))

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """See `Sampler`.

        Raises:
            LackOfMemoryError: There is not enough memory for even one text.
        """
        decoding = Decoding(params.temperature, params.top_p, params.top_k, params.seed)
        rows = 1 if self._exact else MAX_BATCH[self._device.type]
        try:
            memory_bytes = int(self._free_bytes() * FREE_MEMORY_SHARE)
            decoder = Decoder(self._model, self._eos, rows, memory_bytes, self._shares)
            stops = StopStrings(self._tokenizer, params.stop) if params.stop else None
            in_tokens = [self._in_tokens(conversation, params) for conversation in conversations]
            return decoder.run(in_tokens, decoding, stops, self._on_end)
        except OutOfMemoryError as error:
            raise LackOfMemoryError(
                "not enough memory to generate even one text: use a smaller model or shorter texts"
            ) from error

    def close(self) -> None:
        """Frees the model."""
        self._model = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _free_bytes(self) -> int:
        if self._device.type == "cuda":
            return int(torch.cuda.mem_get_info(self._device)[0])
        return free_memory()

    def _in_tokens(
        self, conversation: Conversation[T], params: SamplingParams
    ) -> Generator[Turn | Future[Any], Written, T]:
        """Translates a conversation from texts to tokens for the decoder."""

        def ask(prompt: Prompt) -> Generator[Turn, Written, Completion]:
            turn, is_cut = self._turn(prompt, params)
            written = yield turn
            return self._completion(turn, written, params, is_cut)

        return translated(conversation, ask)

    def _turn(self, prompt: Prompt, params: SamplingParams) -> tuple[Turn, bool]:
        """Makes a turn for the decoder; a prompt that is too long for the context loses its beginning, and is cut."""
        room = longest_prompt(self._context, params.max_new_tokens)
        whole = self._tokens(prompt, params.chat_template_kwargs) or [min(self._eos, default=0)]
        tokens = whole[-room:]
        return Turn(tokens, min(params.max_new_tokens, self._context - len(tokens))), len(tokens) < len(whole)

    def _tokens(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any]) -> list[int]:
        if isinstance(prompt, str):
            return prompt_tokens(self._tokenizer, prompt)
        if not self.has_chat_template:
            raise UsageError("the model's tokenizer has no chat template: give it one, or send plain text")
        chat = [{"role": message.role, "content": message.content} for message in prompt]
        try:
            return prompt_tokens(self._tokenizer, chat, chat_template_kwargs)
        except TemplateError as error:
            raise UsageError(f"the model's chat template refuses the chat: {error}") from error

    def _completion(self, turn: Turn, written: Written, params: SamplingParams, is_cut: bool = False) -> Completion:
        # Decoded behind the end of its prompt: some tokenizers drop a leading space at the beginning of a text.
        before = turn.tokens[-DECODED_BEFORE:]
        # Not every end token is special to the tokenizer.
        answer = written.tokens[:-1] if self._eos.intersection(written.tokens[-1:]) else written.tokens
        answer = told(self._tokenizer, answer)
        text = _text(self._tokenizer, before + answer)[len(_text(self._tokenizer, before)) :]
        completion = Completion(
            text=text,
            finish="stop" if written.stopped else "length",
            prompt_tokens=len(turn.tokens),
            tokens=len(written.tokens),
            is_cut=is_cut,
        )
        return completion.until(params.stop)


def _text(tokenizer: Any, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _load(folder: Path, device: torch.device, dtype: Dtype | None) -> tuple[Any, Any]:
    """Tokenizer and model of a checkpoint folder, which may be hostile."""
    check_folder(folder)
    try:
        tokenizer = load_tokenizer(folder)
        model = load_model(folder, dtype or ("bfloat16" if device.type == "cuda" else "float32"))
    except (InvalidSubmissionError, RuntimeError, *UNLOADABLE) as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise LackOfMemoryError(f"not enough memory to load {folder}") from error
        raise UsageError(f"{folder} cannot be loaded as a checkpoint: {first_line(error)}") from error
    try:
        return tokenizer, model.to(device).eval()
    except torch.OutOfMemoryError as error:
        raise LackOfMemoryError(f"not enough GPU memory to load {folder}") from error
