"""Loads a model of ours with transformers, on the CPU: no remote code, no pickles, no network.

Heavy: import it only in a process of its own.
"""

from pathlib import Path
from typing import Any

from a2rl.core.errors import InvalidSubmissionError


def load_model(folder: Path, dtype: str = "auto") -> Any:
    """Loads a model; quantised weights are dequantised where transformers can do that on a CPU.

    Args:
        dtype: The dtype; `auto`: the one in which it is stored.

    Raises:
        InvalidSubmissionError: The folder lacks weights.
    """
    model, missing = _load(folder, dtype=dtype)
    if missing:
        raise InvalidSubmissionError(f"it lacks weights that its class needs, such as {missing[0]}")
    return model


def missing_weights(folder: Path) -> list[str]:
    """Returns the names of weights that a model needs and its folder lacks. No weight is read."""
    return _load(folder, device_map="meta")[1]


def _load(folder: Path, **how: Any) -> tuple[Any, list[str]]:
    """Loads a model; returns it and the names of weights that its folder lacks."""
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    safe = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    model, loading = AutoModelForCausalLM.from_pretrained(folder, **safe, **how, output_loading_info=True)
    return model, sorted(loading["missing_keys"])


def load_tokenizer(folder: Path) -> Any:
    """Loads a tokenizer.

    Raises:
        InvalidSubmissionError: It knows no tokens, because its files are missing.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    if not tokenizer("a")["input_ids"]:
        raise InvalidSubmissionError("it has no tokenizer; save one next to the weights")
    return tokenizer
