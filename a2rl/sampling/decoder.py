"""Continuous batching for a transformers causal model: many conversations at once over one key-value cache.

A conversation is a generator: it yields a `Turn` (tokens to continue), is sent what the model `Written`, and goes on
until it returns. Conversations of one turn are plain generation; those of many are episodes of an environment. Each is
a chain of its own: it waits for nobody, its random numbers are its own, and what it shares with its previous turn stays
in the cache. One that has to wait for something else than the model yields a `Future`, gives up its place in the cache,
and goes on when that is done. Rows of the cache are packed, the decoding ones first, so that every forward pass reads a
slice of it.

Only torch and transformers are needed: a task may hand this file to agents as it is.

Names of tensors end in their axes: R rows, H heads, T new tokens, S cached tokens, D head size, V vocabulary.
"""

import random
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from transformers.cache_utils import Cache

PREFILL_SHARE = 0.25
"""Share of the rows that may wait for their next prompt to be read before decoding pauses for it."""
PREFILL_TOKENS = {"cpu": 4096, "cuda": 65536}
"""Tokens, padding included, that one forward pass reads at most."""
CACHE_STEP = 256
"""The cache grows by this many tokens at least."""

T = TypeVar("T")


class Turn(NamedTuple):
    """What the model is to continue."""

    tokens: list[int]
    max_new_tokens: int


class Written(NamedTuple):
    """What the model wrote."""

    tokens: list[int]
    stopped: bool
    """By an end token or a stop string; False: the limit ended it."""
    logprobs: list[float]
    """Of the tokens under the distribution they were drawn from; empty for greedy decoding."""


Conversation = Generator[Turn | Future[Any], Written, T]
Stops = Callable[[Sequence[list[int]]], Sequence[bool]]
"""Which of the token lists, each one what a row has written so far, are complete."""


