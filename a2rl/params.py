"""`params.yaml`: what an experiment varies, validated; unknown keys are refused."""

from pathlib import Path

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from a2rl.budget import parse_duration
from a2rl.errors import UsageError
from a2rl.files import explain
from a2rl.grading.limits import GradingLimits
from a2rl.isolation.strength import Sandbox
from a2rl.judge.params import JudgeParams
from a2rl.run import Mode, Protocol
from a2rl.sampling import Backend
from a2rl.task import Task, Variant
from a2rl.tiny import TinyParams


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GradingParams(_Section):
    """How checkpoints and base models are graded."""

    backend: Backend = "transformers"
    exact: bool = False
    """Results that do not depend on batching to the last bit; slower."""
    split_seed: int = 0
    """Decides which half of an eval set is public under the strict protocol."""
    options: dict[str, dict[str, str]] = {}
    """Choices that tasks leave open, by task; `a2rl tasks` lists them."""
    limits: GradingLimits = GradingLimits()


class Grid(_Section):
    """A suite: every task with every agent and every seed."""

    tasks: tuple[str, ...]
    agents: tuple[str, ...]
    seeds: tuple[int, ...] = (0,)
    variant: Variant = "mini"
    model: str = "tiny"
    mode: Mode = "free"
    protocol: Protocol = "strict"
    budget: str = "2m"
    budgets: dict[str, str] = {}
    """Of single tasks, where `budget` is not right for them."""
    driver: str | None = None
    base_url: str | None = Field(default=None, pattern="^https?://[^/ ]+")
    """Where the driver's API is, instead of where the agent's definition says."""
    trials: int | None = Field(default=None, ge=1)
    """Attempts in sequence in mode `multi`; three unless given."""
    max_turns: int | None = Field(default=None, ge=1)
    max_tokens: int | None = Field(default=None, ge=1)
    """Of the driver, in and out together."""
    max_cost_usd: float | None = Field(default=None, gt=0)
    source: str | None = None
    max_submissions: int | None = Field(default=None, ge=1)
    """100 unless given."""
    max_grading: str | None = None
    """Time of grading that the submissions of a run may cause, such as 30m; as long as the budget unless given."""
    concurrency: int = Field(default=1, ge=1)
    """Runs side by side."""
    grading_port: int = 0
    sandbox: Sandbox = "landlock"
    """What confines the agents. landlock needs nothing, bwrap (bubblewrap) an installation; none is for debugging."""

    def budget_s(self, task: str) -> float:
        """Raises UsageError: it is no duration."""
        return parse_duration(self.budgets.get(task, self.budget))

    def max_grading_s(self) -> float | None:
        """Raises UsageError: it is no duration."""
        return parse_duration(self.max_grading) if self.max_grading else None


class Params(_Section):
    """The whole file."""

    tasks: tuple[str, ...]
    """The tasks that `dvc repro` prepares and grades baselines for."""
    tiny: TinyParams
    grading: GradingParams
    judge: JudgeParams = JudgeParams()
    judges: dict[str, JudgeParams] = {}
    """Of single tasks, where `judge` is not right for them."""
    suites: dict[str, Grid]

    def judge_for(self, task: Task, variant: Variant) -> JudgeParams | None:
        """The judge of a task's answers; None where none is asked, or where the task brings its own."""
        return self.judges.get(task.id, self.judge) if variant in task.judged else None

    def judge_keys(self) -> tuple[str, ...]:
        """The environment variables with the API keys of all judges."""
        names = {each.api_key_env for each in (self.judge, *self.judges.values())}
        return tuple(sorted(name for name in names if name))


def load_params(root: Path) -> Params:
    """Reads params.yaml.

    Raises:
        UsageError: the file is not valid; the message names the key.
    """
    path = root / "params.yaml"
    try:
        return Params.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error
    except ValidationError as error:
        raise UsageError(f"{path}: {explain(error)}") from error
