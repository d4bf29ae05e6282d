"""Finds weights that are not finite numbers, block by block, while the bytes are read for something else.

    digest = tensor_digest(name, tensor, look=require_finite)

A model computes in bfloat16 on a GPU, so a number must be finite there, too: float32 numbers close to the largest one,
and almost all that only float64 can hold, become infinite.
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.checkpoint import Tensor, blocks_of, tensors_of

LARGEST = float.fromhex("0x1.FFp127")
"""From here on, numbers are rounded to infinity in bfloat16. Its largest number is 0x1.FEp127."""


class Bits(NamedTuple):
    """How to recognise numbers that are not finite by their bits."""

    kind: str
    """The unsigned integer with as many bits."""
    without_sign: int
    too_large: int
    """The bits of the smallest positive number that is too large. The bits of infinity and NaN are larger still."""


BITS = {
    "BF16": Bits("<u2", 0x7FFF, 0x7F80),
    "F16": Bits("<u2", 0x7FFF, 0x7C00),
    "F32": Bits("<u4", 0x7FFFFFFF, int(np.float32(LARGEST).view(np.uint32))),
    "F64": Bits("<u8", 0x7FFFFFFFFFFFFFFF, int(np.float64(LARGEST).view(np.uint64))),
}


def require_finite(name: str, tensor: Tensor, block: bytes) -> None:
    """Refuses a block of a tensor if one of its numbers is not finite. Quantised types have no such numbers.

    Args:
        block: Some of its bytes, from the beginning of a number to the end of a number.

    Raises:
        InvalidSubmissionError: A number is NaN, infinite, or becomes infinite in bfloat16.
    """
    bits = BITS.get(tensor.dtype)
    if bits is not None and (np.frombuffer(block, bits.kind) & bits.without_sign >= bits.too_large).any():
        raise InvalidSubmissionError(
            f"{name[:200]} has numbers that are not finite (NaN, infinite, or too large for bfloat16); the training "
            "diverged: submit an earlier checkpoint, or train with a smaller learning rate"
        )


def require_finite_weights(folder: Path) -> None:
    """Refuses a checkpoint if one of its numbers is not finite: it would answer nothing, and score 0 without a reason.

    Raises:
        InvalidSubmissionError: A number is NaN, infinite, or becomes infinite in bfloat16.
    """
    for name, tensor in tensors_of(folder).items():
        for block in blocks_of(tensor):
            require_finite(name, tensor, block)
