"""The number of parameters of a model: from the headers of its files, or else from its name."""

import json
import re
from math import prod
from pathlib import Path

IN_NAME = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([BM])(?![A-Za-z])", re.IGNORECASE)
"""The number of parameters in the name of a model, such as 7B or 0.5B."""
MAX_HEADER = 100 << 20
"""The largest header of a safetensors file that is allowed by its format, in bytes."""


def parameters_in_name(model: str) -> int | None:
    """Returns the number of parameters that a model's name states; None if it states none."""
    named = IN_NAME.search(Path(model.partition("@")[0]).name)
    return None if named is None else round(float(named[1]) * (1e9 if named[2] in "Bb" else 1e6))


def parameters_in(folder: Path) -> int | None:
    """Returns the number of parameters in a folder's safetensors files, whose headers alone are read; None if there are
    none that can be read."""
    try:
        return sum(_parameters(path) for path in folder.glob("*.safetensors")) or None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _parameters(path: Path) -> int:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER:
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
    return sum(prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
