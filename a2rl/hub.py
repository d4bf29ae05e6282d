"""Files of data sets by pinned revision: from the Hugging Face hub, or from a release on GitHub."""

import shutil
from pathlib import Path

from a2rl.errors import InfrastructureError
from a2rl.settings import Settings
from a2rl.task import DataSource


def download(source: DataSource, name: str) -> Path:
    """The local path of one file of a data set, as downloaded before or fetched now.

    Raises:
        InfrastructureError: the host cannot be reached.
    """
    return _from_hub(source, name) if source.host == "hub" else _from_github(source, name)


def _from_github(source: DataSource, name: str) -> Path:
    import requests

    target = Settings.load().root / "data" / "downloads" / source.repo_id / source.revision / name
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    incoming = target.with_name(f".{name}")
    url = f"https://github.com/{source.repo_id}/releases/download/{source.revision}/{name}"
    try:
        with requests.get(url, stream=True, timeout=60) as reply, incoming.open("wb") as file:
            reply.raise_for_status()
            reply.raw.decode_content = True
            shutil.copyfileobj(reply.raw, file)
    except (requests.RequestException, OSError) as error:
        incoming.unlink(missing_ok=True)
        raise InfrastructureError(
            f"{url} cannot be fetched: check the network, or give a local mirror (--source)"
        ) from error
    incoming.rename(target)
    return target


def _from_hub(source: DataSource, name: str) -> Path:
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source.repo_id, name, repo_type="dataset", revision=source.revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InfrastructureError(
            f"the hub cannot be reached for {source.repo_id}: check the network, or give a local mirror (--source)"
        ) from error
