"""Files of data sets on the Hugging Face hub, by pinned revision."""

from pathlib import Path

from a2rl.errors import InfrastructureError
from a2rl.task import DataSource


def download(source: DataSource, name: str) -> Path:
    """The local path of one file of a data set, from the hub's cache or fetched now.

    Raises:
        InfrastructureError: the hub cannot be reached.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(source.repo_id, name, repo_type="dataset", revision=source.revision))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise InfrastructureError(
            f"the hub cannot be reached for {source.repo_id}: check the network, or give a local mirror (--source)"
        ) from error
