"""Attention masks, and attention to keys and values that lie in several pieces."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from transformers import AttentionInterface

IN_PIECES = "a2rl_in_pieces"
MAX_SCORES = 1 << 25
"""The most scores that are computed at a time."""
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

    def __call__(self, query_RT: torch.Tensor, key_RS: torch.Tensor, dtype: torch.dtype, in_pieces: bool) -> Any:
        """Returns the mask for a pass, or one mask for each kind of layer.

        Args:
            query_RT: The positions of the new tokens.
            key_RS: The positions of the columns that they attend to.
            dtype: The type of the model's numbers.
            in_pieces: Whether the mask is for `attend_in_pieces`.
        """
        query_R1T1, key_R11S = query_RT[:, None, :, None], key_RS[:, None, None, :]
        added = dtype if in_pieces or self._eager else None
        full = key_R11S <= query_R1T1
        if self._window is None:
            return _form(full, added)
        sliding = _form(full & (key_R11S > query_R1T1 - self._window), added)
        if not self._by_kind:
            return sliding
        return {"full_attention": _form(full, added), "sliding_attention": sliding}


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

    Much of the time of decoding is spent on moving keys and values, and in reading, the queries of all rows are
    multiplied with the shared keys at once. So this is faster than joining them.

    Args:
        module: The layer.
        query: [R, heads, T, D].
        key: The keys.
        value: The values.
        attention_mask: Numbers that are added to the scores [R, 1, T, S]; the shared columns come first.
        scaling: The factor of the scores.

    Returns:
        The output [R, T, heads, D], and nothing for the weights.
    """
    query = query * (query.shape[-1] ** -0.5 if scaling is None else scaling)
    tokens = max(1, MAX_SCORES // (query.shape[0] * query.shape[1] * attention_mask.shape[-1]))
    parts = zip(torch.split(query, tokens, dim=2), torch.split(attention_mask, tokens, dim=2), strict=True)
    return torch.cat([_attend(part, key, value, mask) for part, mask in parts], dim=2).transpose(1, 2), None


def _attend(query: torch.Tensor, key: Pieces, value: Pieces, mask: torch.Tensor) -> torch.Tensor:
    """Returns the output [R, heads, T, D] for scaled queries. The queries of a head of keys are G heads x T tokens."""
    rows, heads, tokens, size = query.shape
    query_RHGD = query.reshape(rows, key.own.shape[1], -1, size)
    own = mask.shape[-1] - key.own.shape[2]
    score_RHGS = query_RHGD.new_zeros(*query_RHGD.shape[:3], mask.shape[-1])
    # In this order, since on CPUs the product of few queries with the transposed keys is three times slower.
    score_RHGS[..., own:] = (key.own @ query_RHGD.mT).mT
    for piece in key.shared:
        score_RHGS[piece.rows, :, :, piece.columns] = _times(query_RHGD[piece.rows], piece.states.mT)
    score_RHGS.view(rows, heads, tokens, -1).add_(mask)
    weight_RHGS = score_RHGS.softmax(-1)
    output_RHGD = weight_RHGS[..., own:] @ value.own
    for piece in value.shared:
        output_RHGD[piece.rows] += _times(weight_RHGS[piece.rows][..., piece.columns], piece.states)
    return output_RHGD.view(rows, heads, tokens, -1)


def _times(left_RHGX: torch.Tensor, right_HXY: torch.Tensor) -> torch.Tensor:
    """Multiplies each row [H, G, X] with the same [H, X, Y], in one product for each head."""
    rows, heads, group, inner = left_RHGX.shape
    product = left_RHGX.transpose(0, 1).reshape(heads, rows * group, inner) @ right_HXY
    return product.view(heads, rows, group, -1).transpose(0, 1)