class OutOfMemory(Exception):
    """Not even one conversation fits into memory."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen. Temperature 0 is greedy."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    """Conversation i draws from (seed, i): what it writes does not depend on the others."""


@dataclass(slots=True, eq=False)
class _Chain(Generic[T]):
    """A conversation in work. `tokens` is the prompt of this turn and what was written after it."""

    index: int
    conversation: Conversation[T]
    uniform: random.Random
    tokens: list[int] = field(default_factory=list)
    prompt_length: int = 0
    limit: int = 0
    cached: int = 0
    """How many of `tokens`, from the first, are in the cache."""
    slot: int = -1
    stopped: bool = False
    logprobs: list[float] = field(default_factory=list)
    pending: Future[Any] | None = None
    """What it waits for, if that is not the model."""

    @property
    def written(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def longest(self) -> int:
        """Tokens at the end of this turn, at most."""
        return self.prompt_length + self.limit

    @property
    def turn_ended(self) -> bool:
        return self.stopped or len(self.tokens) - self.prompt_length >= self.limit

    def leave(self, pending: Future[Any]) -> None:
        self.pending, self.cached, self.slot = pending, 0, -1

    def begin(self, turn: Turn) -> None:
        self.cached = min(_common_prefix(self.tokens[: self.cached], turn.tokens), len(turn.tokens) - 1)
        self.tokens, self.prompt_length = list(turn.tokens), len(turn.tokens)
        self.limit, self.stopped, self.logprobs = turn.max_new_tokens, False, []


class Decoder:
    """Runs conversations on a model, as many at a time as memory takes."""

    def __init__(self, model: Any, eos: set[int], max_rows: int, memory_bytes: int) -> None:
        """Args:
        model: a causal model of transformers, in evaluation mode, with nothing that `strange_layers` names.
        eos: tokens that end a turn.
        max_rows: conversations in the batch at most.
        memory_bytes: what the key-value cache may take, about.
        """
        self._model = model
        self._eos = eos
        self._device = torch.device(model.device)
        self._max_rows = max_rows
        self._memory_bytes = memory_bytes
        self._masks = _Masks(model.config.get_text_config())

    @torch.inference_mode()
    def run(
        self,
        conversations: Sequence[Conversation[T]],
        decoding: Decoding,
        stops: Stops | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> list[T]:
        """What each conversation returns, in order.

        Raises:
            OutOfMemory: one row is too much.
        """
        results: dict[int, T] = {}
        away: list[_Chain[T]] = []
        batch: _Batch[T] = _Batch(self._model, self._masks, self._memory_bytes)

        def go_on(chain: _Chain[T], written: Written | None) -> bool:
            alive = self._go_on(chain, written, results, on_end)
            if chain.pending is not None:
                away.append(chain)
            return alive

        for index, conversation in enumerate(conversations):
            chain = _Chain(index, conversation, random.Random(f"{decoding.seed}/{index}"))
            if go_on(chain, None):
                batch.queue.append(chain)
        # Neighbours in length need little padding; the longest first, so that a lack of memory shows at once.
        batch.queue.sort(key=lambda chain: len(chain.tokens))
        while batch.in_work or away:
            for chain in _back(away, patiently=not batch.in_work):
                away.remove(chain)
                if go_on(chain, None):
                    batch.queue.append(chain)
            if batch.in_work:
                self._step(batch, decoding, stops, go_on)
        return [results[index] for index in range(len(conversations))]

    def _step(
        self,
        batch: "_Batch[T]",
        decoding: Decoding,
        stops: Stops | None,
        go_on: Callable[[_Chain[T], Written | None], bool],
    ) -> None:
        """One pass of the model, and what follows from it."""
        batch.admit(self._max_rows)
        try:
            chains, logits_RV = batch.forward()
            self._choose(chains, logits_RV, decoding)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            chains = []
        # After the except clause: the error holds the pass's tensors alive.
        if not chains:
            self._max_rows = self._halved(len(batch.rows))
            batch.evict()
            return
        self._mark_stopped(chains, stops)
        for chain in chains:
            if chain.turn_ended:
                batch.end_turn(chain, go_on(chain, Written(chain.written, chain.stopped, chain.logprobs)))
        batch.pack()

    def _go_on(
        self, chain: _Chain[T], written: Written | None, results: dict[int, T], on_end: Callable[[], None]
    ) -> bool:
        """The conversation's next turn; False: it has none yet, or has ended."""
        chain.pending = None
        try:
            turn = next(chain.conversation) if written is None else chain.conversation.send(written)
            while not isinstance(turn, Future) and turn.max_new_tokens < 1:
                turn = chain.conversation.send(Written([], False, []))
        except StopIteration as end:
            results[chain.index] = end.value
            on_end()
            return False
        if isinstance(turn, Future):
            chain.leave(turn)
            return False
        chain.begin(turn)
        return True

    def _choose(self, chains: Sequence[_Chain[T]], logits_RV: torch.Tensor, decoding: Decoding) -> None:
        """Adds the next token to each row: the best one, or one drawn by the row's own uniform number."""
        if decoding.temperature == 0:
            for chain, token in zip(chains, logits_RV.argmax(-1).tolist(), strict=True):
                chain.tokens.append(token)
            return
        logprob_RV = (logits_RV.float() / decoding.temperature).log_softmax(-1)
        uniforms = [chain.uniform.random() for chain in chains]
        token_R = _draw(logprob_RV.exp(), uniforms, decoding.top_p)
        drawn = logprob_RV.gather(-1, token_R[:, None]).squeeze(-1).tolist()
        for chain, token, logprob in zip(chains, token_R.tolist(), drawn, strict=True):
            chain.tokens.append(token)
            chain.logprobs.append(logprob)

    def _mark_stopped(self, chains: Sequence[_Chain[T]], stops: Stops | None) -> None:
        for chain in chains:
            chain.stopped = chain.tokens[-1] in self._eos
        if stops is not None:
            for chain, complete in zip(chains, stops([chain.written for chain in chains]), strict=True):
                chain.stopped = chain.stopped or complete

    def _halved(self, rows: int) -> int:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if rows == 1:
            raise OutOfMemory
        return rows // 2


def _back(away: Sequence[_Chain[T]], patiently: bool) -> list[_Chain[T]]:
    """Those that need not wait any longer; `patiently`: at least one of them, if there is any."""
    pending = [chain.pending for chain in away if chain.pending is not None]
    done = wait(pending, None if patiently else 0, FIRST_COMPLETED).done if pending else set()
    return [chain for chain in away if chain.pending in done]


