"""Base models: `tiny`, a pretrained model of the catalogue, a local folder, a GGUF file, or a hub id."""

import difflib
from pathlib import Path

from a2rl.core.errors import UsageError, first_line
from a2rl.core.files import digest_of, expanded, folder_digest
from a2rl.core.hub import READ_TIMEOUT_S, hub_errors
from a2rl.core.settings import Settings
from a2rl.models.checkpoint import SMALL_FILES, check_base_model, weights_digest
from a2rl.models.gguf_files import converted, converted_folder, gguf_file
from a2rl.models.pretrained import CATALOGUE
from a2rl.models.pretrained_store import PretrainedStore

TINY = "tiny"
PATH_STARTS = (".", "/", "~")


def resolve_model(name: str, settings: Settings) -> Path:
    """Returns the folder of a base model.

    A model of the catalogue is downloaded once, into models/; a hub id is downloaded once, into the hub's own cache.

    Raises:
        UsageError: There is no such model, its licence is not accepted, or the folder is not a checkpoint.
        InfrastructureError: The hub or the package index cannot be reached.
    """
    require_known(name)
    if name in CATALOGUE:
        folder = PretrainedStore(settings).get(CATALOGUE[name])
    elif name == TINY:
        folder = settings.models / TINY
        if not folder.is_dir():
            raise UsageError("models/tiny is missing: `git checkout models/tiny`, or a new project, has it")
    elif (gguf := gguf_file(name)) is not None:
        folder = converted(gguf, settings)
    elif _is_path(name):
        folder = expanded(name).resolve()
    else:
        folder = _download(name)
    check_base_model(folder)
    return folder


def local_folder(name: str, settings: Settings) -> Path | None:
    """Returns the folder of a base model on this machine, which need not exist yet; None if only a hub has it."""
    if name == TINY:
        return settings.models / TINY
    if name in CATALOGUE:
        return PretrainedStore(settings).folder(CATALOGUE[name])
    if (gguf := gguf_file(name)) is not None:
        return converted_folder(gguf, settings)
    if _is_path(name):
        return expanded(name)
    if name.count("/") != 1:
        return None
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    repo_id, _, revision = name.partition("@")
    try:
        config = try_to_load_from_cache(repo_id, "config.json", revision=revision or None)
    except HFValidationError as error:
        raise UsageError(f"no model {name!r}: a hub id is like Qwen/Qwen2.5-0.5B ({first_line(error)})") from error
    return Path(config).parent if isinstance(config, str) else None


def require_known(name: str) -> None:
    """Checks the name of a base model as far as possible without a download.

    Raises:
        UsageError: It is no name of a model, no folder, no file and no hub id.
    """
    known = (TINY, *CATALOGUE)
    if name in known or _is_path(name) or (name.count("/") == 1 and not name.endswith(".gguf")):
        return
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    raise UsageError(
        f"no model {name!r}.{guess} Give {', '.join(known)} (`a2rl models`), a folder or GGUF file that exists, or a "
        "hub id such as Qwen/Qwen2.5-0.5B"
    )


def _is_path(name: str) -> bool:
    return Path(name).exists() or name.startswith(PATH_STARTS)


def recorded_name(name: str) -> str:
    """Returns the name of a base model as a run records it: a path means the same folder wherever a command starts."""
    if name in (TINY, *CATALOGUE) or not _is_path(name):
        return name
    path = expanded(name).absolute()  # a link keeps its name, which agents are told
    return str(path.resolve() if ".." in path.parts else path)


def model_digest(folder: Path) -> str:
    """Returns the SHA-256 digest (hex) of a model's weights, configuration and tokenizer."""
    return digest_of([weights_digest(folder), folder_digest(folder, SMALL_FILES)])


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    repo_id, _, revision = name.partition("@")
    with hub_errors(repo_id, "a folder with a copy"):
        return Path(
            snapshot_download(
                repo_id,
                revision=revision or None,
                allow_patterns=[*SMALL_FILES, "*.safetensors"],
                ignore_patterns=["*/*", "consolidated*"],  # the same weights once more, in formats of their makers
                etag_timeout=READ_TIMEOUT_S,
            )
        )


def model_name(model: str) -> str:
    """Returns the name of a base model for the agent: the last part of its id or path."""
    plain = model if model.startswith(PATH_STARTS) else model.partition("@")[0]
    return Path(plain).name.removesuffix(".gguf")


def reference_name(model: str) -> str:
    """Returns the name of a base model as the reference gives it to agents: a hub id with its organisation.

    Args:
        model: Its `recorded_name`, so that no folder decides in which a command happens to start.
    """
    plain = model.partition("@")[0]
    return model_name(model) if model.startswith(PATH_STARTS) or plain.count("/") != 1 else plain
