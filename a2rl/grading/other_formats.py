"""What a folder without a checkpoint holds instead, and the command that makes a checkpoint of it.

Commands run in the agent's workspace, with its variables. tests/unit/grading/test_other_formats.py runs them.
"""

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from a2rl.linux.untrusted_folder import UntrustedFolder
from a2rl.models.checkpoint import SAFETENSORS_RECIPE

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MAX_NAMES, MAX_FOLDERS, MAX_DEPTH = 2_000, 200, 3
PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")
NO_WEIGHTS = ("optim", "scheduler", "rng_state", "training_args", "extra_state", "scaler", "random_states", "data.")
VERL_SHARD = re.compile(r"model_world_size_(\d+)_rank_\d+\.pt")
SAVED_WHOLE = frozenset({"pytorch_model.bin", "pytorch_model.bin.index.json"})
SHOWN_CHARS = 200


def how_to_convert(folder: UntrustedFolder, names: set[str], path: str) -> str:
    """Returns what a folder holds and how to make a checkpoint of it.

    Args:
        folder: A folder without *.safetensors, whose content may be hostile.
        path: The folder as the agent named it.
    """
    below = [("", names), *islice(_below(folder, names, MAX_DEPTH), MAX_FOLDERS)]
    ready = [inner for inner, held in below if _is_complete(held)]
    if ready:
        more = f" (and {len(ready) - 1} more below it)" if len(ready) > 1 else ""
        kind = "an adapter" if ADAPTER_CONFIG in dict(below)[ready[-1]] else "a checkpoint"
        return (
            f"the folder itself holds no weights, but there is {kind} in {ready[-1][:SHOWN_CHARS]}{more}; submit "
            f"{path[:SHOWN_CHARS]}/{ready[-1][:SHOWN_CHARS]}"
        )
    told = (_other_format(held, "/".join(filter(None, (path, inner))), f"{path}-whole") for inner, held in below)
    return next(filter(None, told), f"the folder holds no weights; {SAFETENSORS_RECIPE}")


def _is_complete(names: set[str]) -> bool:
    has_weights = any(name.endswith(".safetensors") for name in names - {ADAPTER_WEIGHTS})
    return {ADAPTER_CONFIG, ADAPTER_WEIGHTS} <= names or ("config.json" in names and has_weights)


def _below(folder: UntrustedFolder, names: set[str], depth: int) -> Iterator[tuple[str, set[str]]]:
    """Yields the folders below, with the names in each; of checkpoints with numbers, the highest come last."""
    for name in sorted(names, key=lambda each: (len(each), each))[:MAX_FOLDERS]:
        if not name.isprintable():
            continue
        with suppress(OSError), folder.folder(name) as inner:
            held = set(inner.names(MAX_NAMES))
            yield name, held
            if depth > 1:
                for deeper, others in _below(inner, held, depth - 1):
                    yield f"{name}/{deeper}", others


def _other_format(names: set[str], path: str, out: str) -> str | None:
    """Returns what other tools have left in a folder; None if nothing is recognised."""
    source, target = shlex.quote(path[:SHOWN_CHARS]), shlex.quote(out[:SHOWN_CHARS])
    config = f'cp "$MODEL_PATH/config.json" {target}'
    if "zero_to_fp32.py" in names:
        command = f"python {source}/zero_to_fp32.py {source} {target} --safe_serialization && {config}"
        return _recipe("a DeepSpeed checkpoint", command, target)
    if shards := [match for name in names if (match := VERL_SHARD.fullmatch(name))]:
        command = f"python -m verl.model_merger merge --backend fsdp --local_dir {source} --target_dir {target}"
        return _recipe(f"a checkpoint of verl in {shards[0][1]} shards, one for each rank,", command, target)
    if any(name.endswith(".distcp") for name in names):
        return _recipe("a sharded FSDP checkpoint", f"accelerate merge-weights {source} {target} && {config}", target)
    pickles = sorted(
        name for name in names if name.endswith(PICKLES) and name.isprintable() and not name.startswith(NO_WEIGHTS)
    )
    if not pickles:
        return None
    what = f"only {', '.join(pickles[:3])}, which is never loaded"
    if "config.json" in names and SAVED_WHOLE & names:
        code = (
            f"from transformers import AutoModelForCausalLM as M; m = M.from_pretrained({path[:SHOWN_CHARS]!r}, "
            f"dtype='auto'); m.save_pretrained({out[:SHOWN_CHARS]!r})"
        )
        command = f"python -c {shlex.quote(code)}"
    else:
        code = (
            f"import torch, safetensors.torch as s; w = torch.load({f'{path}/{pickles[0]}'[:SHOWN_CHARS]!r}, "
            "map_location='cpu'); w = w.get('state_dict', w.get('model', w)); "
            f"s.save_file({{k: v.clone() for k, v in w.items()}}, {f'{out[:SHOWN_CHARS]}/model.safetensors'!r})"
        )
        command = f"mkdir -p {target} && {config} && python -c {shlex.quote(code)}"
    return f"{_recipe(what, command, target)}. Next time, {SAFETENSORS_RECIPE}"


def _recipe(what: str, command: str, target: str) -> str:
    return f"the folder holds {what}; make a checkpoint of it: `{command}`, then submit {target}"
