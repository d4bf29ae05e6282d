"""A run and its directory: `runs/<run_id>/`, where every stage reads and writes.

Only `workspace/` below it can be written by the agent.
"""

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict

from a2rl.budget import Clock
from a2rl.errors import UsageError
from a2rl.files import read_model, write_model
from a2rl.grading.limits import DEFAULT_SUBMISSIONS, GradingLimits
from a2rl.isolation.strength import Sandbox
from a2rl.judge.params import JudgeParams
from a2rl.ledger import Ledger
from a2rl.sampling import Backend
from a2rl.score import Statistics
from a2rl.task import Split, Variant

Mode = Literal["free", "sft-only", "rl-only", "multi"]
Protocol = Literal["strict", "paper"]
MODES: tuple[Mode, ...] = get_args(Mode)
PROTOCOLS: tuple[Protocol, ...] = get_args(Protocol)
SANDBOXES: tuple[Sandbox, ...] = get_args(Sandbox)


class RunSpec(BaseModel):
    """All that decides a run; a run can be repeated from it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    run_id: str
    suite: str
    task: str
    variant: Variant
    agent: str
    driver: str | None
    mode: Mode
    model: str
    """tiny, a folder or a hub id, as the user gave it."""
    protocol: Protocol
    seed: int
    budget_s: float
    base_url: str | None = None
    """Where the driver's API is, if not where the agent's definition says."""
    trials: int = 1
    """Attempts in sequence (mode `multi`), each with a summary of those before."""
    max_turns: int | None = None
    max_tokens: int | None = None
    """Of the driver, in and out together."""
    max_cost_usd: float | None = None
    """Counted only where the agent system reports what it costs."""
    max_submissions: int | None
    """None: `a2rl.grading.limits.DEFAULT_SUBMISSIONS`."""
    max_grading_s: float | None = None
    """Seconds of grading that the submissions may cause. None: as many as the budget has."""
    grading_limits: GradingLimits = GradingLimits()
    source: str | None
    """A local mirror of the full variant's data."""
    backend: Backend
    exact: bool
    options: dict[str, str]
    """Choices that the task leaves open."""
    judge: JudgeParams | None = None
    """Who judges the answers, where the task leaves it to params.yaml."""
    split_seed: int
    """Decides, under the strict protocol, which items are public; the agent never sees it."""
    statistics: Statistics = 1
    """Runs from before there was a second edition are read, resumed and checked by the first."""
    grading_port: int
    """0: any free one."""
    sandbox: Sandbox = "none"
    """What is to confine the agent; the setup record says what does. Runs from before there was one had none."""
    git_commit: str
    versions: dict[str, str]
    created_at: str

    @property
    def submissions_quota(self) -> int:
        """How many submissions are taken."""
        return DEFAULT_SUBMISSIONS if self.max_submissions is None else self.max_submissions

    @property
    def grading_quota_s(self) -> float:
        """How many seconds of grading they may cause."""
        return self.budget_s if self.max_grading_s is None else self.max_grading_s

    @property
    def public_split(self) -> Split:
        """The items whose score the agent is told."""
        return "public" if self.protocol == "strict" else "all"

    @property
    def final_split(self) -> Split:
        """The items that decide the result."""
        return "private" if self.protocol == "strict" else "all"


class Record(BaseModel):
    """What a stage leaves behind: one file per stage, written when the stage is done."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: Literal[1] = 1
    seconds: float


R = TypeVar("R", bound=Record)


@dataclass(frozen=True, slots=True)
class RunDir:
    """The paths of one run."""

    root: Path

    @property
    def id(self) -> str:
        return self.root.name

    @property
    def checkout(self) -> Path:
        """The checkout that it lies in."""
        return self.root.parent.parent

    @property
    def spec(self) -> RunSpec:
        try:
            return read_model(self.root / "spec.json", RunSpec)
        except FileNotFoundError as error:
            raise UsageError(f"no run {self.id!r} in {self.root.parent}: `a2rl runs` lists what there is") from error

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.root / "ledger.db")

    @property
    def clock(self) -> Clock:
        return Clock(self.root / "clock.json")

    @property
    def workspace(self) -> Path:
        return self.root / "workspace"

    @property
    def given(self) -> Path:
        """The base model and the data, which the agent reads and cannot change."""
        return self.root / "given"

    @property
    def checkpoints(self) -> Path:
        """The grader's copies, one folder per distinct set of weights."""
        return self.root / "submissions"

    @property
    def grades(self) -> Path:
        """Per-item results, one file per checkpoint and split."""
        return self.root / "grades"

    @property
    def baseline_items(self) -> Path:
        """The base model's results on the whole eval set."""
        return self.grades / "baseline.json"

    def items(self, weights_digest: str, split: Split) -> Path:
        """A checkpoint's results."""
        return self.grades / f"{weights_digest[:16]}-{split}.json"

    @property
    def code(self) -> Path:
        """A git repository with the agent's code as it was at each submission."""
        return self.root / "code"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def trajectory(self) -> Path:
        """What the agent did, in ATIF; of agents that write a transcript."""
        return self.root / "trajectory.json"

    @property
    def names(self) -> Path:
        """The names of users and groups that an agent with a user of its own sees."""
        return self.root / "names"

    @property
    def report(self) -> Path:
        return self.root / "report" / "index.html"

    def checkpoint(self, weights_digest: str) -> Path:
        return self.checkpoints / weights_digest[:16]

    def record_path(self, stage: str) -> Path:
        return self.root / "records" / f"{stage}.json"

    def read(self, stage: str, kind: type[R]) -> R | None:
        """The record of a stage, or None if it has not finished."""
        try:
            return read_model(self.record_path(stage), kind)
        except FileNotFoundError:
            return None

    def need(self, stage: str, kind: type[R]) -> R:
        """The record of an earlier stage, which must have finished."""
        record = self.read(stage, kind)
        if record is None:
            raise UsageError(
                f"run {self.id} has no {stage} record yet: run that stage first, or `a2rl resume {self.id}`"
            )
        return record

    def write(self, stage: str, record: R) -> R:
        write_model(self.record_path(stage), record)
        return record

    @classmethod
    def create(cls, runs: Path, spec: RunSpec) -> "RunDir":
        run = cls(runs / spec.run_id)
        write_model(run.root / "spec.json", spec)
        run.logs.mkdir(exist_ok=True)
        return run

    @classmethod
    def all(cls, runs: Path) -> Iterator["RunDir"]:
        for path in sorted(runs.glob("*/spec.json")):
            yield cls(path.parent)


def new_run_id(task: str, agent: str) -> str:
    """Sorts by time within a task and an agent, and never repeats: gsm8k-scripted-20260412-093015-a1b2."""
    return f"{task}-{agent}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
