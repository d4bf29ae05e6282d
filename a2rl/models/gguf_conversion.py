"""Converts a GGUF file into an ordinary checkpoint: `python -m a2rl.models.gguf_conversion FILE.gguf FOLDER`.

    converted(Path("model.gguf"), settings)      # models/gguf/model-<start of the file's digest>, made on first use

The conversion runs in a process of its own, which needs memory for the model and imports torch and transformers.
transformers reads the file (with the package gguf) but refuses to save a model that it read in this way, so the weights
are put into a plain model of the same configuration.

The weights are stored in bfloat16. That is the type in which such models are trained and published, and half the size
of float32, which every submission has to be. It rounds each weight by at most 0.4%, where the steps of a 4-bit
quantisation are about 7% of a block's largest weight. The same file always gives the same bytes: each weight is
computed on its own, in float32.
"""

import secrets
import shutil
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

from a2rl.core.errors import UsageError
from a2rl.core.files import file_digest, machine_failure
from a2rl.core.locks import file_lock
from a2rl.core.processes import child_environment, module_command, run_child
from a2rl.core.settings import Settings

TIMEOUT_S = 3600.0
LOCK_TIMEOUT_S = 2 * TIMEOUT_S
DIGEST_CHARS = 16


def gguf_file(name: str) -> Path | None:
    """Returns the GGUF file that a path names: the file, or the only one in a folder without a checkpoint.

    Raises:
        UsageError: The folder has several.
    """
    path = Path(name).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        return path.resolve()
    if not path.is_dir() or (path / "config.json").exists():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) > 1:
        raise UsageError(f"{name} has {len(found)} GGUF files: name the one to use, such as {found[0]}")
    return found[0].resolve() if found else None


def converted_folder(gguf: Path, settings: Settings) -> Path:
    """Returns the folder of a GGUF file's checkpoint, which exists once it is made."""
    about = gguf.stat()
    return settings.models / "gguf" / f"{gguf.stem}-{_digest(gguf, about.st_mtime_ns, about.st_size)[:DIGEST_CHARS]}"


def converted(gguf: Path, settings: Settings) -> Path:
    """Returns the folder of a GGUF file's checkpoint, which is made on first use.

    Raises:
        UsageError: The file cannot be converted; the message says why.
        InfrastructureError: The checkpoint cannot be stored.
    """
    folder = converted_folder(gguf, settings)
    with file_lock(folder.with_suffix(".lock"), f"another process converts {gguf.name}", LOCK_TIMEOUT_S):
        if folder.is_dir():
            return folder
        making = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
        try:
            making.mkdir(parents=True)
            if reason := convert_apart(gguf, making / "checkpoint", making / "log", settings):
                raise UsageError(f"{gguf} cannot be used as a base model: {reason}")
            (making / "checkpoint").rename(folder)
        except OSError as error:
            raise machine_failure(f"store the checkpoint of {gguf.name} in {folder}", error) from error
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return folder


@lru_cache
def _digest(gguf: Path, _mtime_ns: int, _size: int) -> str:
    return file_digest(gguf)


def convert_apart(gguf: Path, folder: Path, log: Path, settings: Settings) -> str:
    """Converts a file in a process of its own; returns why it cannot be converted, or an empty text."""
    command = module_command("a2rl.models.gguf_conversion", str(gguf), str(folder))
    status = run_child(command, child_environment(settings), log, TIMEOUT_S)
    if status == 0:
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines() or ["no message"]
    return "the process was killed, perhaps for lack of memory" if status < 0 else lines[-1]


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

    Args:
        gguf: A GGUF file with a model and its tokenizer.
        folder: The folder to write to.

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
