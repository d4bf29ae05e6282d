"""The records of the stages: what each stage writes for later stages, the tracker and the report."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from a2rl.agent_systems.transcripts.ending import Responsible
from a2rl.core.errors import A2rlError
from a2rl.core.files import FrozenModel, StrictModel, digest_of
from a2rl.judge.account import Account, Use
from a2rl.linux.gpus import Hardware
from a2rl.run.directory import Record, RunDir
from a2rl.sampling.engine_params import EngineMemory
from a2rl.sandbox.isolation import Isolation
from a2rl.scoring.means import Interval
from a2rl.scoring.paired import Improvement
from a2rl.scoring.score import TaskScore

STAGES = ("setup", "baseline", "execute", "grade", "validity", "report")
"""The stages of a run, in order. Each writes a record of its name."""

RunVerdict = Literal["improved", "inconclusive", "worse", "no submission", "failed"]
VERDICTS: dict[RunVerdict, str] = {
    "improved": "the model improved by more than chance explains",
    "inconclusive": "the difference from the base model is within evaluation noise",
    "worse": "the model got worse by more than chance explains",
    "no submission": "no valid submission was made",
    "failed": "the run failed",
}


def verdict_of(score: TaskScore, difference: Improvement | None) -> RunVerdict:
    """Returns the verdict: does the interval of the paired difference exclude zero? See a2rl/scoring/paired.py."""
    if score.score is None or difference is None:
        return "failed"
    if difference.ci.low > 0:
        return "improved"
    return "worse" if difference.ci.high < 0 else "inconclusive"


class SetupRecord(Record):
    """The result of resolving the run's settings on this machine."""

    base_model: Path
    """The folder. Like `hidden`, it is relative to the checkout if it is inside; a2rl/run/inputs.py finds both."""
    model_digest: str
    small_files_digest: str
    """Of the configuration and tokenizer in it."""
    complete_config: dict[str, Any] = Field(default_factory=dict)
    """The base model's configuration with all defaults, as transformers completes it; empty if it is not known."""
    base_not_tried: str = ""
    """Why setup could not try whether trained copies of the base model can be submitted; empty if it did."""
    hidden: Path
    data_digest: str
    eval_items: int
    """The number of items in the eval set, of which a run may grade a sample."""
    data_about: dict[str, str] = Field(default_factory=dict)
    """The task's description of its data."""
    sandbox: Isolation
    """The confinement, for reports. It is decided again at each start, and is never weaker than this."""
    hardware: Hardware | None = None
    """What the run computed on when it began."""
    memory: EngineMemory | None = None
    """What an engine of vLLM takes of a GPU's memory, and its context: the same for the base model and all submissions.
    None with another back end."""
    agent_python: str = ""
    """The Python with which the agent trained, with its main packages."""
    workspace_made_anew: bool = False
    """Whether the agent had worked in another workspace before, of which only its code is here."""

    def is_base_model(self, weights_digest: str) -> bool:
        """Says whether these are the weights of the base model, without reading any weights."""
        return digest_of([weights_digest, self.small_files_digest]) == self.model_digest


class BaselineRecord(Record):
    """The base model's scores; its per-item results are in the run's grades/baseline.json."""

    key: str
    """Digest of everything that the scores depend on."""
    reused: bool
    """Whether the scores come from an earlier grading with the same key."""
    graded_s: float | None = None
    """Seconds that grading these items took, or their share of it; None if it was not recorded."""
    total: TaskScore
    public: TaskScore
    private: TaskScore


def sum_known(values: Iterable[float | None]) -> float | None:
    """Returns the sum of values; None if one of them is unknown: the sum of the others would be too small."""
    found = list(values)
    known = [value for value in found if value is not None]
    return math.fsum(known) if len(known) == len(found) else None


class Usage(FrozenModel):
    """What an agent's transcripts show of its work, over all attempts."""

    # Not strict: earlier records have tokens and costs here, too.
    steps: int
    tool_calls: int
    unreadable: int
    """Lines of the transcript that could not be understood."""


