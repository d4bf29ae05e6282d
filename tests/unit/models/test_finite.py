"""Tests which numbers count as finite, for every type that weights may have."""

import struct
from pathlib import Path

import pytest

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.checkpoint import Tensor
from a2rl.models.finite import require_finite

FORMATS = {"F64": "<d", "F32": "<f", "F16": "<e"}


def block(dtype: str, *values: float) -> bytes:
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return b"".join(struct.pack(FORMATS[dtype], value) for value in values)


def look(dtype: str, data: bytes) -> None:
    require_finite("w", Tensor(Path("x"), dtype, (len(data),), 0, len(data)), data)


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_found_among_others(dtype: str, value: float) -> None:
    look(dtype, block(dtype, 0.0, -1.5, 1e-7, 60000.0))
    with pytest.raises(InvalidSubmissionError, match=r"w has numbers that are not finite.*earlier checkpoint"):
        look(dtype, block(dtype, *[1.0] * 1000, value))


@pytest.mark.parametrize("dtype", ["F32", "F64"])
def test_a_number_that_only_a_wider_type_can_hold_is_found(dtype: str) -> None:
    look(dtype, block(dtype, 3.38e38, -3.38e38))
    for value in (3.40e38, -3.40e38):
        with pytest.raises(InvalidSubmissionError, match="too large for bfloat16"):
            look(dtype, block(dtype, value))


def test_the_limit_is_where_torch_rounds_to_infinity() -> None:
    import torch

    from a2rl.models.finite import LARGEST

    below = torch.tensor(LARGEST).nextafter(torch.tensor(0.0))
    assert torch.tensor(LARGEST).bfloat16().isinf()
    assert below.bfloat16().isfinite()
    look("F32", struct.pack("<f", below.item()))
    with pytest.raises(InvalidSubmissionError):
        look("F32", struct.pack("<f", LARGEST))


def test_quantised_weights_are_not_looked_at() -> None:
    look("U8", b"\xff" * 16)
