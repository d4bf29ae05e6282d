"""The files of a submission: kept from its receipt on, found in the agent's workspace, opened once, and copied.

with SubmittedFiles(Source(run.workspace, "output/v1")) as files:
    files.check_sizes(limit)
    files.copy(target)

Right after the receipt, `FrozenSources` keeps them, whatever the agent does to its folder meanwhile: each file gets a
clone in the grader's folder where the file system has clones, or else a second name (a hard link). So a copy can wait
for others, and it outlives the agent, a crash, and the removal or replacement of the folder. A clone also survives
changes to the file itself; a file with a second name that was changed in place is refused.

    sources = FrozenSources(run.checkpoints)
    sources.freeze(3, run.workspace, "output/v1")
    source = sources.find(3, run.workspace, "output/v1")
"""

import errno
import json
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple

from a2rl.core.errors import A2rlError, InfrastructureError, InvalidSubmissionError
from a2rl.core.files import MACHINE_ERRORS
from a2rl.grading.other_formats import ADAPTER_CONFIG, ADAPTER_WEIGHTS, how_to_convert
from a2rl.linux.placing import clone_file
from a2rl.linux.untrusted_folder import (
    NO_LINKS,
    FileChangedError,
    FileId,
    UntrustedFolder,
    copy_open_file,
    file_id,
)
from a2rl.models.caps import (
    MAX_ADAPTER_CONFIG_BYTES,
    MAX_CONFIG_BYTES,
    MAX_FILES,
    MAX_FILES_IN_FOLDER,
    MAX_INDEX_BYTES,
    MAX_JSON_BYTES,
)
from a2rl.models.checkpoint import INDEX, WHOLE, files_that_count, missing_file, parse_index
from a2rl.run.directory import RECEIVED, RECEIVING, is_hole

FREE_DISK_MARGIN = 512 << 20
CHECKED = {
    "config.json": MAX_CONFIG_BYTES,
    "tokenizer.json": MAX_JSON_BYTES,
    INDEX: MAX_INDEX_BYTES,
    ADAPTER_CONFIG: MAX_ADAPTER_CONFIG_BYTES,
}
"""Files that are copied only to be read, and their largest sizes. The copies are called `submitted.<name>`."""
SHOWN_CHARS = 200
ADAPTER_RECIPE = (
    "this is a LoRA adapter; the grader needs the full model. Merge before saving: model = model.merge_and_unload(); "
    "model.save_pretrained(path); tokenizer.save_pretrained(path)"
)
CHANGED = "was changed while it was copied; submit a checkpoint when it is saved whole"
NOT_OPENED = {
    errno.ENOENT: "vanished; submit a checkpoint when it is saved whole",
    errno.EACCES: "cannot be read; give back its permissions (chmod u+r)",
    errno.EMLINK: "has a second name (a hard link); submit real files: copy it instead of linking",
    errno.EINVAL: "is not a regular file; submit real files",
    errno.EAGAIN: "is in use (a lease, or renamed meanwhile); submit a checkpoint when it is saved whole",
}
NOT_REAL = "is a link or cannot be read; submit real files"
_ROOM = threading.Lock()


class Source(NamedTuple):
    """Where a submission is copied from."""

    root: Path
    """The agent's workspace, or the folder with what was frozen of it; the submission must be inside."""
    path: str
    """The folder as the agent named it, absolute or relative to the root."""
    links: Mapping[FileId, int] = NO_LINKS
    """How many further names we ourselves have given to the agent's files."""


class OpenFile(NamedTuple):
    """An open file, and its state when it was opened."""

    name: str
    file: BinaryIO
    status: os.stat_result


class FileCopy(NamedTuple):
    """The copy of a file, open for writing."""

    file: IO[bytes]
    is_clone: bool
    """Whether it already has the bytes of the original."""