class _Batch(Generic[T]):
    """The rows in the cache, the decoding ones first, and the conversations that wait for a row."""

    def __init__(self, model: Any, masks: "_Masks", memory_bytes: int) -> None:
        self._model, self._masks = model, masks
        self._device = torch.device(model.device)
        self._memory_tokens = memory_bytes // _cache_bytes_per_token(model)
        self._cache = _SlotCache(self._device, self._memory_tokens)
        self.queue: list[_Chain[T]] = []
        """Last one first."""
        self._decoding: list[_Chain[T]] = []
        self._waiting: list[_Chain[T]] = []
        """Rows whose prompt is not read yet."""

    @property
    def rows(self) -> list[_Chain[T]]:
        return self._decoding + self._waiting

    @property
    def in_work(self) -> bool:
        return bool(self.queue or self._decoding or self._waiting)

    def admit(self, max_rows: int) -> None:
        """Gives free rows to waiting conversations."""
        rows, longest = len(self.rows), max((chain.longest for chain in self.rows), default=0)
        while self.queue and rows < max_rows:
            longest = max(longest, self.queue[-1].longest)
            if rows and (rows + 1) * longest > self._memory_tokens:
                break
            chain = self.queue.pop()
            chain.slot = rows
            self._waiting.append(chain)
            rows += 1
        self._cache.reserve_rows(rows)

    def forward(self) -> tuple[list[_Chain[T]], torch.Tensor]:
        """One pass over some rows; they, and the logits [R, V] of their next tokens."""
        rows = len(self._decoding) + len(self._waiting)
        if self._waiting and (not self._decoding or len(self._waiting) >= PREFILL_SHARE * rows):
            chains = self._readable_together()
            self._decoding += chains
            del self._waiting[: len(chains)]
        else:
            chains = list(self._decoding)
        return chains, self._pass(chains)

    def end_turn(self, chain: _Chain[T], alive: bool) -> None:
        self._decoding.remove(chain)
        if alive:
            self._waiting.append(chain)

    def pack(self) -> None:
        """Moves rows so that the decoding ones come first and no slot is empty."""
        order = _packed([self._decoding, self._waiting])
        moved = [(chain, slot) for slot, chain in enumerate(order) if chain.slot != slot]
        columns = max((chain.cached for chain, _ in moved), default=0)
        self._cache.move([(chain.slot, slot) for chain, slot in moved if chain.cached], columns)
        for chain, slot in moved:
            chain.slot = slot
        decoding = len(self._decoding)
        self._decoding, self._waiting = order[:decoding], order[decoding:]

    def evict(self) -> None:
        """Frees the cache; every row starts again from its tokens, later."""
        self._cache = _SlotCache(self._device, self._memory_tokens)
        for chain in reversed(self.rows):
            chain.cached, chain.slot = 0, -1
            self.queue.append(chain)
        self._decoding, self._waiting = [], []

    def _readable_together(self) -> list[_Chain[T]]:
        """The first waiting rows, as many as one pass takes, of about one length."""
        limit, longest = PREFILL_TOKENS[self._device.type], 0
        chains: list[_Chain[T]] = []
        for chain in self._waiting:
            pending = len(chain.tokens) - chain.cached
            longest = max(longest, pending)
            if chains and ((len(chains) + 1) * longest > limit or 2 * pending + CACHE_STEP < longest):
                break
            chains.append(chain)
        return chains

    def _pass(self, chains: Sequence[_Chain[T]]) -> torch.Tensor:
        """Feeds what the rows' caches lack, the last token in the last column; logits [R, V] after it."""
        width = max(len(chain.tokens) - chain.cached for chain in chains)
        self._cache.aim(chains[0].slot, max(len(chain.tokens) for chain in chains))
        input_RT = torch.zeros(len(chains), width, dtype=torch.long)
        position_RT = torch.zeros_like(input_RT)
        column_RT = torch.full_like(input_RT, self._cache.spare_column)
        for row, chain in enumerate(chains):
            pending = len(chain.tokens) - chain.cached
            input_RT[row, width - pending :] = torch.tensor(chain.tokens[chain.cached :])
            position_RT[row, width - pending :] = torch.arange(chain.cached, len(chain.tokens))
            column_RT[row, width - pending :] = position_RT[row, width - pending :]
            chain.cached = len(chain.tokens)
        position_RT = position_RT.to(self._device)
        self._cache.column_RT = column_RT.to(self._device)
        logits: torch.Tensor = self._model(
            input_ids=input_RT.to(self._device),
            attention_mask=self._masks(position_RT, self._cache.used, self._model.dtype),
            position_ids=position_RT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1]


