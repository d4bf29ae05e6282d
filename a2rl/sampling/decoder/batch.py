"""The conversations that have a row in the cache, and the passes of the model over them.

Rows are packed, the decoding ones first, so that every pass reads a slice of the cache.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch

from a2rl.sampling.decoder.attention import NOWHERE, AttentionMasks, attention_in_pieces
from a2rl.sampling.decoder.conversation import Dialogue
from a2rl.sampling.decoder.kv_cache import CACHE_STEP, SlotCache, cache_bytes_per_token
from a2rl.sampling.decoder.prefixes import Prefix, Prefixes

PREFILL_SHARE = 0.25
"""Decoding pauses to read new prompts when this share of the rows waits for that."""
PREFILL_TOKENS = {"cpu": 4096, "cuda": 65536}
"""The most tokens, including padding, that one forward pass reads."""

T = TypeVar("T")


class Batch(Generic[T]):
    """The rows in the cache, decoding ones first, and the queue of conversations that wait for a row."""

    def __init__(self, model: Any, memory_bytes: int, queue: list[Dialogue[T]], shared_from: int | None) -> None:
        """Prepares a batch.

        Args:
            model: A causal model of transformers.
            memory_bytes: Approximate limit of the key-value cache.
            queue: The conversations, each at the beginning of its first turn.
            shared_from: See `Decoder`.
        """
        self._model, self._config = model, model.config.get_text_config()
        self._masks = AttentionMasks(self._config)
        # Attention of other kinds (with a cap or sinks, for example) is left to the model.
        self._can_attend_in_pieces = self._config._attn_implementation == "sdpa"
        self._device = torch.device(model.device)
        self._memory_tokens = memory_bytes // cache_bytes_per_token(model)
        self._cache = SlotCache(self._device, self._memory_tokens)
        self._prefixes = Prefixes([dialogue.tokens for dialogue in queue], shared_from)
        # Sorted by length, which saves padding; the longest first, so that a lack of memory shows at once. Those with
        # the same prefix come together, so that few prefixes are in use at a time.
        self.queue = sorted(queue, key=self._place)
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
        held = {prefix for dialogue in rows if dialogue.prefix for prefix in dialogue.prefix.chain}
        while self.queue and len(rows) < max_rows:
            dialogue = self.queue[-1]
            prefix = self._prefixes.of(dialogue.tokens)
            held_too = held.union(prefix.chain if prefix else ())
            own = dialogue.prompt_length + dialogue.limit - (prefix.end if prefix else 0)
            tokens = (len(rows) + 1) * max(longest, own) + sum(len(each.tokens) for each in held_too)
            if rows and tokens > self._memory_tokens:
                break
            self.queue.pop().take_row(len(rows), prefix)
            longest, held = max(longest, own), held_too
            rows.append(dialogue)
            self._waiting.append(dialogue)
        self._cache.reserve_rows(len(rows))
        self._drop_prefixes(held, self._memory_tokens - len(rows) * longest)

    def forward(self) -> tuple[list[Dialogue[T]], torch.Tensor]:
        """Makes one pass over some rows; returns those rows and the logits [R, V] of their next tokens."""
        rows = len(self._decoding) + len(self._waiting)
        if self._waiting and (not self._decoding or len(self._waiting) >= PREFILL_SHARE * rows):
            dialogues = self._readable_together()
            for dialogue in dialogues:
                self._read_prefix(dialogue.prefix)
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
        held = {dialogue: dialogue.cached - dialogue.start for dialogue, _ in moved}
        slots = [(dialogue.slot, slot) for dialogue, slot in moved if held[dialogue]]
        self._cache.move(slots, max(held.values(), default=0))
        for dialogue, slot in moved:
            dialogue.slot = slot
        decoding = len(self._decoding)
        self._decoding, self._waiting = order[:decoding], order[decoding:]

    def evict(self) -> None:
        """Frees the cache; every row goes back to the queue and is read again from its tokens."""
        self._cache = SlotCache(self._device, self._memory_tokens)
        self._drop_prefixes(set(), 0)
        for dialogue in reversed(self.rows):
            dialogue.give_up_row()
            self.queue.append(dialogue)
        self._decoding, self._waiting = [], []

    def _place(self, dialogue: Dialogue[T]) -> tuple[int, int]:
        prefix = self._prefixes.of(dialogue.tokens)
        return prefix.order if prefix else -1, len(dialogue.tokens)

    def _drop_prefixes(self, held: set[Prefix], room: int) -> None:
        """Frees the prefixes that no row uses if all that have been read take more tokens than there is room for."""
        read = [prefix for prefix in self._prefixes if prefix.layers]
        if sum(len(prefix.tokens) for prefix in read) > room:
            for prefix in set(read) - held:
                prefix.layers.clear()

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

    def _read_prefix(self, prefix: Prefix | None) -> None:
        """Reads a prefix and those that come before it, unless that has been done."""
        if prefix is None or prefix.layers:
            return
        self._read_prefix(prefix.parent)
        self._cache.aim_at(prefix)
        position_RT = torch.arange(prefix.start, prefix.end)[None]
        self._pass(torch.tensor([prefix.tokens]), position_RT, position_RT[:, :1])

    def _read(self, dialogues: Sequence[Dialogue[T]]) -> torch.Tensor:
        """Reads the tokens that are not in the cache yet; returns the logits [R, V] after the last one of each row."""
        width = max(len(dialogue.tokens) - dialogue.cached for dialogue in dialogues)
        self._cache.aim(dialogues[0].slot, max(len(dialogue.tokens) - dialogue.start for dialogue in dialogues))
        self._cache.shared = _shared(dialogues, self._device)
        self._cache.in_pieces = bool(self._cache.shared) and self._can_attend_in_pieces
        input_RT = torch.zeros(len(dialogues), width, dtype=torch.long)
        position_RT = torch.zeros_like(input_RT)
        column_RT = torch.full_like(input_RT, self._cache.spare_column)
        start_R1 = torch.tensor([[dialogue.start] for dialogue in dialogues])
        for row, dialogue in enumerate(dialogues):
            pending = len(dialogue.tokens) - dialogue.cached
            input_RT[row, width - pending :] = torch.tensor(dialogue.tokens[dialogue.cached :])
            position_RT[row, width - pending :] = torch.arange(dialogue.cached, len(dialogue.tokens))
            column_RT[row, width - pending :] = position_RT[row, width - pending :] - dialogue.start
            dialogue.cached = len(dialogue.tokens)
        self._cache.write_to(column_RT)
        return self._pass(input_RT, position_RT, start_R1)

    def _pass(self, input_RT: torch.Tensor, position_RT: torch.Tensor, start_R1: torch.Tensor) -> torch.Tensor:
        """Runs the model; returns the logits [R, V] after the last token of each row.

        Args:
            input_RT: The tokens.
            position_RT: Their positions.
            start_R1: The position of the first column in each own row.
        """
        position_RT = position_RT.to(self._device)
        shared, in_pieces = self._cache.shared_columns, self._cache.in_pieces
        key_RS = _key_positions(start_R1.to(self._device), shared, self._cache.used)
        with attention_in_pieces(self._config) if in_pieces else nullcontext():
            logits: torch.Tensor = self._model(
                input_ids=input_RT.to(self._device),
                attention_mask=self._masks(position_RT, key_RS, self._model.dtype, shared if in_pieces else None),
                position_ids=position_RT,
                past_key_values=self._cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits
        return logits[:, -1]


def _shared(dialogues: Sequence[Dialogue[T]], device: torch.device) -> list[tuple[Prefix, torch.Tensor | slice]]:
    """Returns the prefixes that rows of a pass begin with, each with its rows."""
    rows: dict[Prefix, list[int]] = {}
    for row, dialogue in enumerate(dialogues):
        for prefix in dialogue.prefix.chain if dialogue.prefix else ():
            rows.setdefault(prefix, []).append(row)
    return [
        (prefix, slice(None) if len(those) == len(dialogues) else torch.tensor(those, device=device))
        for prefix, those in rows.items()
    ]


def _key_positions(start_R1: torch.Tensor, shared: int, own: int) -> torch.Tensor:
    """Returns the positions [R, S] of the shared columns, as far as each row has them, and of the own ones."""
    shared_S = torch.arange(shared, device=start_R1.device)
    own_RS = start_R1 + torch.arange(own, device=start_R1.device)
    return torch.cat([torch.where(shared_S < start_R1, shared_S, NOWHERE), own_RS], dim=1)


def _packed(groups: Sequence[list[Dialogue[T]]]) -> list[Dialogue[T]]:
    """Orders the rows so that each group fills the slots after the previous one, with as few moves as possible."""
    order: list[Dialogue[T] | None] = []
    for group in groups:
        slots = range(len(order), len(order) + len(group))
        staying = {dialogue.slot: dialogue for dialogue in group if dialogue.slot in slots}
        moving = iter([dialogue for dialogue in group if dialogue.slot not in slots])
        order += [staying.get(slot) or next(moving) for slot in slots]
    return [dialogue for dialogue in order if dialogue is not None]
