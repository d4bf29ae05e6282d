"""The files and functions that every task provides in its folder, which is `tasks/<id>/` or anywhere else.

`task.py` defines one `TASK`, which says what the task measures. `prepare.py` prepares its data, with the functions of
`Preparer` below. `grade.py` grades, with the functions of `Grader` below. `description.md` describes the task to the
agent.
"""

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, runtime_checkable

from pydantic import Field, ValidationError

from a2rl.core.errors import A2rlError, InfrastructureError, TaskDefinitionError, UsageError, unknown_name
from a2rl.core.files import StrictModel, validation_message
from a2rl.core.hub import DataSource
from a2rl.core.printable import printable
from a2rl.core.settings import Settings
from a2rl.judge.params import JudgeConfig
from a2rl.sampling import Sampler
from a2rl.scoring.paired import Improvement
from a2rl.scoring.score import Headline, ItemResult

if TYPE_CHECKING:
    from a2rl.judge.client import Asking, Question  # their HTTP library takes a fifth of a second, for every command

Variant = Literal["mini", "full"]
Split = Literal["public", "private", "all"]


EPISODES = 3
"""The level of tasks with episodes, whose prompts only a model's answers make."""
NO_SOURCE = DataSource(repo_id="", revision="", files=(), url="", licence="")


class Limits(StrictModel):
    """Limits of the model's answer to one item."""

    max_new_tokens: int
    max_steps: int = 1
    """Turns of an interactive episode; 1 for static tasks."""


class Option(StrictModel):
    """A setting of a task's grading. Set it with `grading.options` in params.yaml or `a2rl grade --NAME VALUE`."""

    default: str
    choices: tuple[str, ...]
    help: str


Options = Mapping[str, str]
"""Options of a task: their values by name."""


class TaskVariant(StrictModel):
    """One variant of a task: `mini` with small generated data, or `full` with the real data."""

    eval_items: int
    limits: Limits


class Task(StrictModel):
    """The definition of a task; the `TASK` of its `task.py`. It has at least one of the variants."""

    id: str
    """The name of its folder. The catalog replaces it where the task is one of the user's own: see `find_task`."""
    title: str
    level: Literal[1, 2, 3]
    """1: graded by rules, 2: graded by a judge, 3: interactive episodes."""
    metric: str
    source: DataSource = NO_SOURCE
    """Where the real data is, unless the task's folder has it, or makes it."""
    needs_source: str = ""
    """What the folder of `--source` must have, where nothing can be fetched without it."""
    mini: TaskVariant | None = None
    full: TaskVariant | None = None
    options: dict[str, Option] = Field(default_factory=dict)
    judged: tuple[Variant, ...] = ()
    """The variants whose answers are graded by the judge set in params.yaml."""
    serves_agents: bool = False
    """Whether agents have services while they train: see `ServicesModule`."""
    annotator: str = ""
    """How that judge is asked, unless the judge has an annotator that suits the task."""

    def choose(self, given: Options) -> dict[str, str]:
        """Returns all options: the given ones, and the defaults of the others.

        Raises:
            UsageError: There is no such option or choice.
        """
        for name, value in given.items():
            if name not in self.options:
                raise unknown_name(f"option of {self.id}", name, self.options)
            if value not in self.options[name].choices:
                raise unknown_name(f"{name} of {self.id}", value, self.options[name].choices)
        return {name: given.get(name, option.default) for name, option in self.options.items()}

    def variant(self, name: Variant) -> TaskVariant:
        """Returns a variant by its name.

        Raises:
            UsageError: The task does not have it.
        """
        found = self.mini if name == "mini" else self.full
        if found is None:
            other = "full" if name == "mini" else "mini"
            raise UsageError(f"{self.id} has no {name} variant: use `--variant {other}`")
        return found

    def nearest(self, name: Variant) -> Variant:
        """Returns this variant, or the one that the task has instead of `mini`."""
        return "full" if name == "mini" and self.mini is None else name


