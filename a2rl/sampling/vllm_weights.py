"""Compares the weights inside a vLLM engine with the files that they should have come from.

This module runs in vLLM's own environment, loaded by `vllm_worker`. A sum over the numbers of each layer is computed
twice: from the files, and from what the engine computes with. Each number is hashed before it is added, so the order of
the numbers and the zeros of a padding do not matter, and engines may store several matrices as one. Both sums are
computed where the engine computes, so on a GPU the files are only read and sent there, block by block.
"""

import json
import re
from pathlib import Path
from typing import Any

Sums = dict[str, int]
"""One sum for each layer, by the number of the layer; the rest of the model is the layer without a number."""

LAYER = re.compile(r"(?:^|\.)(\d+)\.")
NOT_WEIGHTS = ("rotary_emb.inv_freq",)
"""Endings of the names of tensors that some checkpoints store and every library computes anew."""
TIED_HEAD = "lm_head.weight"
FACTORS = (-7046029254386353131, -4658895280553007687)
"""Odd 64-bit numbers, as hash functions of integers use them."""
BLOCK, GPU_BLOCK = 1 << 14, 1 << 24
"""How many numbers are hashed at once: few, to stay in the cache of a processor, or many, to keep a GPU busy."""
ROWS = 256
"""How many rows of the identity are multiplied at once with a matrix that can only be read by multiplying."""
BITS = {2: "int16", 4: "int32", 8: "int64"}


class WeightsDifferError(Exception):
    """The engine does not compute with the weights in the files."""


def require_equal(folder: str, model: Any, number_type: Any) -> None:
    """Returns if an engine's model has exactly the weights of a checkpoint folder.

    Args:
        folder: The checkpoint folder.
        model: The module that the engine computes with.
        number_type: The dtype that the engine computes in.

    Raises:
        WeightsDifferError: It has others, or they cannot be compared.
    """
    try:
        device = next(model.parameters()).device
        # The engine itself decides this: of a configuration that says so and files that have a head, it compares both.
        tied = not any(name.endswith(TIED_HEAD) for name, _ in model.named_parameters())
        stored, loaded = sums_of_files(Path(folder), number_type, tied, device), sums_of_model(model, number_type)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise WeightsDifferError(f"the engine's weights cannot be compared with the files: {error}") from error
    differing = sorted(name for name in stored.keys() | loaded.keys() if stored.get(name, 0) != loaded.get(name, 0))
    if differing:
        where = ", ".join(f"layer {name}" if name else "outside of the layers" for name in differing[:3])
        raise WeightsDifferError(f"the engine's weights differ from those in the files: {where}")


def forget_packing(model: Any) -> None:
    """Makes vLLM pack a mixture's experts for the processor when it next loads them.

    vLLM 0.32 packs them once for each kernel. Later weights stay as they are, and are then computed with as if they
    were packed. On a GPU nothing is packed in this way, and the graphs have the addresses of the kernel's weights.
    """
    for module in model.modules():
        method: Any = getattr(module, "quant_method", None)
        if getattr(method, "moe_kernel", None) and next(module.parameters()).device.type == "cpu":
            method.moe_kernel = None


def pack_again(model: Any) -> None:
    """Renews the packed copies of weights that a model also keeps as they are.

    vLLM 0.32 does so for the modules that it loads, but not for a head that is tied to the embedding.
    """
    for module in model.modules():
        if callable(getattr(module, "cpu_linear", None)) and module.weight.numel():
            module.quant_method.process_weights_after_loading(module)


def sums_of_files(folder: Path, number_type: Any, tied: bool, device: Any) -> Sums:
    """Returns the sums over the tensors in a checkpoint folder, computed on a device."""
    from safetensors import safe_open

    sums: Sums = {}
    for file, names in sorted(_tensors(folder).items()):
        with safe_open(folder / file, framework="pt") as tensors:
            for name in names or tensors.keys():
                if name.endswith(NOT_WEIGHTS) or (tied and name == TIED_HEAD):
                    continue
                _add(sums, name, sum_of(tensors.get_tensor(name), number_type, device))
    return sums


def sums_of_model(model: Any, number_type: Any) -> Sums:
    """Returns the sums over the weights that a model computes with.

    Raises:
        WeightsDifferError: A module keeps two forms of its weights, and they differ.
    """
    sums: Sums = {}
    for name, parameter in model.named_parameters():
        _add(sums, name, sum_of(parameter.detach(), number_type))
    for name, module in model.named_modules():
        if not callable(getattr(module, "cpu_linear", None)):
            continue
        packed = _sum_of_product(module, number_type)
        if not module.weight.numel():
            _add(sums, f"{name}.weight", packed)
        elif packed != sum_of(module.weight.detach(), number_type):
            raise WeightsDifferError(f"the engine's weights differ from those it has packed for this processor: {name}")
    return sums


def sum_of(tensor: Any, number_type: Any, device: Any = None) -> int:
    """Returns the sum over one tensor; zeros of either sign count as nothing.

    Args:
        number_type: The dtype that the engine computes in.
        device: Where the sum is computed; where the tensor is unless given.
    """
    import torch

    device = device or tensor.device
    bits = getattr(torch, BITS[torch.finfo(number_type).bits // 8])
    total, flat = torch.zeros((), dtype=torch.int64, device=device), tensor.reshape(-1)
    for block in flat.split(BLOCK if device.type == "cpu" else GPU_BLOCK):
        # Adding zero makes -0 to +0, which a product cannot tell apart.
        numbers = (block.to(device).to(number_type) + 0.0).view(bits).to(torch.int64)
        for factor in FACTORS:
            numbers *= factor
            numbers ^= numbers >> 29
        total += numbers.sum()
    return int(total) % (1 << 64)


def _sum_of_product(module: Any, number_type: Any) -> int:
    """Reads a matrix that is packed for the processor by multiplying the identity with it, which is exact."""
    import torch

    weight = module.weight
    size = weight.shape[1] if weight.numel() else getattr(module, "input_size_per_partition", module.input_size)
    total = 0
    for start in range(0, size, ROWS):
        rows = torch.zeros(min(ROWS, size - start), size, dtype=number_type)
        rows[torch.arange(len(rows)), torch.arange(start, start + len(rows))] = 1
        total += sum_of(module.cpu_linear(rows, weight, None), number_type)
    return total % (1 << 64)


def _tensors(folder: Path) -> dict[str, list[str]]:
    """Returns the files with weights, each with the names of its tensors; none means all that it has."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return {path.name: [] for path in folder.glob("*.safetensors")}
    files: dict[str, list[str]] = {}
    for name, file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items():
        files.setdefault(file, []).append(name)
    return files


def _add(sums: Sums, name: str, value: int) -> None:
    found = LAYER.search(name)
    layer = found.group(1) if found else ""
    sums[layer] = (sums.get(layer, 0) + value) % (1 << 64)
