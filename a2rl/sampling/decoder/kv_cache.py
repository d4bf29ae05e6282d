"""The key-value cache of the decoder: rows of many conversations in one tensor per layer.

It is our own because the caches of transformers grow all rows together, and cannot copy, move or drop single ones.
"""

from collections.abc import Sequence
from typing import Any

import torch
from transformers.cache_utils import Cache

CACHE_STEP = 256
"""The cache grows by at least this many tokens."""


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values [slots, H, capacity, D] of every layer. A pass reads and writes consecutive slots."""

    def __init__(self, device: torch.device, memory_tokens: int) -> None:
        super().__init__(layers=[])
        self._device, self._memory_tokens = device, memory_tokens
        self._layers: list[list[torch.Tensor]] = []
        self._rows, self._capacity = 0, 0
        self._first = 0
        self.used = 0
        """The columns that this pass reads."""
        self._column_RT = torch.empty(0, 0, dtype=torch.long)
        self._place: dict[int, torch.Tensor] = {}
        """Where this pass writes, by the number of heads of a layer."""

    @property
    def spare_column(self) -> int:
        """The column where padding is written; it is never read."""
        return self._capacity - 1

    def reserve_rows(self, rows: int) -> None:
        """Makes room for at least so many rows."""
        if rows > self._rows:
            self._rows = rows
            self._resize()

    def aim(self, first: int, tokens: int) -> None:
        """Prepares the next pass.

        Args:
            tokens: How many tokens the longest row of the pass will hold.

        Raises:
            torch.OutOfMemoryError: There is more than one row, and together they would need too much memory.
        """
        self._first, self.used = first, tokens
        if tokens + 1 > self._capacity:
            if self._rows > 1 and self._rows * tokens > 1.5 * self._memory_tokens:
                raise torch.OutOfMemoryError
            self._capacity = max(tokens + 1, self._capacity * 5 // 4) + CACHE_STEP
            self._resize()

    def write_to(self, column_RT: torch.Tensor) -> None:
        """Says to which columns the next pass writes."""
        self._column_RT, self._place = column_RT.to(self._device), {}

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Writes new states [R, H, T, D]; returns views of all states of the rows, [R, H, S, D]."""
        states = (key_states, value_states)
        if layer_idx == len(self._layers):
            self._layers.append([self._new(each) for each in states])
        rows, heads = key_states.shape[:2]
        place = self._places(rows, heads)
        for stored, new in zip(self._layers[layer_idx], states, strict=True):
            stored.view(-1, stored.shape[-1]).index_copy_(0, place, new.reshape(-1, new.shape[-1]))
        return tuple(stored[self._first : self._first + rows, :, : self.used] for stored in self._layers[layer_idx])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns how many columns the current pass reads."""
        return self.used

    def move(self, slots: Sequence[tuple[int, int]], columns: int) -> None:
        """Copies rows, given as (from, to), simultaneously; only so many columns from the first."""
        if not slots:
            return
        source, target = (torch.tensor(side, device=self._device) for side in zip(*slots, strict=True))
        for tensors in self._layers:
            for stored in tensors:
                view = stored[:, :, :columns]
                view[target] = view[source]

    def _places(self, rows: int, heads: int) -> torch.Tensor:
        """Returns where the new states [R, H, T] of a pass belong among all states of a layer, as one list."""
        if heads not in self._place:
            head_RH = torch.arange(rows * heads, device=self._device).view(rows, heads) + self._first * heads
            self._place[heads] = (head_RH[:, :, None] * self._capacity + self._column_RT[:, None]).view(-1)
        return self._place[heads]

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


def unsupported_layers(config: Any) -> set[str]:
    """Returns the types of a model's layers whose state is not a key-value cache; the decoder cannot run them."""
    if not getattr(config, "num_attention_heads", None) or not getattr(config, "max_position_embeddings", None):
        return {config.model_type}
    return set(getattr(config, "layer_types", None) or []) - {"full_attention", "sliding_attention"}


def cache_bytes_per_token(model: Any) -> int:
    """Returns the size of the cache for one token of one row, in bytes."""
    states = 0
    for layer in model.config.get_text_config().per_layer_config:
        heads = getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads
        states += heads * (getattr(layer, "head_dim", None) or layer.hidden_size // layer.num_attention_heads)
    return int(2 * states * model.dtype.itemsize)
