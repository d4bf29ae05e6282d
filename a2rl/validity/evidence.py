"""What the checks of a run look at: its records, its ledger and its files, each read once."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from a2rl.core.files import read_model
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.inputs import base_model_of
from a2rl.run.ledger import Entry
from a2rl.run.ranking import Ranked, best_among
from a2rl.run.records import BaselineRecord, ExecuteRecord, GradeRecord, SetupRecord
from a2rl.scoring.score import ItemResult
from a2rl.task_api.contract import Split


@dataclass(frozen=True)
class RunEvidence:
    """A run whose stage `grade` is done, or has failed. A record is None if its stage was not finished.

    Everything here that an agent wrote is hostile: names, code, weights. A check treats it as such.
    """

    run: RunDir
    settings: Settings

    @cached_property
    def grade(self) -> GradeRecord:
        """The result that is judged."""
        return self.run.need("grade", GradeRecord)

    @cached_property
    def setup(self) -> SetupRecord | None:
        """How the run was set up."""
        return self.run.read("setup", SetupRecord)

    @cached_property
    def base_model(self) -> Path:
        """The folder of the base model.

        Raises:
            MissingInputError: It is no longer there.
        """
        return base_model_of(self.run)

    @cached_property
    def baseline(self) -> BaselineRecord | None:
        """The base model's scores."""
        return self.run.read("baseline", BaselineRecord)

    @cached_property
    def execute(self) -> ExecuteRecord | None:
        """How the agent ended."""
        return self.run.read("execute", ExecuteRecord)

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The ledger."""
        return tuple(self.run.ledger.entries())

    @cached_property
    def accepted(self) -> tuple[SubmissionAccepted, ...]:
        """The accepted submissions, in order."""
        return tuple(entry.event for entry in self.entries if isinstance(entry.event, SubmissionAccepted))

    @cached_property
    def best(self) -> Ranked | None:
        """The submission that counts; None if there is none."""
        return best_among(self.entries)

    @cached_property
    def baseline_items(self) -> tuple[ItemResult, ...]:
        """The base model's results on all items of the run.

        Raises:
            IntegrityError: The file cannot be read.
            FileNotFoundError: It was not graded.
        """
        return read_model(self.run.baseline_items, GradeResult).items

    def items(self, weights_digest: str, split: Split) -> tuple[ItemResult, ...] | None:
        """Returns a checkpoint's results on a split; None if it was not graded there."""
        path = self.run.items(weights_digest, split)
        return read_model(path, GradeResult).items if path.exists() else None
