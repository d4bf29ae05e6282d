"""Reads parts of tensors from safetensors files as float32, without reading the rest of the file.

Nothing is deserialised except the header, which `a2rl.models.checkpoint` checks.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from a2rl.models.checkpoint import BYTES, Tensor

Matrix = NDArray[np.float32]
Places = NDArray[np.intp]
STORED_AS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def matrix_shape(tensor: Tensor) -> tuple[int, int]:
    """Returns rows and columns of a tensor; the matrices of experts and similar stacks lie one below the other."""
    if len(tensor.shape) < 2:
        return 1, math.prod(tensor.shape)
    return math.prod(tensor.shape[:-1]), tensor.shape[-1]


def is_readable(tensor: Tensor) -> bool:
    """Says whether the tensor has numbers that can be compared: it is not empty and not quantised."""
    return tensor.dtype in BYTES and math.prod(tensor.shape) > 0


def stored(tensor: Tensor) -> NDArray[Any]:
    """Maps a tensor's file into memory, as a matrix of the stored type; bfloat16 as integers."""
    return np.memmap(
        tensor.file, dtype=STORED_AS[tensor.dtype], mode="r", offset=tensor.start, shape=matrix_shape(tensor)
    )


def as_floats(values: NDArray[Any], dtype: str) -> Matrix:
    """Returns stored values as float32; numbers that float32 cannot hold and NaN become 0."""
    if dtype == "BF16":
        floats: Matrix = (values.astype(np.uint32) << 16).view(np.float32)
    else:
        with np.errstate(over="ignore"):
            floats = np.asarray(values, dtype=np.float32)
    return np.nan_to_num(floats, copy=False, nan=0.0, posinf=0.0, neginf=0.0)


def read_rows(tensor: Tensor, rows: Places) -> Matrix:
    """Returns some rows of a tensor. Only their bytes are read."""
    return as_floats(np.asarray(stored(tensor)[rows]), tensor.dtype)


def read_columns(tensor: Tensor, columns: Places) -> Matrix:
    """Returns some columns of a tensor: every row of it, but only these places in each."""
    return as_floats(np.asarray(stored(tensor)[:, columns]), tensor.dtype)
