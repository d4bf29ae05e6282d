"""Base models: `tiny`, a local folder, or a hub id."""

from pathlib import Path

from a2rl.checkpoint import check_base_model, weights_digest
from a2rl.errors import InfrastructureError, UsageError
from a2rl.files import digest_of, folder_digest
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
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    repo_id, _, revision = name.partition("@")
    try:
        folder = snapshot_download(repo_id, revision=revision or None, allow_patterns=[*SMALL_FILES, "*.safetensors"])
    except RepositoryNotFoundError as error:
        raise UsageError(
            f"the hub has no model {repo_id!r}, or it needs a login: check the id, or set HF_TOKEN"
        ) from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InfrastructureError(
            f"the hub cannot be reached for {name!r}: check the network, or give the folder of a copy"
        ) from error
    return Path(folder)