class Preparer(Protocol):
    """The function that `prepare.py` has."""

    def prepare(self, variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
        """Writes the data for the agent into `visible`, and the data for the grader alone into `hidden`.

        Args:
            variant: `mini` generates its data from a seed; `full` reads the real data.
            source: A local mirror of the real data. None: it is read from the hub.
            visible: An empty folder.
            hidden: An empty folder.
        """


@runtime_checkable
class PretrainingPreparer(Preparer, Protocol):
    """A preparer with text from which the base model `tiny` is pretrained, for the built-in tasks."""

    def pretraining_text(self, seed: int) -> Iterator[str]:
        """Yields documents for pretraining the base model `tiny`. None of them contains an item of the eval set."""


@runtime_checkable
class CanonicalPreparer(Preparer, Protocol):
    """A preparer that knows which words are only names. Without it, equal items are those with the same text."""

    def canonical(self, text: str) -> str:
        """Returns a text of the mini variant in which everything that is only a name is replaced by the same word.

        Two items that differ only in names therefore have the same canonical text. No canonical item of the eval set
        occurs in the canonical training data or pretraining documents.
        """


TWINS = "/twins"


@runtime_checkable
class DrawingPreparer(Preparer, Protocol):
    """A preparer whose mini variant can draw a new eval set for every suite, which nobody can know before.

    Without it, the eval set of the mini variant is the same for everybody, and only its halves are secret.
    """

    def draw(self, seed: str, hidden: Path) -> None:
        """Writes what `prepare` writes into `hidden`, with other items, none of which `prepare` writes.

        Args:
            seed: A secret. The same seed gives the same files, byte for byte; none of them contains it. One that ends
                in TWINS draws the items with which an eval set is compared; those that are in both are not compared.
            hidden: An empty folder.
        """


class Grader(Protocol):
    """The functions of `grade.py`. `ids` is always a part of `item_ids(hidden)`, in the same order."""

    def item_ids(self, hidden: Path) -> list[str]:
        """Returns the ids of the items in the eval set, in the order of the data."""

    def grade(
        self, sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options
    ) -> list[ItemResult]:
        """Has the model answer the items, and returns one result for each id."""

    def score_outputs(
        self, outputs: Mapping[str, str], hidden: Path, ids: Sequence[str], limits: Limits
    ) -> list[ItemResult]:
        """Grades completions that were generated elsewhere. An id without a completion gets the verdict errored.

        Of an episode's turns, only as many count as the limits allow.
        """

    def gold_outputs(self, hidden: Path) -> dict[str, str]:
        """Returns the completions of a perfect model by id. They must score 100."""


class NotForAgentError(Exception):
    """An agent asked its services for something that they must not answer; the text says why."""


class UnaskedError(InfrastructureError):
    """A service has refused an agent's request for now, without asking anybody: it takes nothing from the quota."""


class SearchResults(NamedTuple):
    """What a search of an agent found."""

    hits: list[dict[str, str]]
    """Title, snippet and address of each result."""
    blocked: int = 0
    """Number of results that are left out."""


class AgentServices(Protocol):
    """What a task lets an agent ask while it trains. Thread-safe."""

    def search(self, query: str) -> SearchResults:
        """Searches what the model searches when it is graded.

        Raises:
            NotForAgentError: The query is about the eval set.
            InfrastructureError: The search failed.
        """

    def judge(self, problem: str, answer: str) -> float:
        """Judges an answer to a training question as the grader would; returns 1 for a right one, else 0.

        Raises:
            NotForAgentError: It is no training question.
            InfrastructureError: The judge gave no verdict.
        """


class ServicesModule(Protocol):
    """The function of `services.py`, for a task that offers services to agents."""

    def open_services(
        self,
        variant: Variant,
        visible: Path,
        hidden: Path,
        options: Options,
        settings: Settings,
        judging: JudgeConfig | None,
    ) -> AbstractContextManager[AgentServices]:
        """Opens the services of a run.

        Args:
            visible: The data that the agent has.
            hidden: The grader's data.
            options: Every option of the task.
            settings: The settings of this checkout.
            judging: The judge of the run; None if the variant has its own.

        Raises:
            A2rlError: They cannot be opened.
        """


class TwinsModule(Protocol):
    """The function of `twins.py`, for a task that can make twins of published items."""

    def write_twins(self, hidden: Path, seed: str, target: Path) -> list[str]:
        """Writes items that are like those of the eval set, with other numbers and names.

        Args:
            hidden: The grader's data.
            seed: The same seed gives the same twins.
            target: An empty folder, which becomes like `hidden`.

        Returns:
            The ids of the items that have a twin, in the order of the twins.
        """


@runtime_checkable
class PublishedGrader(Grader, Protocol):
    """A grader whose `score_outputs` also grades items that are published but not in the eval set."""

    def published_ids(self, hidden: Path) -> list[str]:
        """Returns the ids of all items for which completions may be given, in the order of the data.

        They include the eval set.
        """


@runtime_checkable
class KindsGrader(Grader, Protocol):
    """A grader with several kinds of items. Each half of the eval set gets half of the items of each kind."""

    def item_kinds(self, hidden: Path) -> Mapping[str, str]:
        """Returns the kind of each item of the eval set, by id."""


class OwnJudge(NamedTuple):
    """The judge of a task that this machine serves, where none is set in params.yaml."""

    module: str
    """Serves it: see `a2rl.judge.local`."""
    annotator: str


@runtime_checkable
class JudgedGrader(Protocol):
    """The functions of `grade.py` for a task whose answers a judge grades; those of `Grader` with these differences."""

    OWN_JUDGE: OwnJudge

    def grade(
        self, sampler: Sampler, hidden: Path, ids: Sequence[str], limits: Limits, options: Options, asking: "Asking"
    ) -> Callable[[], list[ItemResult]]:
        """Has the model answer the items, and puts the question about each answer as soon as it is there.

        Returns:
            A function that waits for the judge and returns one result for each id. It does not use the sampler.
        """

    def score_outputs(
        self,
        outputs: Mapping[str, str],
        hidden: Path,
        ids: Sequence[str],
        limits: Limits,
        judging: JudgeConfig | None = None,
    ) -> list[ItemResult]:
        """Like `Grader.score_outputs`, with the judge to use; None if the variant has its own."""

    def trial_question(self, annotator: str) -> "Question":
        """Returns a question with which a judge is tried before a run."""


@runtime_checkable
class ServiceGrader(Grader, Protocol):
    """A grader that needs services outside of this machine, besides a judge, such as a search engine."""

    def check_services(self, options: Options, settings: Settings, ask: bool) -> str:
        """Tries the services before a run and returns which ones it uses; empty if these options need none.

        Args:
            options: Every option of the task.
            settings: The settings of this checkout.
            ask: Whether to send a real request, which may cost something; otherwise only keys are checked.

        Raises:
            UsageError: A key is missing or refused.
            InfrastructureError: A service does not answer.
        """


@runtime_checkable
class HeadlineGrader(Grader, Protocol):
    """More functions of `grade.py`, for a task whose score is not the mean of the items' values."""

    def headline(self, items: Sequence[ItemResult], hidden: Path) -> Headline:
        """Returns the score of these items. There is at least one, and none is errored."""

    def improvement(
        self, before: Sequence[ItemResult], after: Sequence[ItemResult], level: float, hidden: Path
    ) -> Improvement | None:
        """Returns the difference in this score between two models, with an interval; None if it cannot be computed.

        The interval must contain zero whenever chance can explain the difference, because it decides the verdict.

        Args:
            before: The results of the first model: at least one item, and none errored.
            after: The results of the second model on the same items in the same order, none errored.
            hidden: The folder of the grader's data.
        """

    def contributions(self, items: Sequence[ItemResult], hidden: Path) -> Sequence[float] | None:
        """Returns what each item adds to the score, so that 100 times their mean is the score.

        It is None if the score cannot be computed. There is at least one item, and none is errored.
        """


@contextmanager
def code_of_task(task_id: str) -> Iterator[None]:
    """Runs code of a task. What the code raises becomes an error that its author understands.

    Raises:
        TaskDefinitionError: The code failed.
        OSError: The machine failed.
    """
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, A2rlError) or (isinstance(error, OSError) and not isinstance(error, FileNotFoundError)):
            raise
        raise TaskDefinitionError(f"the code of the task {task_id} failed: {failure_text(error)}") from error


def failure_text(error: BaseException) -> str:
    """Says what the code of a task raised, and in which line of which of its files."""
    if isinstance(error, A2rlError):
        return str(error)
    place = place_in_task(traceback.walk_tb(error.__traceback__))
    text = validation_message(error) if isinstance(error, ValidationError) else str(error)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        text, place = error.msg, f"{Path(error.filename).name}, line {error.lineno}"
    return printable(f"{place}{place and ': '}{type(error).__name__}: {' '.join(text.split())}")


def place_in_task(frames: Iterable[tuple[FrameType, int]]) -> str:
    """Says which line of which file of a task is the last of these; nothing if none is of a task."""
    place = ""
    for frame, line in frames:
        if str(frame.f_globals.get("__name__")).startswith("tasks."):
            place = f"{Path(frame.f_code.co_filename).name}, line {line}"
    return place
