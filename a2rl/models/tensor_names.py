"""Finds the base model's tensors among those of a checkpoint, whatever tool saved it.

Wrappers leave prefixes (`module.` of DistributedDataParallel and DeepSpeed, `_orig_mod.` of torch.compile,
`_fsdp_wrapped_module.` of FSDP), a model saved without its head lacks `model.`, older versions saved buffers that are
computed again at each start, a head that is tied to the embedding may be stored or not, and all experts of a layer may
be one tensor.
"""

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from a2rl.core.errors import InvalidSubmissionError
from a2rl.models.checkpoint import BYTES, Tensor

WRAPPERS = frozenset({"module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"})
"""Parts of names that only wrappers add: no module of a model has such a name."""
BUFFERS = re.compile(r"(^|\.)(rotary_emb\.(original_)?inv_freq|rotary_emb\.(cos|sin)_cached|position_ids|masked_bias)$")
"""Names of buffers that are no weights: a model computes them when it is loaded."""
CAUSAL_MASK = re.compile(r"(^|\.)attn\.bias$")
HEAD = re.compile(r"(^|\.)(lm_head|embed_out)\.weight$")
EMBEDDING = re.compile(r"(^|\.)(embed_tokens|embed_in|wte|word_embeddings|tok_embeddings)\.weight$")
STACKED = {
    "gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")),
    "up_proj": (("up_proj",),),
    "down_proj": (("down_proj",), ("w2",)),
}
"""The weights of one expert that are behind one another in a tensor of all experts; models name them in two ways."""
MXFP4 = ("_blocks", "_scales")
MXFP4_VALUES_PER_BYTE = 2
SHOWN_CHARS = 200
ARCHITECTURE_RECIPE = "submit the base model's architecture, saved with save_pretrained"
RECIPES = {
    "lora_": "merge the adapter before saving (model = model.merge_and_unload())",
    "base_layer": "merge the adapter before saving (model = model.merge_and_unload())",
    "v_head": "save the policy without its value head (model.pretrained_model.save_pretrained(path))",
    "score.weight": "submit the language model, not the reward model",
}


class Weights(NamedTuple):
    """The tensors of a checkpoint that count, under the base model's names."""

    tensors: dict[str, Tensor]
    head: str | None
    """The name of a head in `tensors` that is tied to the embedding, so that it is needed only to be compared."""
    embedding: str | None


def is_buffer(name: str, tensor: Tensor) -> bool:
    """Says whether a tensor is a buffer that is computed when a model is loaded."""
    return bool(BUFFERS.search(name)) or bool(CAUSAL_MASK.search(name) and len(tensor.shape) == 4)


def find_head(names: Iterable[str]) -> str | None:
    """Returns the name of the output layer's weights; None if they are not stored."""
    return next((name for name in names if HEAD.search(name)), None)


def find_embedding(names: Iterable[str]) -> str | None:
    """Returns the name of the input embedding's weights; None if there are none."""
    return next((name for name in names if EMBEDDING.search(name)), None)


def find_weights(submitted: Mapping[str, Tensor], base: Mapping[str, Tensor], tied: bool | None = None) -> Weights:
    """Finds the base model's tensors in a checkpoint.

    Args:
        tied: Whether the base model's head is tied to its embedding; None: if it stores no head.

    Raises:
        InvalidSubmissionError: Tensors are missing, foreign, or of another shape or type.
    """
    refuse_placeholders(submitted)
    weights = {name: tensor for name, tensor in base.items() if not is_buffer(name, tensor)}
    stored_head, embedding = find_head(weights), find_embedding(weights)
    if embedding is None:
        tied = False
    is_tied = stored_head is None if tied is None else tied
    if is_tied and stored_head is not None:
        del weights[stored_head]
    found = _taken_apart(_unwrapped(submitted), weights)
    if is_tied and embedding and find_embedding(found) is None and (only := find_head(found)):
        found[embedding] = found.pop(only)  # safetensors.torch.save_model keeps only this name of the two
    found = _renamed(found, weights)
    required = _unpacked(found, weights)
    head = next((name for name in found if name not in required and HEAD.search(name)), None) if is_tied else None
    _check_names(found, required, head)
    _check_shapes(found, required, base)
    if head and embedding and found[head].shape != found[embedding].shape:
        raise InvalidSubmissionError(f"{head} and {embedding} have different shapes, although the base model ties them")
    return Weights(found, head, embedding)


