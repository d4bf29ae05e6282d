"""LoRA adapters as submissions: checked here, then merged into the base model by a process of its own.

Nothing of an adapter's configuration reaches a library. Modules and ranks are read from the tensors' names and shapes,
and PEFT gets a configuration that is made from those. `base_model_name_or_path` is never followed.

The process is `python -m a2rl.grading.adapters <base model> <adapter> <target>`. The adapter's folder has the weights
and `checked.json`, a checked `Adapter`. If the adapter does not fit the base model, the process writes `refusal.txt`
there; otherwise it saves the merged model in the target folder.
"""

import re
import shutil
import sys
from collections.abc import Mapping
from operator import eq
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.errors import (
    InfrastructureError,
    InvalidSubmissionError,
    LackOfMemoryError,
    UnclearFaultError,
    first_line,
)
from a2rl.core.files import FrozenModel, read_model, write_model
from a2rl.core.settings import Settings
from a2rl.grading.model_process import ModelSize, run_model_process
from a2rl.grading.other_formats import ADAPTER_CONFIG, ADAPTER_WEIGHTS
from a2rl.linux.process_tree import die_with_parent
from a2rl.models.caps import MAX_ADAPTER_CONFIG_BYTES, MAX_RANK, Caps, read_json
from a2rl.models.checkpoint import BYTES, Tensor, blocks_of, tensors_in, tensors_of
from a2rl.models.finite import require_finite
from a2rl.models.tensor_names import WRAPPERS, find_embedding, find_head, refuse_placeholders, resize_recipe

RECIPE = (
    "merge it yourself: model = model.merge_and_unload(); model.save_pretrained(path); tokenizer.save_pretrained(path)"
)
NAME = re.compile(
    r"base_model\.model\.(?P<module>[\w.]+?)\.(lora_(?P<part>[AB])\.weight|lora_(?P<magnitude>magnitude_vector)(\.weight)?)"
)
PLAIN_PATTERN = re.compile(r"\^?[\w.]+")
"""Keys of `rank_pattern` and `alpha_pattern` are regular expressions. Only names are accepted: a hostile expression
could take hours."""
UNDERSTOOD = frozenset({
    "peft_type", "r", "lora_alpha", "rank_pattern", "alpha_pattern", "use_rslora", "use_dora", "init_lora_weights",
})  # fmt: skip
WITHOUT_EFFECT = frozenset({
    "base_model_name_or_path", "revision", "task_type", "inference_mode", "peft_version", "auto_mapping",
    "lora_dropout", "target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "megatron_core",
    "qalora_group_size",
})  # fmt: skip
"""Keys that do not change how an adapter is merged, or say the same as the names of its tensors."""
PLAIN_STARTS = (None, True, False, "gaussian", "true", "false")
"""Values of `init_lora_weights` with which the base model's weights stay as they are. Others (PiSSA, OLoRA, LoftQ ...)
change them, so that the adapter belongs to another model than the base."""
Patterns = Mapping[str, tuple[int, Any]]


class AdaptedLayer(FrozenModel):
    """A layer with an adapter."""

    outputs: int
    inputs: int
    rank: int
    alpha: float


class Adapter(FrozenModel):
    """A LoRA adapter that was checked."""

    modules: dict[str, AdaptedLayer]
    """The layers by name."""
    use_rslora: bool
    use_dora: bool

    def __str__(self) -> str:
        kind = ("DoRA" if self.use_dora else "LoRA") + (" (rank-stabilised)" if self.use_rslora else "")
        ranks = sorted({module.rank for module in self.modules.values()})
        shown = str(ranks[0]) if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        return f"{kind} adapter of rank {shown} on {len(self.modules)} layers"


class LayerTensors(NamedTuple):
    """The tensors of one layer's adapter."""

    a: Tensor
    b: Tensor
    magnitude: Tensor | None


def merge_adapter(settings: Settings, adapter: Path, base_model: Path, target: Path) -> str:
    """Writes the base model with the adapter merged into it, as `save_pretrained` does.

    Returns:
        The adapter in words.

    Raises:
        InvalidSubmissionError: It cannot be merged; the message says why.
        InfrastructureError: This machine cannot merge it.
    """
    checked, model = check_adapter(adapter, base_model), ModelSize.of(base_model)
    if why := model.lack_of_memory:
        raise LackOfMemoryError(f"the grader cannot merge the adapter now: {why}; {RECIPE}")
    if 2 * model.size > shutil.disk_usage(target).free:
        raise InfrastructureError("the grader's disk is full; free some space and submit again")
    write_model(adapter / "checked.json", checked)
    arguments = [str(base_model), str(adapter), str(target)]
    failure = run_model_process(__name__, arguments, adapter / "log", model.timeout_s, settings)
    if (refusal := adapter / "refusal.txt").exists():
        raise InvalidSubmissionError(f"the adapter cannot be merged: {refusal.read_text()}; {RECIPE}")
    if failure:
        raise UnclearFaultError(f"the grader could not merge the adapter: {failure}; {RECIPE}")
    return str(checked)


