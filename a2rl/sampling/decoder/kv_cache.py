"""The key-value cache of the decoder: rows of many conversations in one tensor per layer.

It is our own because the caches of transformers grow all rows together, and cannot copy or drop single ones.
"""

from typing import Any

import torch
from transformers.cache_utils import Cache

CACHE_STEP = 256
"""The cache grows by at least this many tokens."""


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values [rows, H, capacity, D] of every layer."""

    def __init__(self, device: torch.device, memory_tokens: int) -> None:
        super().__init__(layers=[])
        self._device, self._memory_tokens = device, memory_tokens
        self._layers: list[list[torch.Tensor]] = []
        self._capacity = 0
        self.rows = 0
        """How many it has room for."""
        self.used = 0
        """The columns that this pass reads."""
        self._row_N = self._column_N = torch.empty(0, dtype=torch.long)
        """Where this pass writes."""

    def reserve_rows(self, rows: int) -> None:
        """Makes room for at least so many rows."""
        if rows > self.rows:
            self.rows = rows
            self._resize()

    def aim(self, row_N: torch.Tensor, column_N: torch.Tensor) -> None:
        """Says where the next pass writes its tokens.

        Raises:
            torch.OutOfMemoryError: There is more than one row, and together they would need too much memory.
        """
        self._row_N, self._column_N, self.used = row_N, column_N, int(column_N.max()) + 1
        if self.used > self._capacity:
            if self.rows > 1 and self.rows * self.used > 1.5 * self._memory_tokens:
                raise torch.OutOfMemoryError
            self._capacity = max(self.used, self._capacity * 5 // 4) + CACHE_STEP
            self._resize()

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        """Writes new states [1, H, N, D]; returns views of all states of all rows, [R, H, S, D]."""
        states = (key_states, value_states)
        if layer_idx == len(self._layers):
            self._layers.append([self._new(each) for each in states])
        for stored, new in zip(self._layers[layer_idx], states, strict=True):
            stored[self._row_N, :, self._column_N] = new[0].transpose(0, 1)
        return tuple(stored[:, :, : self.used] for stored in self._layers[layer_idx])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns how many columns the current pass reads."""
        return self.used

    def copy(self, source: int, target: int, columns: int) -> None:
        """Copies the first columns of a row to another one."""
        for tensors in self._layers:
            for stored in tensors:
                stored[target, :, :columns] = stored[source, :, :columns]

    def _new(self, like: torch.Tensor) -> torch.Tensor:
        _, heads, _, size = like.shape
        return like.new_zeros(self.rows, heads, self._capacity, size)

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
