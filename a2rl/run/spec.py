"""The settings of a run, each declared once, and its specification, which is written before the run begins."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel
from a2rl.judge.params import JudgeParams
from a2rl.run.budget import parse_duration
from a2rl.run.draw import Draw
from a2rl.run.rules import DEFAULT_SUBMISSIONS, GradingLimits
from a2rl.sampling import Backend
from a2rl.sampling.engine_params import DtypeSetting, VllmParams
from a2rl.sampling.generation import Generation
from a2rl.sandbox.isolation import SandboxKind
from a2rl.scoring.score import STATISTICS, Statistics
from a2rl.task_api.contract import Split, Variant

Mode = Literal["free", "sft-only", "rl-only", "rl-oriented", "multi"]
PresetName = Literal["none", "paper"]
Protocol = Literal["strict", "paper"]
Keep = Literal["all", "best", "none"]
DEFAULT_TRIALS = 3
"""Attempts of mode `multi` in a run that does not set them."""


def _to_seconds(value: object) -> object:
    if isinstance(value, float | int):
        return value
    try:
        return parse_duration(str(value))
    except UsageError as error:
        raise PydanticCustomError("duration", "{problem}", {"problem": str(error)}) from error


Seconds = Annotated[float, BeforeValidator(_to_seconds), Field(gt=0)]
"""Seconds, also read from a duration such as `12h`."""


class RunSettings(StrictModel):
    """What a user chooses for a run. A setting is declared here and nowhere else.

    These fields are the options of `a2rl run` and `a2rl bench`, the parameters of the Prefect flow, the keys of the
    suites in params.yaml and the keys of spec.json, in this order and with these texts, bounds and defaults. To add a
    setting, add a field with a default and use it as `run.spec.NAME`.

    The name of a duration ends in `_s` (seconds) here and in spec.json. Users leave that out: `--budget 12h`.
    """

    task: str = Field(
        default="gsm8k",
        description="Task id (`a2rl tasks`), the folder of your own task, `reasoning_gym:NAME`, or "
        "`inspect:PACKAGE/NAME`.",
    )
    agent: str = Field(default="scripted", description="Agent id (`a2rl agents`), or the path of a start script.")
    preset: PresetName = Field(
        default="none",
        description="paper: the setting of the paper and its reference code, for everything that is not given.",
    )
    variant: Variant = Field(default="mini", description="mini: small generated data. full: the real data.")
    model: str = Field(
        default="tiny", description="Base model: a name (`a2rl models`), a folder, a GGUF file, or a hub id."
    )
    limit: int | None = Field(
        default=None, ge=1, description="Grade only this many items, for the base model and all submissions."
    )
    generation: Generation = Field(
        default=Generation(),
        description="How models answer, such as temperature=0.6,top_p=0.95,samples=4; the rest as params.yaml says.",
    )
    budget_s: Seconds = Field(default=120.0, description="Time that the agent has: 90s, 30m, 12h, 1h30m.")
    mode: Mode = Field(
        default="free", description="What the agent is asked for. multi: several attempts, one after the other."
    )
    protocol: Protocol = Field(
        default="strict", description="strict: the result comes from held-out items. paper: best of all submissions."
    )
    seed: int = Field(default=0, ge=0, le=(1 << 32) - 1, description="Seed that the agent is told.")
    steps: int | None = Field(
        default=None,
        ge=1,
        description="Training steps of the scripted agent instead of as many as fit; the seed then decides the result.",
    )
    seed_file: str | None = Field(
        default=None,
        description="File with the secret seed of the eval set, to repeat a draw: the spec.json of an earlier run.",
    )
    driver: str | None = Field(
        default=None, description="LLM that drives the agent; unless given, the one in the agent's definition."
    )
    base_url: str | None = Field(
        default=None,
        pattern="^https?://[^/ ]+",
        description="URL of the driver's API, if it is not the provider's: a proxy, a local server, `a2rl driver`.",
    )
    trials: int | None = Field(
        default=None, ge=1, description=f"Number of attempts in mode multi; {DEFAULT_TRIALS} unless given."
    )
    max_turns: int | None = Field(
        default=None, ge=1, description="Limit on the driver's turns, for agents that support one."
    )
    max_tokens: int | None = Field(default=None, ge=1, description="Limit on the driver's tokens, in and out together.")
    max_cost_usd: float | None = Field(
        default=None, gt=0, description="Limit on the cost of the driver's tokens at list prices, in dollars."
    )
    source: str | None = Field(
        default=None, description="Folder with a copy of the full variant's data, to use instead of the hub."
    )
    max_submissions: int | None = Field(
        default=None, ge=1, description=f"Limit on submissions; {DEFAULT_SUBMISSIONS} unless given."
    )
    max_grading_s: Seconds | None = Field(
        default=None, description="Limit on the time that grading takes; as long as the budget unless given."
    )
    keep: Keep = Field(
        default="all", description="Checkpoints that stay on the disk after grading: all, the best one, or none."
    )
    judge: str | None = Field(
        default=None,
        description="Judge, for tasks that need one: a name in `judges` of params.yaml, or of an annotator.",
    )
    max_judge_usd: float | None = Field(
        default=None, gt=0, description="Limit on what the run pays for its judge, in dollars."
    )
    max_searches: int = Field(
        default=20_000, ge=0, description="Searches that the agent may make for its own rollouts (deepsearchqa)."
    )
    max_judgements: int = Field(
        default=10_000, ge=0, description="Answers of its own rollouts that the agent may have judged (deepsearchqa)."
    )
    grading_port: int = Field(default=0, ge=0, le=65535, description="Port of the grading API; 0: any free port.")
    merge_adapters: bool = Field(
        default=True, description="Whether the grader merges a submitted LoRA adapter; otherwise it is refused."
    )
    sandbox: SandboxKind = Field(default="landlock", description="What confines the agent; none is for debugging.")
    python: str | None = Field(
        default=None,
        description="Python environment for the agent's training: an interpreter, or a folder with bin/python.",
    )
    read: str = Field(default="", description="Folders of this machine that the agent may read: `/opt/models:/data`.")
    hosts: str = Field(
        default="", description="Hosts that the agent may reach, such as a package mirror: `a.example, b.example:8080`."
    )
    env: str = Field(
        default="", description="Variables for the agent, without secrets: `NAME=value OTHER='two words'`."
    )
    gpus_per_run: int | None = Field(
        default=None,
        ge=0,
        description="GPUs for a run's agent alone; unless given, an even share of all (none with tiny).",
    )
    grading_gpus: int = Field(
        default=0,
        ge=0,
        description="Number of extra GPUs that only grade. Runs share them, and no agent sees them. "
        "0: the agent's GPUs grade, too.",
    )
    backend: Backend | None = Field(
        default=None, description="What grades: transformers or vllm; unless given, the one in params.yaml."
    )
    dtype: DtypeSetting | None = Field(
        default=None, description="Number format in which models are graded; unless given, the one in params.yaml."
    )


class RunSpec(RunSettings):
    """All that decides a run: `spec.json`. A run can be repeated from it."""

    schema_version: Literal[1] = 1
    run_id: str
    suite: str
    launch: str = ""
    """The id that all runs have in common that were started together."""
    side_by_side: int = Field(default=1, ge=1, le=1 << 16)
    """How many of them are at work at a time, which share a machine's cores and GPUs."""
    seed: int  # runs of earlier versions may have any
    trials: int = 1
    grading_limits: GradingLimits = GradingLimits()
    backend: Backend
    vllm: VllmParams = VllmParams()
    exact: bool
    options: dict[str, str]
    """Choices that the task leaves open."""
    judge: JudgeParams | None = None  # type: ignore[assignment] # in a spec, the name is resolved
    """Who judges the answers, where the task leaves that to params.yaml."""
    split_seed: int
    """Decides, under the strict protocol, which items are public; the agent never sees it. It follows from the draw."""
    draw: Draw | None = None
    """The secret that decides items and halves. Every planned run has one; without, nothing is drawn."""
    statistics: Statistics = STATISTICS
    git_commit: str
    versions: dict[str, str]
    created_at: str
    repeats: str = ""
    """The id of the run that this one repeats; empty for others."""

    @property
    def submissions_quota(self) -> int:
        """How many submissions are accepted."""
        return DEFAULT_SUBMISSIONS if self.max_submissions is None else self.max_submissions

    @property
    def grading_quota_s(self) -> float:
        """How many seconds of grading they may cause."""
        return self.budget_s if self.max_grading_s is None else self.max_grading_s

    @property
    def gpus_for_one(self) -> int:
        """How many GPUs compute one model when it is graded."""
        return self.vllm.tensor_parallel_size if self.backend == "vllm" else 1

    @property
    def public_split(self) -> Split:
        """The items whose score the agent is told."""
        return "public" if self.protocol == "strict" else "all"

    @property
    def final_split(self) -> Split:
        """The items that decide the result."""
        return "private" if self.protocol == "strict" else "all"
