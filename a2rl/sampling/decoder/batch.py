"""The conversations that have a row in the cache, and the passes of the model over them.

Rows are packed, the decoding ones first, so that every pass reads a slice of the cache.
"""

from bisect import bisect, insort
from collections import Counter
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from a2rl.sampling.decoder.conversation import Dialogue, common_prefix
from a2rl.sampling.decoder.kv_cache import CACHE_STEP, SlotCache, cache_bytes_per_token

PREFILL_SHARE = 0.25
"""Decoding pauses to read new prompts when this share of the rows waits for that."""
PREFILL_TOKENS = {"cpu": 4096, "cuda": 65536}
"""The most tokens, including padding, that one forward pass reads."""
SHORTEST = 64
"""Prompts that begin with fewer common tokens are read one by one."""

T = TypeVar("T")


class Batch(Generic[T]):
    """The rows in the cache, decoding ones first, and the queue of conversations that wait for a row."""

    def __init__(self, model: Any, memory_bytes: int, queue: list[Dialogue[T]], shares: bool) -> None:
        """Prepares a batch.

        Args:
            memory_bytes: Approximate limit of the key-value cache.
            queue: The conversations, each at the beginning of its first turn.
            shares: See `Decoder`.
        """
        self._model, self._shares = model, shares
        self._masks = AttentionMasks(model.config.get_text_config())
        self._device = torch.device(model.device)
        self._memory_tokens = memory_bytes // cache_bytes_per_token(model)
        self._cache = SlotCache(self._device, self._memory_tokens)
        # Sorted by length, which saves padding; the longest first, so that a lack of memory shows at once. Those that
        # begin alike come together, so that each finds the beginning in the cache.
        heads = Counter(map(_head, queue))
        shared = {head for head, count in heads.items() if count > 1 and shares}
        self.queue = sorted(queue, key=lambda each: (_head(each) if _head(each) in shared else (), len(each.tokens)))
        """The last element is the next one to get a row."""
        self._decoding: list[Dialogue[T]] = []
        self._waiting: list[Dialogue[T]] = []
        """Rows whose prompt has not been read yet."""

    @property
    def rows(self) -> list[Dialogue[T]]:
        """All conversations with a row."""
        return self._decoding + self._waiting

    @property
    def is_active(self) -> bool:
        """Whether a conversation waits for the model."""
        return bool(self.queue or self._decoding or self._waiting)

    def admit(self, max_rows: int) -> None:
        """Gives free rows to waiting conversations."""
        rows = self.rows
        longest = max((dialogue.longest for dialogue in rows), default=0)
        while self.queue and len(rows) < max_rows:
            longest = max(longest, self.queue[-1].longest)
            if rows and (len(rows) + 1) * longest > self._memory_tokens:
                break
            dialogue = self.queue.pop()
            dialogue.slot = len(rows)
            rows.append(dialogue)
            self._waiting.append(dialogue)
        self._cache.reserve_rows(len(rows))

    def forward(self) -> tuple[list[Dialogue[T]], torch.Tensor]:
        """Makes one pass over some rows; returns those rows and the logits [R, V] of their next tokens."""
        rows = len(self._decoding) + len(self._waiting)
        if self._waiting and (not self._decoding or len(self._waiting) >= PREFILL_SHARE * rows):
            if self._shares:
                self._share_beginnings()
            dialogues = self._readable_together()
            self._decoding += dialogues
            del self._waiting[: len(dialogues)]
        else:
            dialogues = list(self._decoding)
        return dialogues, self._read(dialogues)

    def end_turn(self, dialogue: Dialogue[T], alive: bool) -> None:
        """Takes a conversation out of decoding; it keeps its row if it is alive."""
        self._decoding.remove(dialogue)
        if alive:
            self._waiting.append(dialogue)

    def pack(self) -> None:
        """Moves rows so that the decoding ones come first and no slot is empty."""
        order = _packed([self._decoding, self._waiting])
        moved = [(dialogue, slot) for slot, dialogue in enumerate(order) if dialogue.slot != slot]
        slots = [(dialogue.slot, slot) for dialogue, slot in moved if dialogue.cached]
        self._cache.move(slots, max((dialogue.cached for dialogue, _ in moved), default=0))
        for dialogue, slot in moved:
            dialogue.slot = slot
        decoding = len(self._decoding)
        self._decoding, self._waiting = order[:decoding], order[decoding:]

    def evict(self) -> None:
        """Frees the cache; every row goes back to the queue and is read again from its tokens."""
        self._cache = SlotCache(self._device, self._memory_tokens)
        for dialogue in reversed(self.rows):
            dialogue.give_up_row()
            self.queue.append(dialogue)
        self._decoding, self._waiting = [], []

    def _share_beginnings(self) -> None:
        """Reads once what several waiting rows begin with, and copies it from row to row."""
        read = sorted((each.tokens[: each.cached], each.slot) for each in self.rows if each.cached)
        for place, dialogue in enumerate(self._waiting):
            self._take_over(dialogue, read)
            others = (other for other in self._waiting[place + 1 :] if _begin_alike(dialogue, other))
            common = max((common_prefix(dialogue.tokens[:-1], other.tokens[:-1]) for other in others), default=0)
            if common >= dialogue.cached + SHORTEST:
                self._read([dialogue], common)
                insort(read, (dialogue.tokens[:common], dialogue.slot))

    def _take_over(self, dialogue: Dialogue[T], read: Sequence[tuple[list[int], int]]) -> None:
        """Copies what a row begins with from another one, given the sorted tokens in each row, and its slot."""
        place = bisect(read, (dialogue.tokens, 0))
        # Among sorted texts, the neighbours have most in common with it. Its last token is read in any case.
        near = [(common_prefix(tokens, dialogue.tokens[:-1]), slot) for tokens, slot in read[max(0, place - 1) :][:2]]
        common, slot = max(near, default=(0, 0))
        if common >= dialogue.cached + SHORTEST:
            self._cache.move([(slot, dialogue.slot)], common)
            dialogue.cached = common

    def _readable_together(self) -> list[Dialogue[T]]:
        """Returns the first waiting rows that fit into one pass and have similar lengths."""
        limit, longest = PREFILL_TOKENS[self._device.type], 0
        dialogues: list[Dialogue[T]] = []
        for dialogue in self._waiting:
            pending = len(dialogue.tokens) - dialogue.cached
            longest = max(longest, pending)
            if dialogues and ((len(dialogues) + 1) * longest > limit or 2 * pending + CACHE_STEP < longest):
                break
            dialogues.append(dialogue)
        return dialogues

    def _read(self, dialogues: Sequence[Dialogue[T]], end: int | None = None) -> torch.Tensor:
        """Reads the tokens that are not in the cache yet, of a single row only up to `end`.

        Returns:
            The logits [R, V] after the last one of each row.
        """
        texts = [dialogue.tokens[:end] for dialogue in dialogues]
        width = max(len(text) - dialogue.cached for text, dialogue in zip(texts, dialogues, strict=True))
        self._cache.aim(dialogues[0].slot, max(map(len, texts)))
        input_RT = torch.zeros(len(dialogues), width, dtype=torch.long)
        position_RT = torch.zeros_like(input_RT)
        column_RT = torch.full_like(input_RT, self._cache.spare_column)
        for row, (text, dialogue) in enumerate(zip(texts, dialogues, strict=True)):
            new = slice(width - len(text) + dialogue.cached, None)
            input_RT[row, new] = torch.tensor(text[dialogue.cached :])
            position_RT[row, new] = column_RT[row, new] = torch.arange(dialogue.cached, len(text))
            dialogue.cached = len(text)
        self._cache.write_to(column_RT)
        position_RT = position_RT.to(self._device)
        logits: torch.Tensor = self._model(
            input_ids=input_RT.to(self._device),
            attention_mask=self._masks(position_RT, self._cache.used, self._model.dtype),
            position_ids=position_RT,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits[:, -1]


class AttentionMasks:
    """Causal attention masks; in sliding-window layers, a key is visible only for so many positions."""

    def __init__(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or [])
        self._window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds or not kinds else None
        self._by_kind = "sliding_attention" in kinds
        self._adds = config._attn_implementation == "eager"

    def __call__(self, query_RT: torch.Tensor, columns: int, dtype: torch.dtype) -> Any:
        """Returns the mask [R, 1, T, S] for a pass, or one mask for each kind of layer.

        Args:
            query_RT: The positions of the new tokens.
            columns: How many columns they attend to: S.
            dtype: The type of the model's numbers.
        """
        age_R1TS = query_RT[:, None, :, None] - torch.arange(columns, device=query_RT.device)
        full = self._form(age_R1TS >= 0, dtype)
        if self._window is None:
            return full
        sliding = self._form((age_R1TS >= 0) & (age_R1TS < self._window), dtype)
        return {"full_attention": full, "sliding_attention": sliding} if self._by_kind else sliding

    def _form(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Returns a mask of truth values, or one of numbers that are added to the scores."""
        if not self._adds:
            return mask
        return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def _head(dialogue: Dialogue[T]) -> tuple[int, ...]:
    return tuple(dialogue.tokens[:SHORTEST])


def _begin_alike(one: Dialogue[T], other: Dialogue[T]) -> bool:
    """Says whether what one row has to read next is worth being read for both."""
    end = one.cached + SHORTEST
    return len(other.tokens) > end and one.tokens[:end] == other.tokens[:end]


def _packed(groups: Sequence[list[Dialogue[T]]]) -> list[Dialogue[T]]:
    """Orders the rows so that each group fills the slots after the previous one, with as few moves as possible."""
    order: list[Dialogue[T] | None] = []
    for group in groups:
        slots = range(len(order), len(order) + len(group))
        staying = {dialogue.slot: dialogue for dialogue in group if dialogue.slot in slots}
        moving = iter([dialogue for dialogue in group if dialogue.slot not in slots])
        order += [staying.get(slot) or next(moving) for slot in slots]
    return [dialogue for dialogue in order if dialogue is not None]
