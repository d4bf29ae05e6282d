"""Generation with transformers, in process: CUDA in bfloat16 where there is a GPU, else CPU in float32.

It has its own decoding loop instead of `generate()`: rows leave the batch when they finish, stop strings are looked
for in the newest tokens only, and every prompt has its own random numbers. Names of tensors end in their axes:
R rows of the batch, T tokens, V vocabulary.

Numbers to the last bit depend on the shape of a batch. Outside `exact` mode, where two tokens tie within rounding, a
text may therefore differ with the batch size, sampled texts included; the random numbers behind them never do.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
from huggingface_hub.errors import StrictDataclassError
from jinja2 import TemplateError
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache
from transformers.utils import logging as transformers_logging

from a2rl.errors import InfrastructureError, UsageError
from a2rl.sampling import Completion, Prompt, SamplingParams

MAX_BATCH = {"cpu": 128, "cuda": 512}
FREE_MEMORY_SHARE = 0.4
"""Of the free memory, for the key-value cache; the rest is for activations and for the copy made when it grows."""

UNLOADABLE = (
    *(OSError, ValueError, KeyError, TypeError, AttributeError, ImportError),
    *(SafetensorError, StrictDataclassError),
)
"""What transformers raises for a folder that it cannot make sense of."""


@dataclass(frozen=True, slots=True)
class _Request:
    """One tokenized prompt and how many tokens may follow it in the model's context."""

    index: int
    prompt: list[int]
    max_new_tokens: int


@dataclass(slots=True)
class _Row:
    """A request in the batch: what it has generated so far, and its own random numbers."""

    request: _Request
    uniform: random.Random
    tokens: list[int] = field(default_factory=list)
    stopped: bool = False

    @property
    def finished(self) -> bool:
        return self.stopped or len(self.tokens) >= self.request.max_new_tokens


