"""The directory of a run, `runs/<run_id>/`, where every stage reads and writes.

The agent can write only to `workspace/` below it.
"""

import itertools
import os
import re
import secrets
import string
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

from a2rl.core.errors import A2rlError, IntegrityError, UsageError
from a2rl.core.event_log import EventLog
from a2rl.core.files import StrictModel, machine_failure, read_model, write_model
from a2rl.core.settings import ROOT_MARK, Below, Settings
from a2rl.run.budget import Clock
from a2rl.run.events import RunClosed
from a2rl.run.ledger import Ledger, events_of
from a2rl.run.spec import RunSpec
from a2rl.task_api.contract import Split

PIPELINE_LOG, ASIDE_LOG = "pipeline.jsonl", "aside.jsonl"
MAX_LOG_BYTES = 1 << 20
RECEIVED, RECEIVING = ".received-", ".receiving-"
"""How the folders with frozen submissions begin: see a2rl/grading/submitted_files.py."""
RESULT = "grade"
"""The stage whose record is the result of the run: a final one is never replaced."""


class Record(StrictModel):
    """Base of the records: each stage writes one file when it is done."""

    schema_version: Literal[1] = 1
    seconds: float

    @property
    def is_final(self) -> bool:
        """Whether no other record may ever replace this one."""
        return False


R = TypeVar("R", bound=Record)
UNREADABLE = (A2rlError, OSError, ValueError, LookupError)
"""What a run directory raises that is damaged, or that somebody else made. What shows many runs shows the others."""


@dataclass(frozen=True)
class RunDir:
    """The paths and files of one run."""

    root: Path

    @property
    def id(self) -> str:
        """The run id, which is the name of the directory."""
        return self.root.name

    @property
    def checkout(self) -> Path:
        """The root of the checkout that contains the run; that of this process, if `runs/` is a link to elsewhere."""
        beside = self.root.parent.parent
        return beside if (beside / ROOT_MARK).exists() else Settings.load().root

    @cached_property
    def spec(self) -> RunSpec:
        """The settings of the run, read once: `spec.json` does not change after the run was created."""
        return self.load_spec()

    def goes_by(self, names: Collection[str]) -> bool:
        """Says whether one of these names is its id, suite or launch; settings that cannot be read name nothing."""
        with suppress(*UNREADABLE):
            return not {self.id, self.spec.suite, self.spec.launch}.isdisjoint(names)
        return self.id in names

    def check_plain(self) -> None:
        """Checks that there are only files and folders, outside of those that belong to the agent.

        A link, a pipe or a device in a directory that somebody else made would be followed, or waited for.

        Raises:
            IntegrityError: There is something else.
            InfrastructureError: A folder cannot be read.
        """
        not_ours = {self.root / name for name in ("workspace", ".workspace", "given", ".given", "names", ".replaced")}
        waiting = [self.root]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as found:
                    for each in found:
                        if each.is_dir(follow_symlinks=False):
                            if Path(each.path) not in not_ours:
                                waiting.append(Path(each.path))
                        elif not each.is_file(follow_symlinks=False) or (
                            is_hole(each.stat(follow_symlinks=False)) and not self._is_frozen(Path(each.path).parent)
                        ):
                            raise IntegrityError(
                                f"{each.path} is a link, a pipe, a device or an empty giant: no run has that"
                            )
            except FileNotFoundError:
                continue  # the run is going on
            except OSError as error:
                raise machine_failure(f"read run {self.id}", error) from error

    def _is_frozen(self, folder: Path) -> bool:
        """Says whether a folder has the agent's own files, which nothing reads before they are checked."""
        return folder.parent == self.checkpoints and folder.name.startswith((RECEIVED, RECEIVING))

    def load_spec(self) -> RunSpec:
        """Reads `spec.json` from the disk.

        Raises:
            UsageError: There is no such run.
        """
        try:
            return read_model(self.root / "spec.json", RunSpec)
        except FileNotFoundError as error:
            raise UsageError(f"no run {self.id!r} in {self.root.parent}: `a2rl runs` lists what there is") from error

    @property
    def ledger(self) -> Ledger:
        """The ledger of the run; nothing is opened before it is used."""
        return Ledger(self.root / "ledger.db")

    @property
    def clock(self) -> Clock:
        """The budget clock of the run; nothing is read before it is used."""
        return Clock(self.root / "clock.json")

    workspace = Below("workspace")
    """The agent's working folder."""
    given = Below("given")
    """The base model, the training data and the tracer, read-only for the agent."""
    checkpoints = Below("submissions")
    """The grader's copies of submissions, one folder for each distinct set of weights."""
    grades = Below("grades")
    """Per-item results, one file per checkpoint and split."""
    baseline_items = Below("grades", "baseline.json")
    """The base model's per-item results on the whole eval set."""

    def items(self, weights_digest: str, split: Split) -> Path:
        """Returns the file with a checkpoint's per-item results on a split."""
        return self.grades / f"{weights_digest[:16]}-{split}.json"

    code = Below("code")
    """A git repository with the history of the agent's code."""
    logs = Below("logs")
    """The folder of all log files."""
    agent_log = Below("logs", "agent.log")
    """What the agent printed, as visible characters and without secrets."""
    training_log = Below("logs", "training.jsonl")
    """How the agent's Python programs trained, as they noted it themselves: see a2rl/recording/tracer.py."""
    trajectory = Below("trajectory.json")
    """The agent's steps in ATIF; written for agents that leave a transcript."""
    account = Below("account.db")
    """What the run has used of paid services: see a2rl/judge/account.py."""
    names = Below("names")
    """The passwd and group files that an agent with its own user sees."""
    report = Below("report", "index.html")
    """The report page."""

    def checkpoint(self, weights_digest: str) -> Path:
        """Returns the folder of the grader's copy of these weights."""
        return self.checkpoints / weights_digest[:16]

    def record_path(self, stage: str) -> Path:
        """Returns the file of a stage's record."""
        return self.root / "records" / f"{stage}.json"

    def read(self, stage: str, kind: type[R]) -> R | None:
        """Reads the record of a stage; None if the stage has not finished."""
        try:
            return read_model(self.record_path(stage), kind)
        except FileNotFoundError:
            return None

    def need(self, stage: str, kind: type[R]) -> R:
        """Reads the record of an earlier stage.

        Raises:
            UsageError: The stage has not finished.
        """
        record = self.read(stage, kind)
        if record is None:
            raise UsageError(
                f"run {self.id} has no {stage} record yet: run that stage first, or `a2rl resume {self.id}`"
            )
        return record

    def write(self, stage: str, record: R) -> R:
        """Writes the record of a stage and returns it.

        Raises:
            IntegrityError: There is another one that must stay, or one that cannot be read.
            InfrastructureError: The file cannot be written.
        """
        if stage == RESULT and (past := self.read(stage, type(record))) is not None and past.is_final:
            if past == record:
                return record
            raise IntegrityError(f"run {self.id} has its result already, which nothing may replace")
        write_model(self.record_path(stage), record)
        return record

    @classmethod
    def create(cls, runs: Path, spec: RunSpec) -> "RunDir":
        """Creates the directory of a new run and writes its settings."""
        run = cls(runs / spec.run_id)
        write_model(run.root / "spec.json", spec)
        run.logs.mkdir(exist_ok=True)
        return run

    @classmethod
    def all(cls, runs: Path) -> Iterator["RunDir"]:
        """Yields all runs below a folder, sorted by id."""
        for path in sorted(runs.glob("*/spec.json")):
            if path.is_file():
                yield cls(path.parent)


