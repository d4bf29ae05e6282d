"""Keeps the files of a received submission until they are copied, whatever the agent does to its folder meanwhile.

Right after the receipt, each file gets a clone in the grader's folder where the file system has clones, or else a
second name (a hard link). So a copy can wait for others, and it outlives the agent, a crash, and the removal or
replacement of the folder. A clone also survives changes to the file itself; a file with a second name that was changed
in place is refused.

    sources = FrozenSources(run.checkpoints)
    sources.freeze(3, run.workspace, "output/v1")
    source = sources.find(3, run.workspace, "output/v1")
"""

import json
import os
import shutil
import threading
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from a2rl.core.errors import A2rlError, InvalidSubmissionError
from a2rl.grading.submitted_files import Source, SubmittedFiles
from a2rl.linux.placing import clone_file
from a2rl.linux.untrusted_folder import FileId, file_id

PREFIX, MAKING = ".received-", ".receiving-"
STATES = "states.json"
"""The sizes and times of linked files when they were frozen."""
MODIFIED = "was changed after it was submitted; leave a submission as it is until it is graded, or save to a new folder"


class FrozenSources:
    """The frozen sources of one run. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        """Takes over what an earlier service has frozen.

        Args:
            folder: A folder of the grader on the file system of the agent's workspace.
        """
        self._folder = folder
        self._lock = threading.Lock()
        self._links: Counter[FileId] = Counter()
        """How many names the agent's files have in the grader's folder."""
        for leftover in folder.glob(f"{MAKING}*"):
            shutil.rmtree(leftover, ignore_errors=True)
        for kept in folder.glob(f"{PREFIX}*"):
            self._links.update(_files(kept))

    def freeze(self, receipt: int, workspace: Path, model_path: str) -> None:
        """Freezes a submission. What cannot be frozen is copied from the agent's folder, which says what is wrong."""
        making, states = self._folder / f"{MAKING}{receipt}", dict[str, list[int]]()
        noted = Counter[FileId]()
        with self._lock:
            try:
                making.mkdir(parents=True)
                with SubmittedFiles(Source(workspace, model_path, self._links)) as files:
                    for each in files.opened:
                        noted[file_id(each.status)] += 1
                        self._links[file_id(each.status)] += 1  # before it has a second name, which others may see
                        if not _clone(each.file.fileno(), making / each.name):
                            _link(each.file.fileno(), making / each.name)
                            states[each.name] = _state(each.status)
                (making / STATES).write_text(json.dumps(states), encoding="utf-8")
                making.rename(self._folder / f"{PREFIX}{receipt}")
                self._links.update(_files(self._folder / f"{PREFIX}{receipt}"))
            except (A2rlError, OSError, ValueError):
                shutil.rmtree(making, ignore_errors=True)
            self._links.subtract(noted)

    def find(self, receipt: int, workspace: Path, model_path: str) -> Source:
        """Returns the frozen source of a submission, or the agent's own folder if it could not be frozen.

        Raises:
            InvalidSubmissionError: The agent has changed a file in place.
        """
        folder = self._folder / f"{PREFIX}{receipt}"
        if not folder.is_dir():
            return Source(workspace, model_path, self._links)
        for name, state in json.loads((folder / STATES).read_bytes()).items():
            if _state((folder / name).stat()) != state:
                raise InvalidSubmissionError(f"{name} {MODIFIED}")
        return Source(self._folder, folder.name, self._links)

    def release(self, receipt: int) -> None:
        """Removes the frozen source of a submission that was copied or refused."""
        folder = self._folder / f"{PREFIX}{receipt}"
        with self._lock, suppress(OSError):
            files = _files(folder)
            shutil.rmtree(folder, ignore_errors=True)
            self._links.subtract(files)

    def keep_only(self, receipts: Collection[int]) -> None:
        """Removes the frozen sources of all other submissions."""
        for folder in self._folder.glob(f"{PREFIX}*"):
            if (receipt := int(folder.name.removeprefix(PREFIX))) not in receipts:
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