def check_adapter(folder: Path, base_model: Path) -> Adapter:
    """Checks an adapter like `read_adapter`, and that its numbers are finite."""
    checked = read_adapter(folder, tensors_of(base_model))
    for name, tensor in tensors_in(folder / ADAPTER_WEIGHTS).items():
        for block in blocks_of(tensor):
            require_finite(name, tensor, block)
    return checked


def read_adapter(folder: Path, base: Mapping[str, Tensor]) -> Adapter:
    """Checks an adapter by its configuration and the headers of its weights.

    Args:
        folder: The folder with `submitted.adapter_config.json` and the weights.

    Raises:
        InvalidSubmissionError: It is not a LoRA adapter of the kinds that can be merged safely.
    """
    config = read_json(folder / f"submitted.{ADAPTER_CONFIG}", ADAPTER_CONFIG, MAX_ADAPTER_CONFIG_BYTES)
    caps = Caps.of(len(base), are_adapter=True)
    stored = tensors_in(folder / ADAPTER_WEIGHTS, caps)
    tensors = {name: tensor for name, tensor in stored.items() if not _is_of_base(name, tensor, base)}
    _refuse_vocabulary(tensors, base)
    _check_config(config)
    parts = _parts(tensors)
    use_dora = bool(config.get("use_dora"))
    ranks, alphas = _patterns("rank_pattern", config, caps), _patterns("alpha_pattern", config, caps)
    modules = {name: _module(name, each, config, ranks, alphas) for name, each in parts.items()}
    refuse_placeholders(tensors)
    return Adapter(modules=modules, use_rslora=bool(config.get("use_rslora")), use_dora=use_dora)


def _check_config(config: Mapping[str, Any]) -> None:
    if config.get("peft_type") != "LORA":
        raise InvalidSubmissionError(
            f"the adapter is of type {str(config.get('peft_type'))[:50]!r}; the grader merges LoRA; {RECIPE}"
        )
    for key in sorted(config.keys() - UNDERSTOOD - WITHOUT_EFFECT):
        if config[key] and config[key] != "none":
            raise InvalidSubmissionError(f"the adapter uses {key[:50]}, which the grader does not merge; {RECIPE}")
    start = config.get("init_lora_weights")
    if not any(start is each or (isinstance(start, str) and start == each) for each in PLAIN_STARTS):
        raise InvalidSubmissionError(
            f"the adapter began with init_lora_weights = {str(start)[:50]!r}, which changes the base model's weights; "
            f"{RECIPE}"
        )


def _is_of_base(stored: str, tensor: Tensor, base: Mapping[str, Tensor]) -> bool:
    """Whether this is an unchanged weight of the base model, as PEFT saves the embeddings beside an adapted head."""
    parts = stored.removeprefix("base_model.model.").split(".")
    own = base.get(".".join(part for part in parts if part not in {*WRAPPERS, "base_layer"}))
    if own is None or (own.dtype, own.shape) != (tensor.dtype, tensor.shape):
        return False
    return all(map(eq, blocks_of(tensor), blocks_of(own)))


