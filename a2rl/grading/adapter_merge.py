"""The process that merges an adapter: `python -m a2rl.grading.adapter_merge <base model> <adapter> <target>`.

The adapter's folder has the weights and `checked.json`, a checked `Adapter`. If the adapter does not fit the base
model, the process writes `refusal.txt` there; otherwise it saves the merged model in the target folder.
"""

import sys
from pathlib import Path
from typing import Any

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.files import read_model
from a2rl.grading.adapters import NAME, Adapter
from a2rl.grading.other_formats import ADAPTER_WEIGHTS
from a2rl.linux.process_tree import die_with_parent
from a2rl.models.loading import first_line, load_model
from a2rl.models.tensor_names import WRAPPERS


def main(base_model: Path, folder: Path, target: Path) -> None:
    """Merges the adapter, or says why it cannot be merged."""
    adapter = read_model(folder / "checked.json", Adapter)
    model = load_model(base_model, dtype="auto")
    try:
        _check_modules(model, adapter)
        merged = _merge(model, adapter, folder / ADAPTER_WEIGHTS)
    except (InvalidSubmissionError, ValueError, RuntimeError, KeyError, TypeError) as error:
        (folder / "refusal.txt").write_text(first_line(error)[:1000], encoding="utf-8")
        return
    merged.save_pretrained(target)


def _check_modules(model: Any, adapter: Adapter) -> None:
    """Checks that each layer is a linear layer of the base model, of the adapter's shape, with weights of its own."""
    import torch

    modules = dict(model.named_modules())
    head = model.get_output_embeddings()
    is_tied = head is not None and head.weight is model.get_input_embeddings().weight
    for name, each in adapter.modules.items():
        layer = modules.get(name)
        if layer is None:
            raise InvalidSubmissionError(f"the base model has no layer {name[:200]}")
        if type(layer) is not torch.nn.Linear:
            raise InvalidSubmissionError(f"{name} is not a linear layer but {type(layer).__name__}")
        if tuple(layer.weight.shape) != (each.outputs, each.inputs):
            raise InvalidSubmissionError(
                f"{name} has shape {tuple(layer.weight.shape)}, the adapter fits {(each.outputs, each.inputs)}"
            )
        if is_tied and layer is head:
            raise InvalidSubmissionError(f"{name} is tied to the embedding, which would change as well")


def _merge(model: Any, adapter: Adapter, weights: Path) -> Any:
    import torch
    from peft import LoraConfig, get_peft_model, set_peft_model_state_dict
    from peft.tuners.lora import LoraLayer
    from safetensors.torch import load_file

    config = LoraConfig(
        r=max(each.rank for each in adapter.modules.values()),
        target_modules=sorted(adapter.modules),
        rank_pattern={f"^{name}": each.rank for name, each in adapter.modules.items()},
        alpha_pattern={f"^{name}": each.alpha for name, each in adapter.modules.items()},
        use_rslora=adapter.use_rslora,
        use_dora=adapter.use_dora,
        init_lora_weights=True,
    )
    with torch.no_grad():
        tuned = get_peft_model(model, config)
        adapted = {
            name.removeprefix("base_model.model.")
            for name, module in tuned.named_modules()
            if isinstance(module, LoraLayer)
        }
        if adapted != adapter.modules.keys():
            raise InvalidSubmissionError("its layers are not those that PEFT would adapt")
        state = {_plain(name): tensor for name, tensor in load_file(weights).items()}
        loaded = set_peft_model_state_dict(tuned, state)
        if loaded.unexpected_keys or any("lora_" in name for name in loaded.missing_keys):
            raise InvalidSubmissionError("PEFT does not recognise its tensors")
        return tuned.merge_and_unload(safe_merge=True)


def _plain(name: str) -> str:
    """Returns the name of a tensor as PEFT stores it."""
    name = ".".join(part for part in name.split(".") if part not in WRAPPERS)
    match = NAME.fullmatch(name)
    is_magnitude = match is not None and match["magnitude"]
    return name.removesuffix(".weight") if is_magnitude else name


if __name__ == "__main__":
    die_with_parent()
    main(*map(Path, sys.argv[1:4]))