class TransformersSampler:
    """A checkpoint folder loaded with transformers; see `a2rl.sampling.Sampler` for the contract."""

    def __init__(self, model: Path, exact: bool) -> None:
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._exact = exact
        self._tokenizer, self._model = _load(model, self._device)
        config = self._model.config.get_text_config()
        self._context: int = config.max_position_embeddings
        self._cache_bytes_per_token = _cache_bytes_per_token(config, self._model.dtype.itemsize)
        self._vocabulary: int = config.vocab_size
        self._eos = _eos_tokens(self._model, self._tokenizer)

    @property
    def has_chat_template(self) -> bool:
        return bool(self._tokenizer.chat_template)

    def generate(self, prompts: Sequence[Prompt], params: SamplingParams) -> list[Completion]:
        requests = [self._request(index, prompt, params) for index, prompt in enumerate(prompts)]
        # Neighbours in length need little padding; the longest first, so that a lack of memory shows at once.
        waiting = sorted(requests, key=lambda request: -len(request.prompt))
        completions: dict[int, Completion] = {}
        size = self._batch_size(waiting)
        while waiting:
            rows = self._try_batch(waiting[:size], params)
            if rows is None:
                size = _halved(size)
                continue
            del waiting[:size]
            completions.update((row.request.index, self._completion(row, params)) for row in rows)
        return [completions[index] for index in range(len(prompts))]

    def close(self) -> None:
        self._model = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _request(self, index: int, prompt: Prompt, params: SamplingParams) -> _Request:
        """Tokenizes; of a prompt that is too long for the context the last part stays."""
        if isinstance(prompt, str):
            tokens = self._tokenizer(prompt)["input_ids"]
        else:
            tokens = self._tokenizer(self._render(prompt), add_special_tokens=False)["input_ids"]
        room = max(self._context - params.max_new_tokens, self._context // 2)
        tokens = tokens[-room:] or [min(self._eos, default=0)]
        return _Request(index, tokens, min(params.max_new_tokens, self._context - len(tokens)))

    def _render(self, chat: Prompt) -> str:
        if not self.has_chat_template:
            raise UsageError("the model's tokenizer has no chat template: give it one, or send plain text")
        messages = [
            {"role": message.role, "content": message.content} for message in chat if not isinstance(message, str)
        ]
        try:
            return str(self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except TemplateError as error:
            raise UsageError(f"the model's chat template refuses the chat: {error}") from error

    def _batch_size(self, longest_first: Sequence[_Request]) -> int:
        if self._exact or not longest_first:
            return 1
        if self._device.type == "cuda":
            free_bytes, _ = torch.cuda.mem_get_info(self._device)
        else:
            free_bytes = psutil.virtual_memory().available
        tokens = len(longest_first[0].prompt) + max(request.max_new_tokens for request in longest_first)
        # Logits exist as bfloat16 or float32, then as probabilities and their float64 sums.
        row_bytes = tokens * self._cache_bytes_per_token + self._vocabulary * 16
        return min(max(int(free_bytes * FREE_MEMORY_SHARE / row_bytes), 1), MAX_BATCH[self._device.type])

    def _try_batch(self, requests: Sequence[_Request], params: SamplingParams) -> list[_Row] | None:
        """None: the batch did not fit into memory."""
        rows = [_Row(request, random.Random(f"{params.seed}/{request.index}")) for request in requests]
        try:
            self._decode(rows, params)
        except RuntimeError as error:
            if not _is_out_of_memory(error):
                raise
            rows = []
        # After the except clause: the error holds the batch's tensors alive.
        if not rows:
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            return None
        return rows

    @torch.inference_mode()
    def _decode(self, rows: list[_Row], params: SamplingParams) -> None:
        """Fills the rows' tokens."""
        live = [row for row in rows if not row.finished]
        if not live:
            return
        input_RT, mask_RT = _left_padded([row.request.prompt for row in live], self._device)
        position_RT = (mask_RT.cumsum(-1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._model.config)
        while True:
            logits_RV = self._model(
                input_ids=input_RT,
                attention_mask=mask_RT,
                position_ids=position_RT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            token_R = _choose(logits_RV, live, params)
            for row, token in zip(live, token_R.tolist(), strict=True):
                row.tokens.append(token)
            self._mark_stopped(live, params.stop)
            kept = [position for position, row in enumerate(live) if not row.finished]
            if not kept:
                return
            position_RT = position_RT[:, -1:] + 1
            if len(kept) < len(live):
                live = [live[position] for position in kept]
                kept_R = torch.tensor(kept, device=self._device)
                cache.batch_select_indices(kept_R)
                token_R, mask_RT, position_RT = token_R[kept_R], mask_RT[kept_R], position_RT[kept_R]
            input_RT = token_R[:, None]
            mask_RT = torch.cat([mask_RT, mask_RT.new_ones(len(live), 1)], dim=-1)

    def _mark_stopped(self, rows: Sequence[_Row], stop: tuple[str, ...]) -> None:
        """Looks at the newest tokens only: a stop string of n bytes spans at most n tokens, and each step looks."""
        for row in rows:
            row.stopped = row.tokens[-1] in self._eos
        if stop:
            window = max(len(string.encode()) for string in stop) + 4
            tails = self._tokenizer.batch_decode([row.tokens[-window:] for row in rows], skip_special_tokens=True)
            for row, tail in zip(rows, tails, strict=True):
                row.stopped = row.stopped or any(string in tail for string in stop)

    def _completion(self, row: _Row, params: SamplingParams) -> Completion:
        # Decoded behind its prompt, because some tokenizers drop a leading space at the beginning of a text.
        before = self._text(row.request.prompt)
        text = self._text(row.request.prompt + row.tokens)[len(before) :]
        starts = [(text.find(string) + len(string), text.find(string)) for string in params.stop if string in text]
        # The one that ends first: what a reader of single characters, and vLLM, would stop at.
        _, end = min(starts, default=(0, len(text)))
        return Completion(
            text=text[:end],
            finish="stop" if row.stopped or starts else "length",
            prompt_tokens=len(row.request.prompt),
            tokens=len(row.tokens),
        )

    def _text(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def _load(folder: Path, device: torch.device) -> tuple[Any, Any]:
    """Tokenizer and model of a checkpoint folder, which may be hostile: no remote code, no pickles."""
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not a checkpoint folder: it has no config.json")
    if (folder / "adapter_config.json").exists():
        # transformers would follow its base_model_name_or_path and load whatever model it names.
        raise UsageError(f"{folder} is an adapter (adapter_config.json): merge it into its base model first")
    # Remote code and pickles are refused by name; a folder never sends us to the network.
    safe = {"local_files_only": True, "trust_remote_code": False}
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **safe)
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder, **safe, use_safetensors=True, dtype=dtype, output_loading_info=True
        )
    except UNLOADABLE as error:
        raise UsageError(f"{folder} cannot be loaded as a checkpoint: {_first_line(error)}") from error
    except RuntimeError as error:
        if _is_out_of_memory(error):
            raise InfrastructureError(f"not enough memory to load {folder}") from error
        raise UsageError(f"{folder} cannot be loaded as a checkpoint: {_first_line(error)}") from error
    if not tokenizer("a")["input_ids"]:
        # Without its files transformers makes a tokenizer that knows no tokens.
        raise UsageError(f"{folder} has no tokenizer: save the base model's tokenizer next to the weights")
    if loading["missing_keys"]:
        # transformers fills them with random numbers and only warns.
        raise UsageError(f"{folder} lacks weights: {', '.join(sorted(loading['missing_keys'])[:3])} ...")
    try:
        return tokenizer, model.to(device).eval()
    except torch.OutOfMemoryError as error:
        raise InfrastructureError(f"not enough GPU memory to load {folder}") from error


def _left_padded(prompts: Sequence[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and attention mask (1 real, 0 padding), both [R, T]. Padding is masked: any id will do for it."""
    longest = max(map(len, prompts))
    input_RT = torch.zeros(len(prompts), longest, dtype=torch.long)
    mask_RT = torch.zeros_like(input_RT)
    for row, prompt in enumerate(prompts):
        input_RT[row, longest - len(prompt) :] = torch.tensor(prompt)
        mask_RT[row, longest - len(prompt) :] = 1
    return input_RT.to(device), mask_RT.to(device)


def _choose(logits_RV: torch.Tensor, rows: Sequence[_Row], params: SamplingParams) -> torch.Tensor:
    """The next token of each row, [R]: the best one, or one drawn by the row's own uniform number."""
    if params.temperature == 0:
        return logits_RV.argmax(-1)
    probability_RV = (logits_RV.float() / params.temperature).softmax(-1)
    if params.top_p < 1:
        sorted_RV, order_RV = probability_RV.sort(-1, descending=True)
        beyond_RV = sorted_RV.cumsum(-1) - sorted_RV >= params.top_p
        probability_RV = torch.zeros_like(sorted_RV).scatter(-1, order_RV, sorted_RV.masked_fill(beyond_RV, 0))
    # Inverse of the distribution function over token ids: rounding in the logits moves its steps by as little.
    cumulative_RV = probability_RV.cumsum(-1, dtype=torch.float64)
    uniform_R1 = torch.tensor([[row.uniform.random()] for row in rows], dtype=torch.float64, device=logits_RV.device)
    drawn_R1 = torch.searchsorted(cumulative_RV, uniform_R1 * cumulative_RV[:, -1:], right=True)
    return drawn_R1.squeeze(-1).clamp(max=logits_RV.shape[-1] - 1)


def _cache_bytes_per_token(config: Any, value_bytes: int) -> int:
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head_size * value_bytes)


def _eos_tokens(model: Any, tokenizer: Any) -> set[int]:
    declared = model.generation_config.eos_token_id
    declared = declared if isinstance(declared, list) else [declared]
    return {token for token in [*declared, tokenizer.eos_token_id] if token is not None}


def _halved(size: int) -> int:
    if size == 1:
        raise InfrastructureError("not enough memory to generate even one text: use a smaller model or shorter texts")
    return size // 2


def _is_out_of_memory(error: RuntimeError) -> bool:
    # The CPU allocator raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
