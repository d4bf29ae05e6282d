"""Attention of many conversations in one pass of the model.

A pass has the new tokens of all conversations in one line, without padding: [1, N]. Everything in a model but attention
takes each token for itself. Attention takes the rows with one new token together, and each row with more of them alone.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

BY_ROWS = "by_rows"
"""The name of this attention in transformers, where it is followed by that of the one that it calls."""
TAKE_MASKS = ("eager", "sdpa")
"""Functions of transformers that take any mask, which those of flash attention do not."""
OWN_MASKS = {"doge"}
"""Types of models whose attention adds to its mask something of the shape of the keys."""


class NewTokens(NamedTuple):
    """The new tokens of a row in a pass."""

    slot: int
    """Its row in the cache."""
    first: int
    """The place of the first of them among all new tokens, N."""
    number: int
    length: int
    """How many columns of the cache the row has, with these."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the new tokens of a pass belong. Those that are alone in their rows come first."""

    single: int
    """How many are alone."""
    slots: slice
    """All rows between the first and the last of theirs, which one call reads."""
    within: torch.Tensor | None
    """Their rows within that slice, [single], unless they are just all of them."""
    columns: int
    """The most columns that one of their rows has."""
    long: Sequence[NewTokens]
    """The rows with several new tokens."""

    @classmethod
    def of(cls, rows: Sequence[NewTokens], device: torch.device) -> "Layout":
        """Returns the layout of a pass over some rows, those with one new token first."""
        single = [row for row in rows if row.number == 1]
        slots = [row.slot for row in single]
        first, end = min(slots, default=0), max(slots, default=-1) + 1
        within = None
        if slots != list(range(first, end)):
            within = torch.tensor([slot - first for slot in slots], device=device)
        columns = max((row.length for row in single), default=0)
        return cls(len(single), slice(first, end), within, columns, rows[len(single) :])


_layout: ContextVar[Layout] = ContextVar("layout")


@contextmanager
def laid_out(layout: Layout) -> Iterator[None]:
    """Says where the new tokens of the pass inside belong."""
    token = _layout.set(layout)
    try:
        yield
    finally:
        _layout.reset(token)


@contextmanager
def by_rows(model: Any) -> Iterator[bool]:
    """Lets a model attend by rows while the context is open.

    Yields:
        Whether it can. A model whose class has attention of its own, such as Falcon or GPT-J, cannot, and reads one row
        at a time.

    Raises:
        ValueError: The model has an attention that takes no masks, and cannot be given another one.
    """
    before = model.config._attn_implementation
    name = before if before in TAKE_MASKS else "sdpa" if model._supports_sdpa else "eager"
    model.set_attn_implementation(name if model.config.model_type in OWN_MASKS else f"{BY_ROWS}|{name}")
    try:
        if not (now := model.config._attn_implementation).endswith(TAKE_MASKS):
            raise ValueError(f"the decoder cannot use the attention {now!r}: load the model with 'eager' or 'sdpa'")
        yield now.startswith(BY_ROWS)
    finally:
        model.set_attn_implementation(before)


def _attend(name: str, module: Any, query_1GND: Any, keys: Any, values: Any, attention_mask: Any, **others: Any) -> Any:
    """The attention function that transformers calls, as described in `AttentionInterface`.

    Args:
        name: The function for one rectangle of rows.
        keys: All rows of the cache, [R, H, S, D], and so are the values.
        attention_mask: What each new token sees, [1, 1, N, S].
    """
    layout, parts = _layout.get(), list[torch.Tensor]()

    def attend(query: torch.Tensor, rows: slice, columns: int, seen: torch.Tensor) -> torch.Tensor:
        return rectangle(name, module, query, keys[rows, :, :columns], values[rows, :, :columns], seen, **others)

    if layout.single:
        query_RGD = query_1GND[0, :, : layout.single].transpose(0, 1)
        seen_RS = attention_mask[0, 0, : layout.single, : layout.columns]
        if layout.within is not None:
            rows = layout.slots.stop - layout.slots.start
            query_RGD = query_RGD.new_zeros(rows, *query_RGD.shape[1:]).index_copy(0, layout.within, query_RGD)
            seen_RS = seen_RS.new_zeros(rows, layout.columns).index_copy(0, layout.within, seen_RS)
        result = attend(query_RGD[:, :, None], layout.slots, layout.columns, seen_RS[:, None, None])[:, 0]
        parts.append(result if layout.within is None else result[layout.within])
    for row in layout.long:
        new = slice(row.first, row.first + row.number)
        seen = attention_mask[:, :, new, : row.length]
        parts.append(attend(query_1GND[:, :, new], slice(row.slot, row.slot + 1), row.length, seen)[0])
    return torch.cat(parts)[None], None


def rectangle(name: str, module: Any, query: Any, key: Any, value: Any, mask: Any, **others: Any) -> torch.Tensor:
    """Returns [R, T, G, D]: the attention of transformers with that name, or `eager` of the model's own file, where all
    rows have the same number of new tokens, T."""
    if name == "sdpa" and query.device.type == "cpu" and query.shape[2] > 1:
        # transformers copies the keys and values for each query head first, which takes longer than the attention.
        scale = others.get("scaling")
        return scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True).transpose(1, 2)
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
    function = AttentionInterface().get_interface(name, eager)
    result: torch.Tensor = function(module, query, key, value, mask, **others)[0]
    return result


for _name in TAKE_MASKS:
    AttentionInterface.register(f"{BY_ROWS}|{_name}", partial(_attend, _name))


def attention_masks(model: Any, seen: torch.Tensor, ages: torch.Tensor) -> Any:
    """Returns the mask [1, 1, N, S] as a model's attention takes it, or one for each kind of its layers.

    Args:
        model: The model.
        seen: [N, S]; which tokens each new token sees where there is no window.
        ages: [N, S]; by how many positions they are before it. In a layer with a window, it sees only the nearest.
    """
    config = model.config.get_text_config()

    def form(mask: torch.Tensor) -> torch.Tensor:
        if not config._attn_implementation.endswith("eager"):
            return mask[None, None]
        # This attention adds its mask to the scores.
        return torch.zeros_like(mask, dtype=model.dtype).masked_fill(~mask, torch.finfo(model.dtype).min)[None, None]

    kinds, window = getattr(config, "layer_types", None), getattr(config, "sliding_window", None)
    if not window or (kinds and "sliding_attention" not in kinds):
        return form(seen)
    near = form(seen & (ages < window))
    return {"full_attention": form(seen), "sliding_attention": near} if kinds else near