class SubmittedFiles(AbstractContextManager["SubmittedFiles"]):
    """The weights, config.json and tokenizer.json in a folder of the agent's workspace.

    Raises:
        InvalidSubmissionError: They are missing, or cannot be copied.
        OSError: This machine cannot open them.
    """

    def __init__(self, source: Source) -> None:
        """Opens the files."""
        self._stack, self._links = ExitStack(), source.links
        try:
            with _open_folder(source) as folder:
                self.files = [self._open(folder, name) for name in _names_that_count(folder, source)]
                """The open files."""
        except BaseException:
            self._stack.close()
            raise

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def are_adapter(self) -> bool:
        """Whether they are a LoRA adapter instead of a whole model."""
        return any(each.name == ADAPTER_CONFIG for each in self.files)

    def check_sizes(self, limit: int, tokenizer: int = MAX_JSON_BYTES) -> None:
        """Checks the sizes of the files. A sparse file counts with its apparent size: its copy may have no holes.

        Args:
            limit: The most bytes that all weights together may have.
            tokenizer: The most bytes that tokenizer.json may have.

        Raises:
            InvalidSubmissionError: The weights or a JSON file are too large, or weights are hardly more than a hole.
        """
        size = sum(each.status.st_size for each in self.files if each.name not in CHECKED)
        if size > limit:
            raise InvalidSubmissionError(
                f"the weights take {size >> 20} MiB, more than the {limit >> 20} MiB allowed for this base model"
            )
        largest = CHECKED | {"tokenizer.json": min(tokenizer, MAX_JSON_BYTES)}
        for each in self.files:
            if each.status.st_size > largest.get(each.name, each.status.st_size):
                raise InvalidSubmissionError(
                    f"{each.name} is not a JSON object of a sensible size; save the model again"
                )
            if _is_sparse(each):
                raise InvalidSubmissionError(f"{each.name} is a sparse file; save the model again")

    def copy(self, target: Path) -> None:
        """Copies the files into a folder, as clones where the file system has them.

        Each byte is read and written at most once. Disk space for all of them is allocated before the first byte is
        copied, so that concurrent copies cannot count on the same space.

        Raises:
            InvalidSubmissionError: The agent changed a file meanwhile.
            InfrastructureError: The disk is full.
            OSError: This machine cannot copy them; a TimeoutError if it is too slow.
        """
        with ExitStack() as stack:
            for each, copy in zip(self.files, self._make_room(stack, target), strict=True):
                _copy(each, copy)

    def _open(self, folder: UntrustedFolder, name: str) -> OpenFile:
        try:
            file = self._stack.enter_context(folder.open(name, self._links))
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise
            why = NOT_OPENED.get(error.errno or 0, NOT_REAL)
            raise InvalidSubmissionError(f"{name} {why}") from error
        return OpenFile(name, file, os.fstat(file.fileno()))

    def _make_room(self, stack: ExitStack, target: Path) -> list[FileCopy]:
        """Opens the copies: clones, or else files with their final sizes allocated."""
        copies: list[FileCopy] = []
        with _ROOM:
            for each in self.files:
                file = stack.enter_context((target / _name_of_copy(each.name)).open("x+b"))
                copies.append(FileCopy(file, clone_file(each.file.fileno(), file.fileno())))
            sizes = [0 if copy.is_clone else each.status.st_size for each, copy in zip(self.files, copies, strict=True)]
            if shutil.disk_usage(target).free < sum(sizes) + FREE_DISK_MARGIN:
                raise InfrastructureError("the grader's disk is full; free some space and submit again")
            for copy, size in zip(copies, sizes, strict=True):
                if size:
                    os.posix_fallocate(copy.file.fileno(), 0, size)
        return copies


def _is_sparse(opened: OpenFile) -> bool:
    """Says whether a clone of a file would be taken for an empty giant, which makes a run unreadable."""
    if not is_hole(opened.status):
        return False
    descriptor = opened.file.fileno()
    os.lseek(descriptor, 0, os.SEEK_HOLE)  # ZFS counts the blocks of a new file only once somebody asks for its holes
    os.lseek(descriptor, 0, os.SEEK_SET)
    return is_hole(os.fstat(descriptor))


def _name_of_copy(name: str) -> str:
    return f"submitted.{name}" if name in CHECKED else name


