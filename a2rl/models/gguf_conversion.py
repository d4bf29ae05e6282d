"""Converts a GGUF file into an ordinary checkpoint: `python -m a2rl.models.gguf_conversion FILE.gguf FOLDER`.

The conversion runs in a process of its own, which needs memory for the model and imports torch and transformers.
transformers reads the file (with the package gguf) but refuses to save a model that it read in this way, so the weights
are put into a plain model of the same configuration.

The weights are stored in bfloat16. That is the type in which such models are trained and published, and half the size
of float32, which every submission has to be. It rounds each weight by at most 0.4%, where the steps of a 4-bit
quantisation are about 7% of a block's largest weight. The same file always gives the same bytes: each weight is
computed on its own, in float32.

transformers drops what it does not know without a word, such as how positions are scaled (rope scaling). Weights have
no meaning without it, so it is taken from the file here, or the file is refused.
"""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from a2rl.models.caps import MAX_JSON_VALUES

SAID = ("split.count", "general.architecture", "tokenizer.ggml.model")
SCALES = ("scaling.factor", "scale_linear")
"""The keys of `ARCHITECTURE.rope.` that say by how much positions are scaled: the second is that of older files."""
SCALED = "it scales positions (rope scaling), which transformers does not read from GGUF: use the model's *.safetensors"
CONTEXT = 8192
"""The context for which Llama 3 was trained before its positions were scaled."""


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
        file = Reader(gguf)
        parts, architecture, tokenizer = (_said(file, each) for each in SAID)
        scales = [_said(file, f"{architecture}.rope.{each}") for each in SCALES]
        if _said(file, f"{architecture}.rope.scaling.type") == "none":
            scales = []
    except (ValueError, IndexError, KeyError, OSError, RecursionError) as error:
        return f"it is damaged, or no GGUF file ({error})"
    if isinstance(parts, int) and parts > 1:
        return f"it is one of {parts} parts: join them with `llama-gguf-split --merge FIRST_PART JOINED.gguf`"
    if architecture not in GGUF_SUPPORTED_ARCHITECTURES:
        known = ", ".join(sorted(set(GGUF_SUPPORTED_ARCHITECTURES) - {"general", "tokenizer"}))
        return f"transformers cannot read the architecture {architecture} from GGUF, only {known}"
    if tokenizer is None:
        return "it has no tokenizer: get a file of the whole model"
    has_factors = any(tensor.name.startswith("rope_factors_") for tensor in file.tensors)
    if has_factors or any(scale not in (None, 0, 1) for scale in scales):
        return SCALED
    return ""


def _said(file: Any, key: str) -> Any:
    return file.fields[key].contents() if key in file.fields else None


def rope_of(gguf: Path, rope: dict[str, Any]) -> dict[str, Any]:
    """Returns how a file encodes positions, for config.json.

    Args:
        gguf: A file that is not unsuitable.
        rope: `rope_parameters` as transformers made them.

    Raises:
        SystemExit: There is no configuration for it.
    """
    from gguf import GGUFReader

    file = GGUFReader(gguf)
    architecture = _said(file, "general.architecture")
    rope = dict(rope)
    if (theta := _said(file, f"{architecture}.rope.freq_base")) is not None:
        rope["rope_theta"] = theta
    factors = next((tensor.data.tolist() for tensor in file.tensors if tensor.name == "rope_freqs.weight"), None)
    if factors is None or architecture == "gemma4":  # its factors say which part is encoded, as its configuration does
        return rope
    if (scaling := llama3_scaling(factors, rope["rope_theta"])) is None:
        sys.exit(SCALED)
    return rope | scaling


def llama3_scaling(factors: Sequence[float], theta: float) -> dict[str, Any] | None:
    """Returns the scaling of Llama 3.1 and later, if these are the factors by which it stretches the wavelengths."""
    most = max(factors)
    turns = [CONTEXT * theta ** (-number / len(factors)) / (2 * math.pi) for number in range(len(factors))]
    kept = [min(max((each - 1) / 3, 0), 1) for each in turns]  # none below one turn in the context, all from four on
    found = [factor * (1 - part + part * most) for factor, part in zip(factors, kept, strict=True)]
    if not 1 <= most < math.inf or not all(math.isclose(each, most, rel_tol=1e-3) for each in found):
        return None
    limits = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": CONTEXT}
    return {"rope_type": "llama3", "factor": most, **limits}


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
    model = AutoModelForCausalLM.from_config(_plain(read.config, gguf), dtype=torch.bfloat16)
    model.load_state_dict(read.state_dict())
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokenizer.model_max_length = read.config.max_position_embeddings  # the file says it only of the model
    tokenizer.save_pretrained(folder)


def _plain(config: Any, gguf: Path) -> Any:
    """Returns the configuration without what only the GGUF file needs, and with what transformers drops."""
    fields = config.to_dict()
    if rope := fields.get("rope_parameters"):
        whole = rope.get("full_attention")  # each kind of layer may have its own
        fields["rope_parameters"] = {**rope, "full_attention": rope_of(gguf, whole)} if whole else rope_of(gguf, rope)
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):
        fields.pop(name, None)
    return type(config).from_dict(fields)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