def is_hole(status: os.stat_result) -> bool:
    """Says whether a file claims to be large and has hardly any content: reading it would take hours."""
    return status.st_size > 1 << 30 and status.st_blocks * 512 < status.st_size // 8


_DIGITS = string.digits + string.ascii_lowercase
_NUMBERS = itertools.count(secrets.randbelow(len(_DIGITS) ** 4))
"""Counted from a random start: this process never repeats an id, and others in the same second hardly ever do."""


def new_run_id(task: str, agent: str) -> str:
    """Returns a new, unique id such as gsm8k-scripted-20260412-093015-a1b2; ids of a task and agent sort by time.

    An agent may be named after any folder, so what no id may contain (`RUN_ID` in a2rl/run/names.py) is left out.
    """
    number, base = next(_NUMBERS), len(_DIGITS)
    suffix = "".join(_DIGITS[number // base**place % base] for place in (3, 2, 1, 0))
    of_task, of_agent = (re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:80] for name in (task, agent))
    return f"{of_task}-{of_agent}-{time.strftime('%Y%m%d-%H%M%S')}-{suffix}"


def last_closing(run: RunDir) -> RunClosed | None:
    """Returns the event that closed the run; None if it is not closed, or was resumed since.

    Raises:
        IntegrityError: It was closed again after it had ended for good.
    """
    entries = run.ledger.entries()
    closings = events_of(entries, RunClosed)
    if any(each.is_final for each in closings[:-1]):
        raise IntegrityError("the run was closed again after it had ended")
    if not closings:
        return None
    is_resumed = entries[-1].event != closings[-1] or not run.record_path(RESULT).exists()
    return None if is_resumed and not closings[-1].is_final else closings[-1]


def pipeline_log(run: RunDir) -> EventLog:
    """Returns the log of the pipeline's errors, whether or not they failed the run."""
    return EventLog(run.logs / PIPELINE_LOG, max_bytes=MAX_LOG_BYTES)


def aside_log(run: RunDir) -> EventLog:
    """Returns the log of errors of what may go on after the run was closed, or begins later.

    The manifest has the digest of the other log.
    """
    return EventLog(run.logs / ASIDE_LOG, max_bytes=MAX_LOG_BYTES)