class _SlotCache(Cache):  # type: ignore[misc]
    """Keys and values [slots, H, capacity, D] of every layer. A pass reads and writes neighbouring slots."""

    def __init__(self, device: torch.device, memory_tokens: int) -> None:
        super().__init__(layers=[])
        self._device, self._memory_tokens = device, memory_tokens
        self._layers: list[list[torch.Tensor]] = []
        self._rows, self._capacity = 0, 0
        self._first = 0
        self.used = 0
        """Columns that this pass reads."""
        self.column_RT = torch.empty(0, 0, dtype=torch.long)
        """Where this pass writes."""

    @property
    def spare_column(self) -> int:
        """Padding is written here; nothing reads it."""
        return self._capacity - 1

    def reserve_rows(self, rows: int) -> None:
        if rows > self._rows:
            self._rows = rows
            self._resize()

    def aim(self, first: int, tokens: int) -> None:
        """The next pass is over the slots from `first`, the longest of which will hold so many tokens.

        Raises torch.OutOfMemoryError: more than one row, and together they would hold too many.
        """
        self._first, self.used = first, tokens
        if tokens + 1 > self._capacity:
            if self._rows > 1 and self._rows * tokens > 1.5 * self._memory_tokens:
                raise torch.OutOfMemoryError
            self._capacity = max(tokens + 1, self._capacity * 5 // 4) + CACHE_STEP
            self._resize()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Writes [R, H, T, D]; returns all that the rows hold, [R, H, S, D]."""
        if layer_idx == len(self._layers):
            self._layers.append([self._new(key_states), self._new(value_states)])
        rows, columns = slice(self._first, self._first + len(key_states)), self.column_RT
        row_R1 = torch.arange(len(key_states), device=columns.device)[:, None]
        held = []
        for stored, new in zip(self._layers[layer_idx], (key_states, value_states), strict=True):
            view = stored[rows]
            view[row_R1, :, columns] = new.transpose(1, 2)
            held.append(view[:, :, : self.used])
        return tuple(held)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.used

    def move(self, slots: Sequence[tuple[int, int]], columns: int) -> None:
        """Copies rows, (from, to), all at once, the first so many columns of them."""
        if not slots:
            return
        source, target = (torch.tensor(side, device=self._device) for side in zip(*slots, strict=True))
        for tensors in self._layers:
            for stored in tensors:
                view = stored[:, :, :columns]
                view[target] = view[source]

    def _new(self, like: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = like.shape
        return like.new_zeros(self._rows, heads, self._capacity, size)

    def _resize(self) -> None:
        for tensors in self._layers:
            for index, old in enumerate(tensors):
                rows, _, columns, _ = old.shape
                new = self._new(old)
                new[:rows, :, :columns] = old
                tensors[index] = new


def strange_layers(config: Any) -> set[str]:
    """Layers of a model whose state is no key-value cache: what this decoder cannot run."""
    if not getattr(config, "num_attention_heads", None) or not getattr(config, "max_position_embeddings", None):
        return {config.model_type}
    return set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}


class _Masks:
    """Who sees whom: a key is visible from its own position on, in sliding layers for so many positions."""

    def __init__(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or [])
        self._window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds or not kinds else None
        self._by_kind = "sliding_attention" in kinds
        self._eager = config._attn_implementation == "eager"

    def __call__(self, position_RT: torch.Tensor, used: int, dtype: torch.dtype) -> Any:
        key_S = torch.arange(used, device=position_RT.device)
        position_R1T1 = position_RT[:, None, :, None]
        full = key_S <= position_R1T1
        if self._window is None:
            return self._form(full, dtype)
        sliding = self._form(full & (key_S > position_R1T1 - self._window), dtype)
        if not self._by_kind:
            return sliding
        return {"full_attention": self._form(full, dtype), "sliding_attention": sliding}

    def _form(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        if not self._eager:
            return mask
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _packed(groups: Sequence[list[_Chain[T]]]) -> list[_Chain[T]]:
    """One order in which each group fills the slots after the one before it, with as few moves as can be."""
    order: list[_Chain[T] | None] = []
    for group in groups:
        slots = range(len(order), len(order) + len(group))
        staying = {chain.slot: chain for chain in group if chain.slot in slots}
        moving = iter([chain for chain in group if chain.slot not in slots])
        order += [staying.get(slot) or next(moving) for slot in slots]
    return [chain for chain in order if chain is not None]


def _common_prefix(left: list[int], right: list[int]) -> int:
    if left == right[: len(left)]:
        return len(left)
    return next(index for index, (a, b) in enumerate(zip([*left, -1], [*right, -2], strict=False)) if a != b)


def _cache_bytes_per_token(model: Any) -> int:
    config = model.config.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * config.num_hidden_layers * heads * head_size * model.dtype.itemsize)


def _draw(probability_RV: torch.Tensor, uniforms: Sequence[float], top_p: float) -> torch.Tensor:
    """One token per row, [R]: the inverse of the distribution function at the row's uniform number."""
    if top_p < 1:
        sorted_RV, order_RV = probability_RV.sort(-1, descending=True)
        beyond_RV = sorted_RV.cumsum(-1) - sorted_RV >= top_p
        probability_RV = torch.zeros_like(sorted_RV).scatter(-1, order_RV, sorted_RV.masked_fill(beyond_RV, 0))
    # Over token ids: rounding in the logits moves the steps of the function by as little.
    cumulative_RV = probability_RV.cumsum(-1, dtype=torch.float64)
    uniform_R1 = torch.tensor(uniforms, dtype=torch.float64, device=probability_RV.device)[:, None]
    drawn_R1 = torch.searchsorted(cumulative_RV, uniform_R1 * cumulative_RV[:, -1:], right=True)
    return drawn_R1.squeeze(-1).clamp(max=probability_RV.shape[-1] - 1)


def is_out_of_memory(error: RuntimeError) -> bool:
    # The CPU allocator raises a plain RuntimeError.
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
