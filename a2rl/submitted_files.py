"""The files of a submission: found in the agent's workspace, opened once, copied as opened.

with SubmittedFiles(run.workspace, "output/v1") as files:
    files.check_sizes(limit)
    files.copy(target)
"""

import errno
import os
import shutil
import threading
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from types import TracebackType
from typing import IO, BinaryIO, NamedTuple

from a2rl.beneath import Changed, Folder, copy_open_file
from a2rl.errors import InfrastructureError, InvalidSubmission
from a2rl.files import OURS

MAX_JSON_BYTES = 64 << 20
FREE_DISK_MARGIN = 512 << 20
MAX_FILES = 256
"""Files of weights; all are open at once."""
MAX_NAMES = 2_000
CHECKED = ("config.json", "tokenizer.json")
"""Copied to be compared with the base model's; the copy is called `submitted.<name>`."""
SHOWN_CHARS = 200
ADAPTER_RECIPE = (
    "this is a LoRA adapter; the grader needs the full model. Merge before saving: model = model.merge_and_unload(); "
    "model.save_pretrained(path); tokenizer.save_pretrained(path)"
)
SAFETENSORS_RECIPE = "save the weights with model.save_pretrained(path), which writes *.safetensors"
CHANGED = "was changed while it was copied; submit a checkpoint when it is saved whole"
NOT_OPENED = {
    errno.ENOENT: "vanished; submit a checkpoint when it is saved whole",
    errno.EACCES: "cannot be read; give back its permissions (chmod u+r)",
    errno.EMLINK: "has a second name (a hard link); submit real files: copy it instead of linking",
    errno.EINVAL: "is not a regular file; submit real files",
    errno.EAGAIN: "is in use (a lease, or renamed meanwhile); submit a checkpoint when it is saved whole",
}
_ROOM = threading.Lock()


class Opened(NamedTuple):
    """A file, and what it was when it was opened."""

    name: str
    file: BinaryIO
    status: os.stat_result


class SubmittedFiles(AbstractContextManager["SubmittedFiles"]):
    """The weights, config.json and tokenizer.json of a folder of the agent's.

    Raises:
        InvalidSubmission: they are not there, or not such that they could be copied.
        OSError: this machine cannot open them.
    """

    def __init__(self, workspace: Path, model_path: str) -> None:
        self._stack = ExitStack()
        try:
            with _open_folder(workspace, model_path) as folder:
                self._files = [self._open(folder, name) for name in _names_that_count(folder)]
        except BaseException:
            self._stack.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def check_sizes(self, limit: int) -> None:
        """Raises InvalidSubmission: the weights take more bytes than that together, or a JSON file is no sensible one.

        A sparse file counts as what it says it is, since its copy would be.
        """
        size = sum(each.status.st_size for each in self._files if each.name not in CHECKED)
        if size > limit:
            raise InvalidSubmission(
                f"the weights take {size >> 20} MiB, more than the {limit >> 20} MiB allowed for this base model"
            )
        for each in self._files:
            if each.name in CHECKED and each.status.st_size > MAX_JSON_BYTES:
                raise InvalidSubmission(f"{each.name} is not a JSON object of a sensible size; save the model again")

    def copy(self, target: Path) -> None:
        """Copies them into a folder.

        Room for all of them is taken before the first byte: copies side by side, of this run or another, cannot count
        on the same room.

        Raises:
            InvalidSubmission: the agent changed one meanwhile.
            InfrastructureError: there is no room.
            OSError: this machine cannot do it; TimeoutError: or not fast enough.
        """
        with ExitStack() as stack:
            for each, copy in zip(self._files, self._make_room(stack, target), strict=True):
                _copy(each, copy)

    def _open(self, folder: Folder, name: str) -> Opened:
        try:
            file = self._stack.enter_context(folder.open(name))
        except OSError as error:
            if error.errno in OURS:
                raise
            why = NOT_OPENED.get(error.errno or 0, "is a link or cannot be read; submit real files")
            raise InvalidSubmission(f"{name} {why}") from error
        return Opened(name, file, os.fstat(file.fileno()))

    def _make_room(self, stack: ExitStack, target: Path) -> list[IO[bytes]]:
        """The copies, already as long as they will be."""
        copies: list[IO[bytes]] = []
        with _ROOM:
            size = sum(each.status.st_size for each in self._files)
            if shutil.disk_usage(target).free < size + FREE_DISK_MARGIN:
                raise InfrastructureError("the grader's disk is full; free some space and submit again")
            for each in self._files:
                name = f"submitted.{each.name}" if each.name in CHECKED else each.name
                copies.append(stack.enter_context((target / name).open("xb")))
                if each.status.st_size:
                    os.posix_fallocate(copies[-1].fileno(), 0, each.status.st_size)
        return copies


