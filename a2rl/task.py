"""What a task is: a folder `tasks/<id>/` that says what it measures (`task.py`), gets its data (`prepare.py`), grades
(`grade.py`) and tells the agent about it (`description.md`).

`task.py` defines one `TASK`; the other two modules provide the functions of `Preparer` and `Grader` below.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict

from a2rl.errors import unknown
from a2rl.judge.params import Judging
from a2rl.paired import Improvement
from a2rl.sampling import Sampler
from a2rl.score import Headline, ItemResult

Variant = Literal["mini", "full"]
Split = Literal["public", "private", "all"]


class DataSource(BaseModel):
    """Where the full variant's data comes from, pinned."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: Literal["hub", "github"] = "hub"
    """hub: a data set on the Hugging Face hub; github: files of a release."""
    repo_id: str
    revision: str
    """A commit on the hub, the tag of a release on GitHub."""
    files: tuple[str, ...]
    sha256: dict[str, str] = {}
    """Of the files whose bytes are known (hex): another file under that name is refused."""
    url: str
    licence: str


class Limits(BaseModel):
    """What grading one item may take."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_new_tokens: int
    max_steps: int = 1
    """Turns of an interactive episode; 1 for static tasks."""


class Option(BaseModel):
    """A choice that a task's grading leaves open: `grading.options` in params.yaml, `--NAME VALUE` on `a2rl grade`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    default: str
    choices: tuple[str, ...]
    help: str


Options = Mapping[str, str]
"""Every option of a task with its value."""


class TaskVariant(BaseModel):
    """One edition of a task: small generated data or the real thing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    eval_items: int
    limits: Limits


class Task(BaseModel):
    """The definition of a task; the `TASK` of `tasks/<id>/task.py`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    level: Literal[1, 2, 3]
    """1: rule-based, 2: judged, 3: interactive rollouts."""
    metric: str
    source: DataSource
    mini: TaskVariant
    full: TaskVariant
    options: dict[str, Option] = {}
    judged: tuple[Variant, ...] = ()
    """The variants whose answers go to the judge of params.yaml."""

    def choose(self, given: Options) -> dict[str, str]:
        """All options: the given ones, and the defaults of the others.

        Raises:
            UsageError: there is no such option, or no such choice.
        """
        for name, value in given.items():
            if name not in self.options:
                raise unknown(f"option of {self.id}", name, self.options)
            if value not in self.options[name].choices:
                raise unknown(f"{name} of {self.id}", value, self.options[name].choices)
        return {name: given.get(name, option.default) for name, option in self.options.items()}

    def variant(self, name: Variant) -> TaskVariant:
        return self.mini if name == "mini" else self.full


class Preparer(Protocol):
    """The functions of `prepare.py`."""

    def prepare(self, variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
        """Writes what the agent may see into `visible`, what only the grader may see into `hidden`.

        Args:
            variant: mini generates its data from a seed; full reads the real data.
            source: a local mirror of the real data; None reads the hub.
            visible: an empty folder.
            hidden: an empty folder.
        """

    def pretraining_text(self, seed: int) -> Iterator[str]:
        """Documents for the `tiny` base model; none of them holds an eval item."""
        ...

    def canonical(self, text: str) -> str:
        """A text of the mini variant with one and the same word for everything that is only a name: what two items
        share that differ in names only. No canonical item of eval is in the canonical training data or documents."""
        ...


class Grader(Protocol):
    """The functions of `grade.py`. `ids` are always a selection of `item_ids(hidden)`, in order."""

    def item_ids(self, hidden: Path) -> list[str]:
        """The items of the eval set, in the data's order."""
        ...

    def grade(
        self, sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options
    ) -> list[ItemResult]:
        """Lets the model answer the items and judges it: one result per id."""
        ...

    def score_outputs(self, outputs: Mapping[str, str], hidden: Path, ids: Sequence[str]) -> list[ItemResult]:
        """Judges completions that were made elsewhere; an id without one is errored."""
        ...

    def gold_outputs(self, hidden: Path) -> dict[str, str]:
        """The completions of a perfect model, which must score 100."""
        ...


@runtime_checkable
class PublishedGrader(Grader, Protocol):
    """A grader whose `score_outputs` also judges items that are published but not in the eval set."""

    def published_ids(self, hidden: Path) -> list[str]:
        """All items that completions may be given for, the eval set among them, in the data's order."""
        ...


@runtime_checkable
class KindsGrader(Grader, Protocol):
    """A grader whose items are of several kinds, of which either half of the eval set then has as many."""

    def item_kinds(self, hidden: Path) -> Mapping[str, str]:
        """The kind of each item of the eval set, by id."""
        ...


class JudgedGrader(Grader, Protocol):
    """The functions of `grade.py` where the task names variants as `judged`."""

    def grade(
        self,
        sampler: Sampler,
        hidden: Path,
        ids: Sequence[str],
        limits: Limits,
        options: Options,
        judging: Judging | None = None,
    ) -> list[ItemResult]:
        """As Grader's, with the judge to ask; None where the variant brings its own."""
        ...

    def score_outputs(
        self, outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], judging: Judging | None = None
    ) -> list[ItemResult]:
        """As Grader's, with the judge to ask; None where the variant brings its own."""
        ...


@runtime_checkable
class HeadlineGrader(Grader, Protocol):
    """Two more functions of `grade.py`, where the score is another figure than the mean of the items' values."""

    def headline(self, items: Sequence[ItemResult], hidden: Path) -> Headline:
        """The figure for these items, none of which is errored; at least one."""
        ...

    def improvement(
        self, before: Sequence[ItemResult], after: Sequence[ItemResult], level: float, hidden: Path
    ) -> Improvement | None:
        """By how much that figure differs, with an interval of that level: of two models' results on the same items in
        the same order, none errored and at least one. None where it cannot be computed.

        The interval has to hold zero wherever chance may well explain the difference: the verdict is read from it.
        """
        ...
