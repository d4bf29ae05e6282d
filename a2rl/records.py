"""The records of the stages: what each leaves behind for the next, for the tracker and for the report."""

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from a2rl.isolation.strength import Strength
from a2rl.paired import Improvement
from a2rl.relay.record import LlmUse
from a2rl.run import Record
from a2rl.score import Interval, TaskScore

RunVerdict = Literal["improved", "inconclusive", "worse", "no submission", "failed", "no score"]
VERDICTS: dict[RunVerdict, str] = {
    "improved": "the model got better, by more than chance explains",
    "inconclusive": "the difference to the base model is within evaluation noise",
    "worse": "the model got worse, by more than chance explains",
    "no submission": "no valid submission was made",
    "failed": "the run failed",
    "no score": "the submissions could not be scored",  # in runs of earlier versions; they fail now
}


def verdict_of(score: TaskScore, difference: Improvement | None) -> RunVerdict:
    """In words: is the difference to the baseline more than chance explains? Its interval says so (a2rl/paired.py)."""
    if score.score is None or difference is None:
        return "failed"
    if difference.ci.low > 0:
        return "improved"
    return "worse" if difference.ci.high < 0 else "inconclusive"


class SetupRecord(Record):
    """What the run's settings resolved to on this machine."""

    base_model: Path
    """A folder; relative to the checkout where it lies in it, as the next one. a2rl/inputs.py finds both."""
    model_digest: str
    hidden: Path
    data_digest: str
    data_about: dict[str, str] = Field(default_factory=dict)
    """What the task says about its data."""
    sandbox: Strength
    """What confines the agent. For reports: at each start it is decided anew, and never less is taken than this."""


class BaselineRecord(Record):
    """The base model's own scores; the items are in the run's grades/baseline.json."""

    key: str
    """Digest of everything that the scores depend on."""
    reused: bool
    """Taken from an earlier grading with the same key."""
    graded_s: float | None = None
    """Seconds that grading the whole eval set took; None where that was not written down."""
    total: TaskScore
    public: TaskScore
    private: TaskScore


class Usage(BaseModel):
    """What an agent system reports of its own work, all attempts together. None: it does not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    steps: int
    tool_calls: int
    prompt_tokens: int | None
    """Of all requests, what came from the provider's cache included."""
    completion_tokens: int | None
    cached_tokens: int | None
    cost_usd: float | None
    unreadable: int
    """Lines of the transcript that could not be understood."""


class ExecuteRecord(Record):
    """How the agent's part went."""

    ended: Literal["finished", "crashed", "deadline", "quota", "unavailable"]
    exit_code: int | None
    why: str = ""
    """In plain words, where that is known: a key that was refused, a program that is not installed."""
    usage: Usage | None = None
    """What the driver was used for, as the agent system says; None for agents without one."""
    seen: LlmUse | None = None
    """The same as it was seen on the way; None where it could not be seen."""
    elapsed_s: float
    waited_s: float
    """Of that, spent waiting for grades."""
    refunded_s: float | None = None
    """Of that, given back: the agent did not compute meanwhile. None in runs of before that was measured."""
    attempts: int
    submissions: int
    refused: int


class GradeRecord(Record):
    """The result of the run."""

    verdict: RunVerdict
    reason: str = ""
    """Why there is no result, where there is none."""
    failed_stage: str | None = None
    """The stage that could not be finished, where that is why; `a2rl resume` tries it again."""
    submission_id: int | None = None
    """The submission that counts: the best by its public score, the earliest of equals."""
    public: TaskScore | None = None
    """Its score as the agent saw it."""
    final: TaskScore | None = None
    """Its score on the private split (strict), or the same as `public` (paper)."""
    baseline: TaskScore
    """The base model's, on the same items as `final`."""
    improvement: float | None = None
    """Points above the baseline, on the same items, of the figure that the task is scored by."""
    improvement_ci: Interval | None = None
    """Its 95% interval; where the result was chosen on the same items, one that holds for all it was chosen among."""
    chosen_among: int = 1
    """Of how many distinct checkpoints the result is the best on these very items; 1 under the strict protocol."""

    @property
    def gain(self) -> float:
        """The improvement, as it counts where runs are taken together: a run without a result gained nothing."""
        return self.improvement or 0.0


class ReportRecord(Record):
    """Where the report is."""

    path: Path