def _copy(opened: Opened, copy: IO[bytes]) -> None:
    before = opened.status
    try:
        copy_open_file(opened.file, copy, before.st_size)
    except Changed as error:
        raise InvalidSubmission(f"{opened.name} {CHANGED}") from error
    copy.flush()
    os.fsync(copy.fileno())
    after = os.fstat(opened.file.fileno())
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise InvalidSubmission(f"{opened.name} {CHANGED}")


def _open_folder(workspace: Path, model_path: str) -> Folder:
    if not model_path or "\0" in model_path:
        raise InvalidSubmission('"model_path" is empty; give the folder of the checkpoint, for example "output/v1"')
    root = os.path.realpath(workspace)
    path = os.path.relpath(os.path.join(root, model_path), root)  # noqa: PTH118 - hostile text
    shown = model_path[:SHOWN_CHARS]
    if path == "." or path.split("/")[0] == "..":
        raise InvalidSubmission(f"{shown} is outside the workspace; save checkpoints below $OUTPUT_DIR")
    with Folder.at(Path(root)) as opened:
        try:
            return opened.folder(path)
        except OSError as error:
            if error.errno in OURS:
                raise
            raise InvalidSubmission(_what_is_wrong(opened, path, shown, error)) from error


def _what_is_wrong(workspace: Folder, path: str, shown: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"there is no folder {shown}; save the checkpoint first, then submit its folder"
    if error.errno == errno.EACCES:
        return f"{shown} cannot be opened; give back its permissions (chmod -R u+rwX)"
    parts = path.split("/")
    blame = next((part for place, part in enumerate(parts) if not _opens(workspace, parts[: place + 1])), path)
    return f"{shown}: {blame[:SHOWN_CHARS]!r} is a link or not a folder; submit the real folder of the checkpoint"


def _opens(workspace: Folder, parts: Iterable[str]) -> bool:
    try:
        workspace.folder("/".join(parts)).close()
    except OSError:
        return False
    return True


def _names_that_count(folder: Folder) -> list[str]:
    try:
        names = set(folder.names(MAX_NAMES + 1))
    except PermissionError as error:
        raise InvalidSubmission("the folder cannot be read; give back its permissions (chmod -R u+rwX)") from error
    _refuse_other_formats(names)
    weights = sorted(name for name in names if name.endswith(".safetensors"))
    if len(names) > MAX_NAMES or len(weights) > MAX_FILES:
        raise InvalidSubmission(
            f"the folder holds more than {MAX_NAMES} files, or more than {MAX_FILES} of weights; save the model alone, "
            "in larger shards"
        )
    return [*weights, *(name for name in CHECKED if name in names)]


def _refuse_other_formats(names: set[str]) -> None:
    if "adapter_config.json" in names or "adapter_model.safetensors" in names:
        raise InvalidSubmission(ADAPTER_RECIPE)
    if not any(name.endswith(".safetensors") for name in names):
        pickles = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth", ".pkl")))[:3]
        found = f"only {', '.join(pickles)}, which is never loaded" if pickles else "no weights"
        raise InvalidSubmission(f"the folder holds {found}; {SAFETENSORS_RECIPE}")
    if "config.json" not in names:
        raise InvalidSubmission("the folder has no config.json; save the whole model with model.save_pretrained(path)")