def _unwrapped(submitted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Removes wrappers' parts from names, and buffers."""
    found: dict[str, Tensor] = {}
    for name, tensor in submitted.items():
        plain = ".".join(part for part in name.split(".") if part not in WRAPPERS)
        if plain in found:
            raise InvalidSubmissionError(
                f"{plain[:SHOWN_CHARS]} is stored twice, under names of different wrappers; save the model again with "
                "save_pretrained"
            )
        if not is_buffer(plain, tensor):
            found[plain] = tensor
    return found


def _taken_apart(submitted: dict[str, Tensor], required: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Takes apart the tensors that hold all experts of a layer, unless that gives a name a second time.

    Files of mixtures have tensors for each expert, which transformers puts behind one another when it loads them. Tools
    that save the state of a module (FSDP, DeepSpeed, torch.compile) leave them so.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in submitted.items():
        parts = {} if name in required else _experts(name, tensor, required)
        found |= parts if parts and not parts.keys() & (submitted.keys() | found.keys()) else {name: tensor}
    return found


def _experts(name: str, tensor: Tensor, required: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of single experts in one that holds all of a layer; none if it is no such tensor."""
    layer, _, kind = name.rpartition(".")
    if kind not in STACKED or tensor.dtype not in BYTES or len(tensor.shape) != 3:
        return {}
    experts, rows, columns = tensor.shape
    last = f"{layer}.{experts - 1}"  # the base model has to have it, which limits their number
    kinds = next((each for each in STACKED[kind] if f"{last}.{each[0]}.weight" in required), ())
    if not kinds or rows % len(kinds):
        return {}
    names = [f"{layer}.{expert}.{each}.weight" for expert in range(experts) for each in kinds]
    part = replace(tensor, shape=(rows // len(kinds), columns), size=tensor.size // len(names))
    return {each: replace(part, start=tensor.start + place * part.size) for place, each in enumerate(names)}


def _renamed(submitted: dict[str, Tensor], required: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Removes or adds the leading parts that all names have in common, if only then all required tensors are there."""
    required = {name: tensor for name, tensor in required.items() if not name.endswith(MXFP4)}
    if required.keys() <= submitted.keys():
        return submitted
    heads = {name for name in submitted if HEAD.search(name)}
    for added, removed in _prefixes(submitted.keys() - heads, required):
        renamed = {
            name if name in heads and name in required else added + name.removeprefix(removed): tensor
            for name, tensor in submitted.items()
        }
        if len(renamed) == len(submitted) and required.keys() <= renamed.keys():
            return renamed
    return submitted


def _prefixes(submitted: Collection[str], required: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yields pairs of a prefix to add and one to remove."""
    for prefix in _common_prefixes(submitted):
        yield "", prefix
    for prefix in _common_prefixes([name for name in required if not HEAD.search(name)]):
        yield prefix, ""


def _common_prefixes(names: Collection[str]) -> Iterator[str]:
    """Yields the prefixes that all names have in common, such as `a.` and `a.b.`."""
    if not names:
        return
    first, last = min(names).split("."), max(names).split(".")
    common = next((place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), 0)
    for count in range(1, common + 1):
        yield ".".join(first[:count]) + "."


def _unpacked(found: dict[str, Tensor], required: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """Returns the required tensors in the shapes of training, if the base model stores its experts in MXFP4 and the
    checkpoint does not.

    MXFP4 has two tensors: `_blocks` (experts, rows, blocks, 16 bytes with two values each) and `_scales`. Trained
    weights are one tensor (experts, columns, rows). Some versions of transformers save that one as `_blocks`, without
    scales; here it gets its own name again.
    """
    blocks = MXFP4[0]
    packed = [name.removesuffix(blocks) for name in required if name.endswith(blocks)]
    if not packed or any(name.endswith(MXFP4) and tensor.dtype not in BYTES for name, tensor in found.items()):
        return required
    rest = {name: tensor for name, tensor in required.items() if not name.endswith(MXFP4)}
    for name in packed:
        experts, rows, *inner = required[name + blocks].shape
        shape = (experts, math.prod(inner) * MXFP4_VALUES_PER_BYTE, rows)
        rest[name] = replace(required[name + blocks], shape=shape, dtype="BF16")
        if name not in found and name + blocks in found:
            found[name] = found.pop(name + blocks)
    return rest


def _check_names(found: Mapping[str, Tensor], required: Mapping[str, Tensor], head: str | None) -> None:
    if extra := sorted(found.keys() - required.keys() - {head}):
        recipe = next((recipe for part, recipe in RECIPES.items() if any(part in name for name in extra)), None)
        raise InvalidSubmissionError(
            f"{len(extra)} weights are not in the base model, such as {extra[0][:SHOWN_CHARS]}; "
            f"{recipe or ARCHITECTURE_RECIPE}"
        )
    if missing := sorted(required.keys() - found.keys()):
        raise InvalidSubmissionError(
            f"{len(missing)} weights of the base model are missing, such as {missing[0]}; submit the full model"
        )


def resize_recipe(base: Mapping[str, Tensor]) -> str:
    """Returns how to give a model the base model's vocabulary again."""
    embedding = find_embedding(base) or find_head(base)
    rows = base[embedding].shape[0] if embedding else "the base model's number"
    return f"cut off new rows: model.resize_token_embeddings({rows}); model.save_pretrained(path)"


def refuse_placeholders(submitted: Mapping[str, Tensor]) -> None:
    """Refuses tensors of which a dimension is zero: no model has them."""
    if empty := sorted(name for name, tensor in submitted.items() if 0 in tensor.shape):
        raise InvalidSubmissionError(
            f"{len(empty)} weights have no numbers, such as {empty[0][:SHOWN_CHARS]}: ZeRO-3 leaves such placeholders "
            "when a model is saved without gathering its parameters; make the checkpoint whole with the script that "
            "DeepSpeed puts beside it (python zero_to_fp32.py . out --safe_serialization), or save again with "
            '"stage3_gather_16bit_weights_on_model_save": true in its configuration'
        )


def _check_shapes(found: Mapping[str, Tensor], required: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
    for name, tensor in found.items():
        if name in required and tensor.shape != required[name].shape:
            is_vocabulary = EMBEDDING.search(name) or HEAD.search(name)
            if is_vocabulary and tensor.shape[1:] == required[name].shape[1:]:
                raise InvalidSubmissionError(
                    f"{name} has {tensor.shape[0]} rows, the base model's {required[name].shape[0]}: the vocabulary "
                    f"was resized, but the grader uses the base model's tokenizer; {resize_recipe(required)}"
                )
            raise InvalidSubmissionError(
                f"{name} has shape {tensor.shape}, the base model's has {required[name].shape}; do not resize it"
            )
        if tensor.dtype not in BYTES and not (name in base and base[name].dtype == tensor.dtype):
            raise InvalidSubmissionError(
                f"{name} is stored as {tensor.dtype}; save the weights as bfloat16, float16 or float32"
            )
