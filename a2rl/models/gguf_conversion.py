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


def unsuitable(gguf: Path) -> str:
    """Returns why transformers cannot make a checkpoint of a GGUF file, from what the file says of itself."""
    from gguf import GGUFReader
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    try:
        fields = GGUFReader(gguf).fields
    except (ValueError, IndexError, KeyError, OSError) as error:
        return f"it is damaged, or no GGUF file ({error})"

    def said(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    if (parts := said("split.count")) and parts > 1:
        return f"it is one of {parts} parts: join them with `llama-gguf-split --merge FIRST_PART JOINED.gguf`"
    architecture = said("general.architecture")
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"}))
        return f"transformers cannot read the architecture {architecture} from GGUF, only {known}"
    if said("tokenizer.ggml.model") is None:
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
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
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
