"""Attention masks, and attention to keys and values that lie in several pieces."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface

IN_PIECES = "a2rl_in_pieces"
MAX_SCORES = 1 << 25
"""The most scores that are held at a time where there is no fused kernel."""
NOWHERE = torch.iinfo(torch.long).max
"""The position of a column that a row does not have; no token sees it."""


class Piece(NamedTuple):
    """Keys or values of a shared prefix, for the rows of a pass that begin with it."""

    rows: torch.Tensor | slice
    columns: slice
    states: torch.Tensor
    """[H, S, D]."""


class Pieces(NamedTuple):
    """Keys or values of the rows of a pass: their own, and those that some of them share."""

    own: torch.Tensor
    """[R, H, S, D]."""
    shared: list[Piece]

    def joined(self, columns: int) -> torch.Tensor:
        """Returns all of them as one tensor [R, H, S, D] that begins with so many columns for the shared ones."""
        rows, heads, own, size = self.own.shape
        whole = self.own.new_zeros(rows, heads, columns + own, size)
        whole[:, :, columns:] = self.own
        for piece in self.shared:
            whole[piece.rows, :, piece.columns] = piece.states
        return whole


class AttentionMasks:
    """Causal attention masks; in sliding-window layers, a key is visible only for so many positions."""

    def __init__(self, config: Any) -> None:
        kinds = set(getattr(config, "layer_types", None) or [])
        self._window = getattr(config, "sliding_window", None) if "sliding_attention" in kinds or not kinds else None
        self._by_kind = "sliding_attention" in kinds
        self._eager = config._attn_implementation == "eager"

    def __call__(self, query_RT: torch.Tensor, key_RS: torch.Tensor, dtype: torch.dtype, shared: int | None) -> Any:
        """Returns the mask [R, 1, T, S] for a pass, or one mask for each kind of layer.

        Args:
            query_RT: The positions of the new tokens.
            key_RS: The positions of the columns that they attend to.
            dtype: The type of the model's numbers.
            shared: If the mask is for `attend_in_pieces`, how many of the columns, from the first, are shared ones. The
                mask lacks those where every token sees all that its row shares. It has only the last of the own columns
                where no token sees what comes before them.
        """
        full_RS = sliding_RS = key_RS
        if shared is not None:
            full_RS = key_RS[:, shared:]
            if self._window is None or int(query_RT.max()) < self._window:
                sliding_RS = full_RS
            elif (unseen := int((query_RT - full_RS[:, :1]).min()) - self._window + 1) > 0:
                sliding_RS = full_RS[:, unseen:]
        added = dtype if shared is not None or self._eager else None
        query_R1T1 = query_RT[:, None, :, None]
        full_R1TS = full_RS[:, None, None, :] <= query_R1T1
        if self._window is None:
            return _form(full_R1TS, added)
        age_R1TS = query_R1T1 - sliding_RS[:, None, None, :]
        sliding = _form((age_R1TS >= 0) & (age_R1TS < self._window), added)
        if not self._by_kind:
            return sliding
        return {"full_attention": _form(full_R1TS, added), "sliding_attention": sliding}


def _form(mask: torch.Tensor, added: torch.dtype | None) -> torch.Tensor:
    """Returns a mask of truth values, or one of numbers that are added to the scores."""
    if added is None:
        return mask
    return torch.zeros_like(mask, dtype=added).masked_fill(~mask, torch.finfo(added).min)


@contextmanager
def attention_in_pieces(config: Any) -> Iterator[None]:
    """Makes the layers of a model use `attend_in_pieces`."""
    AttentionInterface.register(IN_PIECES, attend_in_pieces)
    usual = config._attn_implementation
    config._attn_implementation = IN_PIECES
    try:
        yield
    finally:
        config._attn_implementation = usual


def attend_in_pieces(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: Pieces,
    value: Pieces,
    attention_mask: torch.Tensor,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention to pieces: all rows read the same copy of what they share, and it is never copied.

    Much of the time of decoding is spent on moving keys and values, and the queries of all rows are multiplied with the
    shared keys at once. So this is faster than joining them. A softmax over several pieces is a mean of the outputs of
    the pieces, weighted by their sums of exponentials (Milakov and Gimelshein 2018, arXiv 1805.02867).

    Args:
        module: The layer.
        query: [R, heads, T, D].
        key: The keys.
        value: The values.
        attention_mask: Numbers that are added to the scores [R, 1, T, S]; see `AttentionMasks`.
        scaling: The factor of the scores.

    Returns:
        The output [R, T, heads, D], and nothing for the weights.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    own, masked = key.own.shape[2], attention_mask.shape[-1]
    seen = slice(max(0, own - masked), None)
    output, norm = _attend(query, key.own[:, :, seen], value.own[:, :, seen], attention_mask[..., -own:], scaling)
    if masked < own:
        return output.transpose(1, 2), None
    output = output.float()
    for shared_key, shared_value in zip(key.shared, value.shared, strict=True):
        rows = shared_key.rows
        mask = attention_mask[rows, :, :, shared_key.columns] if masked > own else None
        more, more_norm = _attend_together(query[rows], shared_key.states, shared_value.states, mask, scaling)
        old_norm = norm[rows]
        both = torch.logaddexp(old_norm, more_norm)
        output[rows] = output[rows] * (old_norm - both).exp()[..., None] + more * (more_norm - both).exp()[..., None]
        norm[rows] = both
    return output.to(query.dtype).transpose(1, 2), None


def _attend_together(
    query: torch.Tensor, key_HSD: torch.Tensor, value_HSD: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `_attend` does where all rows have the same keys: one row with the tokens of all of them."""
    rows, heads, tokens, size = query.shape
    one = query.transpose(0, 1).reshape(1, heads, rows * tokens, size)
    if mask is not None:
        mask = mask.reshape(1, 1, rows * tokens, -1)
    output, norm = _attend(one, key_HSD[None], value_HSD[None], mask, scaling)
    return (
        output.view(heads, rows, tokens, -1).transpose(0, 1),
        norm.reshape(heads, rows, tokens).transpose(0, 1),
    )


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the output [R, heads, T, D], and the logarithm of the sum of the exponentials of the scores, in float32.

    Args:
        query: [R, heads, T, D].
        key: [R, H, S, D].
        value: [R, H, S, D].
        mask: Is added to the scores [R, 1, T, S].
        scaling: The factor of the scores.
    """
    if _has_kernel(query, value):
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        output, norm = kernel(query, key, value, attn_mask=mask, scale=scaling)
        return output, norm
    tokens = max(1, MAX_SCORES // (query.shape[0] * query.shape[1] * key.shape[2]))
    parts = [
        _attend_by_products(query[:, :, part] * scaling, key, value, None if mask is None else mask[:, :, part])
        for part in (slice(first, first + tokens) for first in range(0, query.shape[2], tokens))
    ]
    outputs, norms = zip(*parts, strict=True)
    return torch.cat(outputs, dim=2), torch.cat(norms, dim=2)


def _has_kernel(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether torch has a fused kernel that returns the sums too: the one behind its attention on CPUs has them."""
    return query.device.type == "cpu" and query.shape[-1] == value.shape[-1]


def _attend_by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns what `_attend` does, for scaled queries. The queries of a head of keys are G heads x T tokens."""
    rows, heads, tokens, size = query.shape
    # In float32: in float16 the scores of a piece that a token does not see at all would be infinite.
    score_RHGS = (query.reshape(rows, key.shape[1], -1, size) @ key.mT).float()
    if mask is not None:
        score_RHGS.view(rows, heads, tokens, -1).add_(mask)
    norm_RHG1 = score_RHGS.logsumexp(-1, keepdim=True)
    output_RHGD = (score_RHGS - norm_RHG1).exp().to(value.dtype) @ value
    return output_RHGD.view(rows, heads, tokens, -1), norm_RHG1.view(rows, heads, tokens)