def _refuse_vocabulary(tensors: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
    """Refuses an adapter with embeddings of its own, which PEFT saves beside it when the vocabulary was resized."""
    plain = {name.replace(".base_layer.", "."): name for name, tensor in tensors.items() if len(tensor.shape) == 2}
    if own := find_embedding(plain) or find_head(plain):
        raise InvalidSubmissionError(
            f"the adapter brings {own[:200]} with {tensors[plain[own]].shape[0]} rows, other than the base model's, as "
            "PEFT saves it when the vocabulary was resized; the grader uses the base model's tokenizer. Merge it, and "
            f"{resize_recipe(base)}, where model = model.merge_and_unload()"
        )


def _parts(tensors: Mapping[str, Tensor]) -> dict[str, LayerTensors]:
    """Sorts the tensors by layer."""
    found: dict[str, dict[str, Tensor]] = {}
    for stored, tensor in tensors.items():
        name = ".".join(part for part in stored.split(".") if part not in WRAPPERS)
        if (match := NAME.fullmatch(name)) is None:
            raise InvalidSubmissionError(
                f"the adapter holds {stored[:200]}, which is no part of a LoRA layer that the grader merges; {RECIPE}"
            )
        if tensor.dtype not in BYTES:
            raise InvalidSubmissionError(f"{stored[:200]} is stored as {tensor.dtype}; save it as float32 or bfloat16")
        layer = found.setdefault(match["module"], {})
        if layer.setdefault(match["part"] or match["magnitude"], tensor) is not tensor:
            raise InvalidSubmissionError(f"the adapter holds {name[:200]} twice; save it again")
    for module, layer in found.items():
        if not {"A", "B"} <= layer.keys():
            raise InvalidSubmissionError(f"the adapter of {module[:200]} lacks lora_A or lora_B; save it again")
    if not found:
        raise InvalidSubmissionError(f"the adapter holds no weights; save it again, or {RECIPE}")
    return {
        module: LayerTensors(layer["A"], layer["B"], layer.get("magnitude_vector")) for module, layer in found.items()
    }


def _module(
    name: str, parts: LayerTensors, config: Mapping[str, Any], ranks: Patterns, alphas: Patterns
) -> AdaptedLayer:
    """Checks the shapes of a layer's adapter."""
    use_dora = bool(config.get("use_dora"))
    if len(parts.a.shape) != 2 or len(parts.b.shape) != 2 or parts.a.shape[0] != parts.b.shape[1]:
        raise InvalidSubmissionError(
            f"lora_A and lora_B of {name[:200]} have shapes {parts.a.shape} and {parts.b.shape}, which do not fit each "
            "other; save it again"
        )
    (rank, inputs), outputs = parts.a.shape, parts.b.shape[0]
    if rank != _number(name, "r", ranks, config) or not 0 < rank <= min(MAX_RANK, max(inputs, outputs)):
        raise InvalidSubmissionError(
            f"the adapter of {name[:200]} has rank {rank}, which is not that of adapter_config.json or too large; save "
            "it again"
        )
    if (parts.magnitude is not None) != use_dora or (parts.magnitude and parts.magnitude.shape != (outputs,)):
        raise InvalidSubmissionError(f"the adapter of {name[:200]} does not fit use_dora = {use_dora}; save it again")
    return AdaptedLayer(outputs=outputs, inputs=inputs, rank=rank, alpha=_number(name, "lora_alpha", alphas, config))


def _patterns(key: str, config: Mapping[str, Any], caps: Caps) -> Patterns:
    """Returns the values of `rank_pattern` or `alpha_pattern`, each with its place, because the first match counts."""
    given = config.get(key) or {}
    if not isinstance(given, dict):
        raise InvalidSubmissionError(f"{key} in adapter_config.json is not an object; save the adapter again")
    caps.check_number(len(given), f"keys of {key}")
    if odd := next((pattern for pattern in given if not PLAIN_PATTERN.fullmatch(pattern)), None):
        raise InvalidSubmissionError(
            f"{key} in adapter_config.json has the regular expression {odd[:100]!r}; the grader reads names of layers "
            f"only; {RECIPE}"
        )
    return {pattern: (place, value) for place, (pattern, value) in enumerate(given.items())}


def _number(module: str, key: str, patterns: Patterns, config: Mapping[str, Any]) -> float:
    """Returns the rank or the alpha of a layer: the first pattern's that matches its name, or the common one."""
    parts = module.split(".")
    names = (f"^{module}", *(".".join(parts[place:]) for place in range(len(parts))))
    matches = [patterns[name] for name in names if name in patterns]
    found = min(matches, key=lambda each: each[0])[1] if matches else config.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 < found < 1e6:
        raise InvalidSubmissionError(f"{key} in adapter_config.json is not a sensible number; save the adapter again")
    return float(found)


def main(base_model: Path, folder: Path, target: Path) -> None:
    """Merges the adapter, or says why it cannot be merged, in the process for that."""
    from a2rl.sampling.loading import load_model

    adapter = read_model(folder / "checked.json", Adapter)
    model = load_model(base_model)
    try:
        _check_modules(model, adapter)
        merged = _merge(model, adapter, folder / ADAPTER_WEIGHTS)
    except (OSError, MemoryError):
        raise  # this machine's fault
    except Exception as error:  # noqa: BLE001 - whatever else a library raises, the adapter made it do so
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
        state = {_plain(name): tensor for name, tensor in load_file(weights).items() if "lora_" in name}
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
