"""Loads models with transformers, on the CPU. A folder may be hostile: no remote code, no pickles, no network."""

from pathlib import Path
from typing import Any

from a2rl.core.errors import InvalidSubmissionError, UsageError

SAFE = {"local_files_only": True, "trust_remote_code": False}


def check_folder(folder: Path) -> None:
    """Refuses what is no checkpoint by its files alone.

    Raises:
        UsageError: It has no config.json, or is an adapter.
    """
    if not (folder / "config.json").is_file():
        raise UsageError(f"{folder} is not a checkpoint folder: it has no config.json")
    if (folder / "adapter_config.json").exists():
        # transformers would follow its base_model_name_or_path and load whatever model it names.
        raise UsageError(f"{folder} is an adapter (adapter_config.json): merge it into its base model first")


def load_model(folder: Path, dtype: str = "auto") -> Any:
    """Loads a model; quantised weights are dequantised where transformers can do that on a CPU.

    Args:
        dtype: The dtype; `auto`: the one in which it is stored.

    Raises:
        InvalidSubmissionError: The folder lacks weights.
    """
    model, missing = _load(folder, dtype=dtype)
    if missing:  # they would be random
        raise InvalidSubmissionError(f"it lacks weights that its class needs, such as {missing[0]}")
    return model


def missing_weights(folder: Path) -> list[str]:
    """Returns the names of weights that a model needs and its folder lacks. No weight is read."""
    return _load(folder, device_map="meta")[1]


def _load(folder: Path, **how: Any) -> tuple[Any, list[str]]:
    """Loads a model; returns it and the names of weights that its folder lacks."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = AutoConfig.from_pretrained(folder, **SAFE)
    if config.get_text_config()._attn_implementation not in (None, "eager", "sdpa"):
        config._attn_implementation = None  # such as flash attention, which this machine may lack: the usual one
        how["config"] = config
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, **SAFE, use_safetensors=True, output_loading_info=True, **how
    )
    return model, sorted(loading["missing_keys"])


def load_tokenizer(folder: Path) -> Any:
    """Loads a tokenizer.

    Raises:
        InvalidSubmissionError: It knows no tokens, because its files are missing.
    """
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, **SAFE)
    if not tokenizer("a")["input_ids"]:
        raise InvalidSubmissionError("it has no tokenizer: save one next to the weights")
    return tokenizer
