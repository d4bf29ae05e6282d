"""Base models: `tiny`, a local folder, or a hub id."""

from pathlib import Path

from a2rl.checkpoint import check_base_model, weights_digest
from a2rl.errors import UsageError
from a2rl.files import digest_of, folder_digest
from a2rl.hub import SILENCE_S, reaching_hub
from a2rl.settings import Settings

TINY = "tiny"
SMALL_FILES = ("*.json", "*.txt", "*.jinja", "*.model")


def resolve_model(name: str, settings: Settings) -> Path:
    """The folder of a base model; a hub id is downloaded once, into the hub's own cache.

    Raises:
        UsageError: there is no such model, or the folder is not a checkpoint.
        InfrastructureError: the hub cannot be reached.
    """
    if name == TINY:
        folder = settings.models / TINY
        if not folder.is_dir():
            raise UsageError("the base model `tiny` is not built yet: run `make data` (or `dvc repro`)")
    elif Path(name).exists() or name.startswith((".", "/", "~")):
        folder = Path(name).expanduser().resolve()
    elif name.count("/") == 1:
        folder = _download(name)
    else:
        raise UsageError(f"no model {name!r}: give `tiny`, a folder that exists, or a hub id such as Qwen/Qwen2.5-0.5B")
    check_base_model(folder)
    return folder


def model_digest(folder: Path) -> str:
    """SHA-256 (hex) over weights, configuration and tokenizer."""
    return digest_of([weights_digest(folder), folder_digest(folder, SMALL_FILES)])


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    repo_id, _, revision = name.partition("@")
    with reaching_hub(repo_id):
        wanted = [*SMALL_FILES, "*.safetensors"]
        return Path(
            snapshot_download(repo_id, revision=revision or None, allow_patterns=wanted, etag_timeout=SILENCE_S)
        )
