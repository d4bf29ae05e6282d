"""The conversations that have a row in the cache, and the passes of the model over what is new in them."""

import math
from bisect import bisect, insort
from collections import Counter
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import torch

from a2rl.sampling.decoder.attention import Layout, NewTokens, attention_masks, laid_out
from a2rl.sampling.decoder.conversation import Dialogue, common_prefix
from a2rl.sampling.decoder.kv_cache import SlotCache, cache_bytes_per_token

MOST_NEW = {"cpu": 4096, "cuda": 16384}
"""The most tokens of prompts that one pass reads, unless a single prompt is longer."""
SHORTEST = 64
"""Prompts that begin with fewer common tokens are read one by one."""

T = TypeVar("T")


class Batch(Generic[T]):
    """The rows in the cache, and the queue of conversations that wait for a row."""

    def __init__(self, model: Any, memory_bytes: int, queue: list[Dialogue[T]], shares: bool) -> None:
        """Prepares a batch.

        Args:
            memory_bytes: Approximate limit of the key-value cache.
            queue: The conversations, each at the beginning of its first turn.
            shares: See `Decoder`.
        """
        self._model, self._shares = model, shares
        self._device = torch.device(model.device)
        self._memory_tokens = memory_bytes // cache_bytes_per_token(model)
        self._cache = SlotCache(self._device, self._memory_tokens)
        # The longest first, so that a lack of memory shows at once, and similar lengths together: rows with one new
        # token are padded to the longest of them. Those that begin alike come one after another, so that each finds the
        # beginning in the cache.
        heads = Counter(map(_head, queue))
        shared = {head for head, count in heads.items() if count > 1 and shares}
        self.queue = sorted(queue, key=lambda each: (_head(each) if _head(each) in shared else (), len(each.tokens)))
        """The last element is the next one to get a row."""
        self.rows: list[Dialogue[T]] = []
        """The conversations with a row, in the order of the cache."""
        self._beginnings: list[tuple[list[int], int, Dialogue[T]]] = []
        """What the rows began with when they were read, sorted."""
        rope = getattr(model.config.get_text_config(), "rope_parameters", None) or {}
        is_long_rope = rope.get("rope_type") == "longrope"
        self._near: float = rope["original_max_position_embeddings"] if is_long_rope else math.inf
        """The most tokens of a text that a model with longrope reads with its factors for short texts. The longest text
        of a pass decides for all, so the others, which are far, have passes of their own."""
        self._takes_far = True

    @property
    def is_active(self) -> bool:
        """Whether a conversation waits for the model."""
        return bool(self.queue or self.rows)

    @property
    def allocated(self) -> int:
        """How many rows the cache has room for."""
        return self._cache.rows

    def admit(self, max_rows: int) -> None:
        """Gives free rows to waiting conversations."""
        new = list[Dialogue[T]]()
        longest = max((dialogue.longest for dialogue in self.rows), default=0)
        while self.queue and len(self.rows) < max_rows:
            longest = max(longest, self.queue[-1].longest)
            if self.rows and (len(self.rows) + 1) * longest > self._memory_tokens:
                break
            dialogue = self.queue.pop()
            dialogue.slot = len(self.rows)
            self.rows.append(dialogue)
            new.append(dialogue)
        self._cache.reserve_rows(len(self.rows))
        if self._shares:
            self._share_beginnings(new)

    def forward(self) -> tuple[list[Dialogue[T]], torch.Tensor]:
        """Makes one pass over what is new in the rows; returns those rows and the logits [R, V] of their next tokens.

        Prompts that do not fit into this pass wait for the next one, and so do far rows if it is one of near rows.
        """
        for dialogue in self.rows:
            if dialogue.far != self._is_far(dialogue):
                dialogue.cached = 0
        self._takes_far = not self._takes_far
        side = [each for each in self.rows if self._is_far(each) == self._takes_far] or self.rows
        long, read = list[Dialogue[T]](), 0
        for dialogue in side:
            if dialogue.new > 1 and (not read or read + dialogue.new <= MOST_NEW[self._device.type]):
                long.append(dialogue)
                read += dialogue.new
        dialogues = [dialogue for dialogue in side if dialogue.new == 1] + long
        return dialogues, self._read(dialogues)

    def remove(self, dialogue: Dialogue[T]) -> None:
        """Frees the row of a conversation; the last one takes its place."""
        place, last = self.rows.index(dialogue), self.rows.pop()
        if last is not dialogue:
            self._cache.copy(last.slot, place, last.cached)
            last.slot, self.rows[place] = place, last
        self._beginnings = [each for each in self._beginnings if each[-1] is not dialogue]

    def evict(self) -> None:
        """Frees the cache; every row goes back to the queue and is read again from its tokens."""
        self._cache = SlotCache(self._device, self._memory_tokens)
        for dialogue in reversed(self.rows):
            dialogue.give_up_row()
            self.queue.append(dialogue)
        self.rows, self._beginnings = [], []

    def _is_far(self, dialogue: Dialogue[T]) -> bool:
        return len(dialogue.tokens) > self._near

    def _share_beginnings(self, new: Sequence[Dialogue[T]]) -> None:
        """Reads once what several new rows begin with, and copies it from row to row."""
        for place, dialogue in enumerate(new):
            self._take_over(dialogue)
            others = (other for other in new[place + 1 :] if _begin_alike(dialogue, other))
            common = max((common_prefix(dialogue.tokens[:-1], other.tokens[:-1]) for other in others), default=0)
            if common >= dialogue.cached + SHORTEST and (common > self._near) == self._is_far(dialogue):
                self._read([dialogue], common)
            insort(self._beginnings, (list(dialogue.tokens), dialogue.index, dialogue))

    def _take_over(self, dialogue: Dialogue[T]) -> None:
        """Copies what a row begins with from another one."""
        place = bisect(self._beginnings, (dialogue.tokens, dialogue.index))
        # Among sorted texts, the neighbours have most in common with it. Its last token is read in any case.
        next_to_it = [other for _, _, other in self._beginnings[max(0, place - 1) :][:2]]
        shared = [
            (common_prefix(other.tokens[: other.cached], dialogue.tokens[:-1]), other.slot)
            for other in next_to_it
            if other.far == self._is_far(dialogue)
        ]
        common, slot = max(shared, default=(0, 0))
        if common >= SHORTEST:
            self._cache.copy(slot, dialogue.slot, common)
            dialogue.cached, dialogue.far = common, self._is_far(dialogue)

    def _read(self, dialogues: Sequence[Dialogue[T]], end: int | None = None) -> torch.Tensor:
        """Reads the tokens that are not in the cache yet, of a single row only up to `end`.

        Returns:
            The logits [R, V] after the last one of each row.
        """
        rows, tokens = list[NewTokens](), list[int]()
        for dialogue in dialogues:
            new = dialogue.tokens[dialogue.cached : end]
            rows.append(NewTokens(dialogue.slot, len(tokens), len(new), dialogue.cached + len(new)))
            tokens += new
        position_N = torch.cat([torch.arange(row.length - row.number, row.length) for row in rows]).to(self._device)
        row_N = torch.tensor([row.slot for row in rows for _ in range(row.number)], device=self._device)
        self._cache.aim(row_N, position_N)
        age_NS = position_N[:, None] - torch.arange(self._cache.used, device=self._device)
        last_R = torch.tensor([row.first + row.number - 1 for row in rows], device=self._device)
        with laid_out(Layout.of(rows, self._device)):
            logits: torch.Tensor = self._model(
                input_ids=torch.tensor([tokens], device=self._device),
                attention_mask=attention_masks(self._model, age_NS >= 0, age_NS),
                position_ids=position_N[None],
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=last_R,
            ).logits
        for dialogue, row in zip(dialogues, rows, strict=True):
            dialogue.cached, dialogue.far = row.length, row.length > self._near
        return logits[0]


def _head(dialogue: Dialogue[T]) -> tuple[int, ...]:
    return tuple(dialogue.tokens[:SHORTEST])


def _begin_alike(one: Dialogue[T], other: Dialogue[T]) -> bool:
    """Says whether what one row has to read next is worth being read for both."""
    end = one.cached + SHORTEST
    return len(other.tokens) > end and one.tokens[:end] == other.tokens[:end]
