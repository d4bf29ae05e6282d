"""The number of parameters of a model: from the headers of its files, or else from its name."""

import re
from math import prod
from pathlib import Path

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.checkpoint import tensors_of

IN_NAME = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z])", re.IGNORECASE)
"""The number of parameters in the name of a model, such as 7B or 0.5B."""


def parameters_in_name(model: str) -> int | None:
    """Returns the number of parameters that a model's name states; None if it states none."""
    named = IN_NAME.search(Path(model.partition("@")[0]).name)
    return None if named is None else round(float(named[1]) * (1e9 if named[2] in "Bb" else 1e6))


def parameters_in(folder: Path) -> int | None:
    """Returns the number of parameters in a folder's safetensors files, whose headers alone are read; None if there are
    none that can be read."""
    try:
        return sum(prod(tensor.shape) for tensor in tensors_of(folder).values()) or None
    except (OSError, InvalidSubmissionError):
        return None