def _copy(opened: OpenFile, copy: FileCopy) -> None:
    """Fills a copy, if it is no clone, and makes sure that it is the file that was opened."""
    before = opened.status
    try:
        if not copy.is_clone:
            copy_open_file(opened.file, copy.file, before.st_size)
    except FileChangedError as error:
        raise InvalidSubmissionError(f"{opened.name} {CHANGED}") from error
    copy.file.flush()
    os.fsync(copy.file.fileno())
    after = os.fstat(opened.file.fileno())
    if not copy.is_clone and (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise InvalidSubmissionError(f"{opened.name} {CHANGED}")
    if os.fstat(copy.file.fileno()).st_size != before.st_size:
        raise InvalidSubmissionError(f"{opened.name} {CHANGED}")


def _open_folder(source: Source) -> UntrustedFolder:
    if not source.path or "\0" in source.path:
        raise InvalidSubmissionError(
            '"model_path" is empty; give the folder of the checkpoint, for example "output/v1"'
        )
    root = os.path.realpath(source.root)
    path = os.path.relpath(os.path.join(root, source.path), root)  # noqa: PTH118 - hostile text
    shown = source.path[:SHOWN_CHARS]
    if path == "." or path.split("/")[0] == "..":
        raise InvalidSubmissionError(f"{shown} is outside the workspace; save checkpoints below $OUTPUT_DIR")
    with UntrustedFolder.at(Path(root)) as opened:
        try:
            return opened.folder(path)
        except OSError as error:
            if error.errno in MACHINE_ERRORS:
                raise
            raise InvalidSubmissionError(_what_is_wrong(opened, path, shown, error)) from error


def _what_is_wrong(workspace: UntrustedFolder, path: str, shown: str, error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return f"there is no folder {shown}; save the checkpoint first, then submit its folder"
    if error.errno == errno.EACCES:
        return f"{shown} cannot be opened; give back its permissions (chmod -R u+rwX)"
    parts = path.split("/")
    bad = next((part for number, part in enumerate(parts, 1) if not _is_folder(workspace, parts[:number])), path)
    return f"{shown}: {bad[:SHOWN_CHARS]!r} is a link or not a folder; submit the real folder of the checkpoint"


def _is_folder(workspace: UntrustedFolder, parts: Iterable[str]) -> bool:
    try:
        workspace.folder("/".join(parts)).close()
    except OSError:
        return False
    return True


def _names_that_count(folder: UntrustedFolder, source: Source) -> list[str]:
    try:
        names = set(folder.names(MAX_FILES_IN_FOLDER + 1))
    except PermissionError as error:
        raise InvalidSubmissionError("the folder cannot be read; give back its permissions (chmod -R u+rwX)") from error
    if ADAPTER_CONFIG in names or ADAPTER_WEIGHTS in names:
        return _files_of_adapter(names)
    if not any(name.endswith(".safetensors") for name in names):
        raise InvalidSubmissionError(how_to_convert(folder, names, source.path))
    if "config.json" not in names:
        raise InvalidSubmissionError(
            "the folder has no config.json; save the whole model with model.save_pretrained(path)"
        )
    weights = _files_of_index(folder, names, source.links) if INDEX in names else files_that_count(names)
    if odd := [name for name in weights if not name.isprintable()]:
        raise InvalidSubmissionError(f"the name of the file {odd[0]!r} cannot be shown; save the model again")
    if len(names) > MAX_FILES_IN_FOLDER or len(weights) > MAX_FILES:
        raise InvalidSubmissionError(
            f"the folder holds more than {MAX_FILES_IN_FOLDER} files, or more than {MAX_FILES} of weights; save the "
            "model alone, in larger shards"
        )
    return [*weights, *(name for name in CHECKED if name in names)]


def _files_of_adapter(names: set[str]) -> list[str]:
    if whole := [name for name in (WHOLE, INDEX) if name in names]:
        raise InvalidSubmissionError(
            f"the folder holds an adapter and a whole model ({whole[0]}); submit a folder with only one of them"
        )
    if ADAPTER_WEIGHTS not in names:
        raise InvalidSubmissionError(
            f"the folder has no {ADAPTER_WEIGHTS}; save the adapter with model.save_pretrained(path), which writes "
            "safetensors"
        )
    if ADAPTER_CONFIG not in names:
        raise InvalidSubmissionError(f"the folder has no {ADAPTER_CONFIG}; save the adapter with save_pretrained")
    return [ADAPTER_WEIGHTS, ADAPTER_CONFIG, *(["tokenizer.json"] if "tokenizer.json" in names else [])]


def _files_of_index(folder: UntrustedFolder, names: set[str], links: Mapping[FileId, int]) -> list[str]:
    try:
        files = sorted(set(parse_index(folder.read(INDEX, MAX_INDEX_BYTES + 1, links)).values()))
    except OSError as error:
        if error.errno in MACHINE_ERRORS:
            raise
        raise InvalidSubmissionError(f"{INDEX} {NOT_OPENED.get(error.errno or 0, NOT_REAL)}") from error
    missing = [file for file in files if file not in names]
    if WHOLE in names and WHOLE not in files:  # transformers loads this one, whatever the index says
        if not missing:
            raise InvalidSubmissionError(
                f"the folder holds two models: remove {WHOLE}, or {INDEX} with its files, whichever is the older"
            )
        names.remove(INDEX)  # save_pretrained leaves it behind when it replaces shards by one file
        return [WHOLE]
    if missing:
        raise InvalidSubmissionError(missing_file(missing[0]))
    return files


MOST_FROZEN = 8
"""Frozen are at most so many times the bytes that one submission may have."""
STATES = "states.json"
"""The sizes and times of linked files when they were frozen."""
MODIFIED = "was changed after it was submitted; leave a submission as it is until it is graded, or save to a new folder"


class FrozenSources:
    """The frozen sources of one run. Thread-safe."""

    def __init__(self, folder: Path, largest: Callable[[], int] = lambda: sys.maxsize) -> None:
        """Takes over what an earlier service has frozen.

        Args:
            folder: A folder of the grader on the file system of the agent's workspace.
            largest: Returns the most bytes that the weights of a submission may have. Of what waits, a few times as
                much is frozen: the agent can replace its own files, so its limit on the disk does not count them.
        """
        self._folder, self._largest = folder, largest
        self._lock = threading.Lock()
        self._links: Counter[FileId] = Counter()
        """How many names the agent's files have in the grader's folder."""
        for leftover in folder.glob(f"{RECEIVING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for kept in folder.glob(f"{RECEIVED}*"):
            self._links.update(_files(kept))

    def freeze(self, receipt: int, workspace: Path, model_path: str) -> None:
        """Freezes a submission. What cannot be frozen is copied from the agent's folder, which says what is wrong."""
        making, states = self._folder / f"{RECEIVING}{receipt}", dict[str, list[int]]()
        noted = Counter[FileId]()
        with self._lock:
            try:
                making.mkdir(parents=True)
                with SubmittedFiles(Source(workspace, model_path, self._links)) as submitted:
                    self._check_room(submitted)
                    for each in submitted.files:
                        noted[file_id(each.status)] += 1
                        self._links[file_id(each.status)] += 1  # before it has a second name, which others may see
                        if not _clone(each.file.fileno(), making / each.name):
                            _link(each.file.fileno(), making / each.name)
                            states[each.name] = _state(each.status)
                with (making / STATES).open("w", encoding="utf-8") as file:
                    file.write(json.dumps(states))
                    file.flush()
                    os.fsync(file.fileno())
                making.rename(self._folder / f"{RECEIVED}{receipt}")
                self._links.update(_files(self._folder / f"{RECEIVED}{receipt}"))
            except (A2rlError, OSError, ValueError):
                shutil.rmtree(making, ignore_errors=True)
            self._links.subtract(noted)

    def _check_room(self, submitted: SubmittedFiles) -> None:
        largest, size = self._largest(), sum(each.status.st_size for each in submitted.files)
        frozen = sum(path.stat().st_size for folder in self._folder.glob(f"{RECEIVED}*") for path in folder.iterdir())
        if size > largest + MAX_JSON_BYTES or frozen + size > MOST_FROZEN * largest:
            raise InvalidSubmissionError("too much is frozen")

    def find(self, receipt: int, workspace: Path, model_path: str) -> Source:
        """Returns the frozen source of a submission, or the agent's own folder if it could not be frozen.

        Raises:
            InvalidSubmissionError: The agent has changed a file in place.
        """
        folder = self._folder / f"{RECEIVED}{receipt}"
        try:
            states = json.loads((folder / STATES).read_bytes())
        except (OSError, ValueError):  # it was not frozen, or the machine lost its power just then
            return Source(workspace, model_path, self._links)
        for name, state in states.items():
            if _state((folder / name).stat()) != state:
                raise InvalidSubmissionError(f"{name} {MODIFIED}")
        return Source(self._folder, folder.name, self._links)

    def release(self, receipt: int) -> None:
        """Removes the frozen source of a submission that was copied or refused."""
        folder = self._folder / f"{RECEIVED}{receipt}"
        with self._lock, suppress(OSError):
            files = _files(folder)
            shutil.rmtree(folder, ignore_errors=True)
            self._links.subtract(files)

    def keep_only(self, receipts: Collection[int]) -> None:
        """Removes the frozen sources of all other submissions."""
        for folder in self._folder.glob(f"{RECEIVED}*"):
            if (receipt := int(folder.name.removeprefix(RECEIVED))) not in receipts:
                self.release(receipt)


def _clone(descriptor: int, target: Path) -> bool:
    with target.open("xb") as clone:
        if clone_file(descriptor, clone.fileno()):
            return True
    target.unlink()
    return False


def _link(descriptor: int, target: Path) -> None:
    here = os.open(target.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        # With a descriptor of the folder, Python calls linkat, which can give a further name to an open file.
        os.link(f"/proc/self/fd/{descriptor}", target.name, dst_dir_fd=here, follow_symlinks=True)
    finally:
        os.close(here)


def _state(status: os.stat_result) -> list[int]:
    """Returns what changes when a file is written to."""
    return [status.st_size, status.st_mtime_ns]


def _files(folder: Path) -> list[FileId]:
    return [file_id(path.stat()) for path in folder.iterdir()]