class ModelUse(StrictModel):
    """The use of one model."""

    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float | None = None
    """None if the price of a request is unknown."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def plus(self, other: "ModelUse") -> "ModelUse":
        """Returns the use of both."""
        return ModelUse(
            requests=self.requests + other.requests,
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cost_usd=sum_known([self.cost_usd, other.cost_usd]),
        )


class LlmUse(StrictModel):
    """An agent's requests to its LLM, as measured by the relay, not as reported by the agent."""

    requests: int = 0
    refused: int = 0
    failed: int = 0
    """Requests that the provider answered with an error."""
    estimated: int = 0
    """Requests whose tokens had to be estimated."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    """Those of `prompt_tokens` that the provider read from its cache."""
    cost_usd: float | None = None
    """What the answers cost at list prices; None if the price of one of them is unknown."""
    models: dict[str, ModelUse] = Field(default_factory=dict)
    """The use of each model that has answered, by the requested name."""
    answered: dict[str, str] = Field(default_factory=dict)
    """Requested model -> model that answered, where they differ."""
    server_tools: dict[str, int] = Field(default_factory=dict)
    """How many requests asked for each of the provider's own tools or sources, which the sandbox does not confine. They
    were refused, unless the rules allow it."""

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def other_models(self, driver: str | None) -> dict[str, ModelUse]:
        """Returns the use of all models except the driver."""
        return {name: use for name, use in self.models.items() if name != driver}


class ExecuteRecord(Record):
    """The outcome of the agent's work."""

    ended: Literal["finished", "crashed", "deadline", "quota", "unavailable"]
    exit_code: int | None
    why: str = ""
    """The reason in plain words, if it is known, such as a rejected API key or a program that is not installed."""
    responsible: Responsible = "unknown"
    """Who is responsible for it: a result that the API or this machine cut short is no measure of the agent."""
    usage: Usage | None = None
    """The work as the agent system reports it; None for agents without a transcript."""
    seen: LlmUse | None = None
    """The use of the driver as measured by the relay; None if it could not be measured."""
    tokens_at: dict[int, int] = Field(default_factory=dict)
    """The tokens that were used when each submission was accepted, by its number; none without requests."""
    elapsed_s: float
    waited_s: float
    """The part of `elapsed_s` spent waiting for grades."""
    refunded_s: float = 0.0
    """The part of `waited_s` that was refunded, because the agent did not compute."""
    stood_still_s: float = 0.0
    """The part of `elapsed_s` in which the pipeline and the agent stood still; it was given back."""
    attempts: int
    submissions: int
    refused: int

    @property
    def charged_s(self) -> float:
        """The time that counted for the budget."""
        return self.elapsed_s - self.refunded_s - self.stood_still_s

    @property
    def cost_usd(self) -> float | None:
        """What the driver cost; None if that is unknown."""
        return self.seen.cost_usd if self.seen else None


class JudgeRecord(StrictModel):
    """The judge of a run."""

    name: str
    model: str
    annotator: str
    use: Use
    """All requests of the run; answers from the cache are none."""
    for_agent: Use = Use()
    """Those among them that the agent made for its own rollouts."""
    searches: int = 0
    """The agent's searches."""
    limit_usd: float | None = None

    def __str__(self) -> str:
        limit = f" of ${self.limit_usd:.2f}" if self.limit_usd is not None else ""
        asked = f"{self.use.requests:,} requests, ${self.use.dollars:.2f}{limit}"
        return f"judge {self.name or self.model} ({self.annotator}): {asked}"


class GradeRecord(Record):
    """The result of the run."""

    verdict: RunVerdict
    reason: str = ""
    """Why there is no result; empty if there is one."""
    failed_stage: str | None = None
    """The stage that could not be finished, if that is the reason; `a2rl resume` repeats it."""
    submission_id: int | None = None
    """The submission that counts: the one with the best public score, and the earliest of equals."""
    public: TaskScore | None = None
    """Its score as the agent saw it."""
    final: TaskScore | None = None
    """Its score on the private split (strict), or the same as `public` (paper)."""
    baseline: TaskScore
    """The base model's score on the same items as `final`."""
    improvement: float | None = None
    """Points above the baseline in the task's score, on the same items."""
    improvement_ci: Interval | None = None
    """Its 95% interval; corrected for the choice if the result was chosen on the same items."""
    chosen_among: int = 1
    """How many distinct checkpoints the result was chosen among on these items; 1 under the strict protocol."""
    cross_fitted: float | None = None
    """The improvement without the bias of choosing the best on the items that measure it; see a2rl/scoring/paired.py.
    None if there was no such choice."""
    judge: JudgeRecord | None = None
    """What the judge was asked and what it cost; None for a task without one."""

    @property
    def is_final(self) -> bool:
        """Whether this is the result, for good: only a stage that could not be finished is repeated."""
        return self.failed_stage is None


class ReportRecord(Record):
    """The location of the report."""

    path: Path


def judge_record(run: RunDir) -> JudgeRecord | None:
    """Returns the record of a run's judge; None if the run has no judge or its account cannot be read."""
    spec, account = run.spec, Account(run.account)
    if spec.judge is None:
        return None
    try:
        use, for_agent, searches = account.paid(), account.use("agent's judgement"), account.use("agent's search")
    except A2rlError:
        return None
    return JudgeRecord(
        name=spec.judge.name,
        model=spec.judge.model,
        annotator=spec.judge.annotator,
        use=use,
        for_agent=for_agent,
        searches=searches.requests,
        limit_usd=spec.max_judge_usd,
    )
