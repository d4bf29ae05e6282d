"""Says whether two configurations (config.json) compute the same from the same weights.

A submission is graded with the base model's configuration. A model that was trained with another one would be graded
with arithmetic for which it was not trained, and get a low score for a reason that nobody sees. So everything that
changes what a model computes has to be as in the base model.

The rule: every key counts that the base model's configuration knows, except those that match COSMETIC. A key that it
does not know has no effect on its class. Versions of transformers write the same setting in different ways, so a value
may be what stands in the base model's config.json, or what transformers makes of that (`complete`); and the rotary
embedding (`rope_theta`, `rope_scaling`, `rope_parameters` ...) is compared by meaning.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

COSMETIC = (
    "_*", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "tokenizer_class",
    "name_or_path", "id2label", "label2id", "problem_type", "task_specific_params", "return_dict*", "output_*",
    "is_encoder_decoder", "chunk_size_feed_forward", "*attn_implementation*", "pretraining_tp", "quantization_config",
    "model_max_length", "*dropout*", "*pdrop*", "*drop_path*", "initializer_*", "init_std", "*loss*",
    "router_jitter*", "*checkpointing*", "use_cache", "cache_implementation", "*_token_id", "*_token_ids",
    "*_token_index", "max_position_embeddings",
)  # fmt: skip
"""Keys that do not change what a trained model computes: they concern training (dropout, initial values, losses),
storage, the ends of texts (which the grader takes from the base model), or how outputs are returned."""
SWITCHES = {"use_sliding_window": frozenset({"sliding_window", "max_window_layers"})}
"""Keys that matter only if another one is true."""
ROPE = ("rope_parameters", "rope_scaling", "rope_theta", "rope_local_base_freq", "partial_rotary_factor")
FROM_SHAPES = frozenset({"head_dim", "num_key_value_heads"})
"""Keys that may be null and are then computed from others. The shapes of the weights show their values."""
SCALED_BY_CONTEXT = frozenset({"dynamic", "longrope", "yarn"})
"""Rotary embeddings that depend on `max_position_embeddings`, unless they have `original_max_position_embeddings`."""
OTHER_NAMES = {"su": "longrope", "mrope": "default"}
DEPTH = 4
"""Depth of nested configurations that are compared."""


class Difference(NamedTuple):
    """A setting that differs."""

    key: str
    submitted: Any
    base: Any


def first_difference(
    submitted: Mapping[str, Any], base: Mapping[str, Any], complete: Mapping[str, Any]
) -> Difference | None:
    """Returns a setting that makes the two compute differently; None if there is none.

    Args:
        complete: The same with all defaults, as transformers completes it; empty if that is not known.
    """
    return next(_differences(submitted, base, complete, DEPTH), None)


def _differences(
    submitted: Mapping[str, Any], base: Mapping[str, Any], complete: Mapping[str, Any], depth: int
) -> Iterator[Difference]:
    off = {key for switch, keys in SWITCHES.items() if not submitted.get(switch, True) for key in keys}
    known = submitted.keys() & (base.keys() | complete.keys())
    for key in sorted(known, key=lambda key: (key != "model_type", key)):
        if key in ROPE or key in off or any(fnmatchcase(key, pattern) for pattern in COSMETIC):
            continue
        value, allowed = submitted[key], [each[key] for each in (base, complete) if key in each]
        nested = [each for each in allowed if isinstance(each, dict)]
        if isinstance(value, dict) and nested and depth:
            for found in _differences(value, _nested(base, key), _nested(complete, key), depth - 1):
                yield found._replace(key=f"{key}.{found.key}")
        elif not (value is None and key in FROM_SHAPES) and not any(_same(value, each) for each in allowed):
            yield Difference(key, value, allowed[0])
    if any(key in submitted for key in ROPE):
        yield from _rope_differences(submitted, base, complete)


def _nested(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, dict) else {}


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, int | float) and isinstance(other, int | float):
        return one == other or math.isclose(one, other, rel_tol=1e-9)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(one[key], other[key]) for key in one)
    return bool(one == other)


def _rope_differences(
    submitted: Mapping[str, Any], base: Mapping[str, Any], complete: Mapping[str, Any]
) -> Iterator[Difference]:
    allowed = [rope_of(each) for each in (base, complete) if any(key in each for key in ROPE)]
    found = rope_of(submitted)
    if allowed and not any(_same_rope(found, each) for each in allowed):
        yield Difference("the rotary embedding (rope)", found, allowed[-1])
        return
    types = {parameters["rope_type"] for parameters in found.values()}
    lengths = [each["max_position_embeddings"] for each in (base, complete) if "max_position_embeddings" in each]
    length = submitted.get("max_position_embeddings", next(iter(lengths), None))
    if types & SCALED_BY_CONTEXT and lengths and not any(_same(length, each) for each in lengths):
        yield Difference("max_position_embeddings (which scales its rope)", length, lengths[0])


def rope_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Returns the parameters of the rotary embedding in one form, whatever version of transformers wrote them.

    Returns:
        The parameters by type of layer; the type is "" where all layers have the same.
    """
    given = config.get("rope_parameters") or config.get("rope_scaling")
    given = given if isinstance(given, dict) else {}
    if given and all(isinstance(each, dict) for each in given.values()):
        return {str(layer): _parameters(each, config) for layer, each in given.items()}
    parameters = _parameters(given, config)
    if (local := config.get("rope_local_base_freq")) is None:
        return {"": parameters}
    return {"full_attention": parameters, "sliding_attention": _parameters({"rope_theta": local}, {})}


def _parameters(given: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    kind = given.get("rope_type") or given.get("type") or "default"
    found = {
        "rope_theta": config.get("rope_theta"),
        "partial_rotary_factor": config.get("partial_rotary_factor"),
        **{key: value for key, value in given.items() if value is not None},
        "rope_type": OTHER_NAMES.get(str(kind), str(kind)),
    }
    found.pop("type", None)
    if found["partial_rotary_factor"] is None:
        found["partial_rotary_factor"] = 1.0
    return {key: value for key, value in found.items() if value is not None}


def _same_rope(one: Mapping[str, Mapping[str, Any]], other: Mapping[str, Mapping[str, Any]]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(_same_parameters(one[layer], other[layer]) for layer in one)


def _same_parameters(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Says whether parameters agree. The original context may be missing: some versions write it elsewhere."""
    optional: Sequence[str] = ("original_max_position_embeddings",)
    keys = (one.keys() | other.keys()) - {key for key in optional if key not in one or key not in other}
    return all(key in one and key in other and _same(one[key], other[key]) for key in keys)
