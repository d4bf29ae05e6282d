"""Converts a GGUF file into an ordinary checkpoint: `python -m a2rl.models.gguf_conversion FILE.gguf FOLDER`.

The conversion runs in a process of its own, which needs memory for the model and imports torch and transformers.
transformers reads the file (with the package gguf) but refuses to save a model that it read in this way, so the weights
are put into a plain model of the same configuration.

The weights are stored in bfloat16. That is the type in which such models are trained and published, and half the size
of float32, which every submission has to be. It rounds each weight by at most 0.4%, where the steps of a 4-bit
quantisation are about 7% of a block's largest weight. The same file always gives the same bytes: each weight is
computed on its own, in float32.
"""

import sys
from pathlib import Path
from typing import Any

from a2rl.models.caps import MAX_JSON_VALUES

SAID = ("split.count", "general.architecture", "tokenizer.ggml.model")


def unsuitable(gguf: Path) -> str:
    """Returns why transformers cannot make a checkpoint of a GGUF file, from what the file says of itself."""
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    class Reader(GGUFReader):
        """Believes no length: an array of more values than the file has would fill the memory."""

        values = 0

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            found = super()._get(offset, dtype, count, override_order)
            self.values += 1
            if len(found) < count or self.values > MAX_JSON_VALUES:
                raise ValueError("it has fewer values than it says, or too many")
            return found

    try:
        fields = Reader(gguf).fields
        parts, architecture, tokenizer = (fields[each].contents() if each in fields else None for each in SAID)
    except (ValueError, IndexError, KeyError, OSError, RecursionError) as error:
        return f"it is damaged, or no GGUF file ({error})"
    if isinstance(parts, int) and parts > 1:
        return f"it is one of {parts} parts: join them with `llama-gguf-split --merge FIRST_PART JOINED.gguf`"
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"}))
        return f"transformers cannot read the architecture {architecture} from GGUF, only {known}"
    if tokenizer is None:
        return "it has no tokenizer: get a file of the whole model"
    return ""


def convert(gguf: Path, folder: Path) -> None:
    """Writes config.json, generation_config.json, the weights as *.safetensors, the tokenizer and its chat template.

    Raises:
        SystemExit: The file cannot be converted; its text says why.
    """
    if reason := unsuitable(gguf):
        sys.exit(reason)
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    read, loading = AutoModelForCausalLM.from_pretrained(
        gguf.parent, gguf_file=gguf.name, dtype=torch.float32, output_loading_info=True
    )
    if missing := sorted(loading["missing_keys"]):  # they would be random
        sys.exit(f"it lacks weights, such as {missing[0]}: get a file of the whole model")
    model = AutoModelForCausalLM.from_config(_plain(read.config), dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = read.config.max_position_embeddings  # the file says it only of the model
    tokenizer.save_pretrained(folder)


def _plain(config: Any) -> Any:
    """Returns the configuration without what only the GGUF file needs."""
    fields = config.to_dict()
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        fields.pop(name, None)
    return type(config).from_dict(fields)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
