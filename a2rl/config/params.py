"""`params.yaml`: the settings that experiments vary. The file is validated, and unknown keys are errors."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, NonNegativeFloat, ValidationError

from a2rl.anchor.params import AnchorParams
from a2rl.config.preset import FamilyRule
from a2rl.config.suite import Suite
from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.files import StrictModel, expanded, read_yaml, validation_message
from a2rl.judge.annotator import annotator_names
from a2rl.judge.params import JudgeParams
from a2rl.models.tiny_params import TinyParams
from a2rl.run.rules import GradingLimits
from a2rl.sampling import Backend
from a2rl.sampling.engine_params import DtypeSetting, VllmParams
from a2rl.task_api.contract import Task, Variant


class GradingParams(StrictModel):
    """How checkpoints and base models are graded."""

    backend: Backend = "transformers"
    dtype: DtypeSetting = "auto"
    """The dtype to compute with. `auto`: bfloat16 on a GPU; on a CPU float32, or bfloat16 if the base model
    is stored in 16 bits and the CPU has instructions for that (avx512_bf16 or amx_bf16)."""
    exact: bool = False
    """Whether results must not depend on batching, not even in the last bit. This is slower."""
    split_seed: int = 0
    """Decides which items a sample of `a2rl grade` has. The halves and samples of runs follow from their draw."""
    options: dict[str, dict[str, str]] = Field(default_factory=dict)
    """The options of tasks, by task; `a2rl tasks` lists them."""
    generation: tuple[FamilyRule, ...] = ()
    """How families of models answer, where not greedily within the task's limit. The first rule that fits counts."""
    limits: GradingLimits = GradingLimits()
    vllm: VllmParams = VllmParams()
    """The options of the back end vllm."""


class TokenPrices(StrictModel):
    """What a model costs, in dollars per million tokens."""

    input: NonNegativeFloat
    output: NonNegativeFloat
    cache_read: NonNegativeFloat | None = None
    """Of tokens that were read from a cache; as `input` unless given. The same holds for those written to one."""
    cache_write: NonNegativeFloat | None = None
    cache_write_1h: NonNegativeFloat | None = None
    """Of tokens that stay in the cache for an hour; as `cache_write` unless given."""


def _as_written(suite: Suite) -> Suite:
    if problem := suite.without_effect():
        raise ValueError(problem)
    return suite


class Params(StrictModel):
    """The content of params.yaml."""

    tasks: tuple[str, ...]
    """The tasks that `dvc repro` prepares and grades baselines for."""
    tiny: TinyParams
    grading: GradingParams
    judge: dict[str, str] = Field(default_factory=dict)
    """The judge of each task that needs one, unless a run names another."""
    judges: dict[str, JudgeParams] = Field(default_factory=dict)
    """Judges by name."""
    anchor: AnchorParams = AnchorParams()
    """Who signs the heads of ledgers, and where they are published."""
    prices: dict[str, TokenPrices] = Field(default_factory=dict)
    """Prices of drivers by name, for those that the package genai-prices does not know or that cost something else."""
    suites: dict[str, Annotated[Suite, AfterValidator(_as_written)]]

    def judge_for(self, task: Task, variant: Variant, name: str | None = None) -> JudgeParams | None:
        """Returns the judge for a task's answers; None if the task needs no judge or has its own.

        Args:
            name: A name in `judges` or of an annotator. None: the task's judge.

        Raises:
            UsageError: There is no such judge, or it cannot be used.
        """
        if variant not in task.judged:
            return None
        return self.named_judge(name or self.judge.get(task.id) or task.annotator).resolved(task.annotator)

    def named_judge(self, name: str) -> JudgeParams:
        """Returns a judge by its name in `judges`; the name of an annotator stands for OpenAI with that annotator.

        Raises:
            UsageError: There is no such judge.
        """
        if name in self.judges:
            return self.judges[name].model_copy(update={"name": name})
        if name in annotator_names() or "/" in name:
            return JudgeParams(name=name, annotator=name)
        raise unknown_name("judge", name, (*self.judges, *annotator_names()))

    def knows_judge(self, judge: JudgeParams) -> bool:
        """Says whether these settings name where a run's judge is asked, with which key, and in which format.

        The settings of a run may come from a stranger, who could otherwise have keys sent to any place.
        """
        own, known = (JudgeParams(), *self.judges.values()), set()
        for each in own:
            with suppress(UsageError):
                filled = each.model_copy(update={"model": each.model or judge.model}).resolved(judge.annotator)
                known.add((filled.base_url, filled.api_key_env, filled.serve))
        folders = {str(expanded(each.annotator).resolve()) for each in own if "/" in each.annotator}
        is_known_format = "/" not in judge.annotator or judge.annotator in folders
        return is_known_format and (judge.base_url, judge.api_key_env, judge.serve) in known

    def judge_keys(self) -> tuple[str, ...]:
        """Returns the names of the environment variables with the API keys of all judges."""
        names = {each.api_key_env for each in (JudgeParams(), *self.judges.values())}
        return tuple(sorted(name for name in names if name))


def load_params(root: Path) -> Params:
    """Reads params.yaml.

    Raises:
        UsageError: The file is not valid; the message names the key.
    """
    path = root / "params.yaml"
    try:
        return Params.model_validate(read_yaml(path))
    except ValidationError as error:
        raise UsageError(f"{path}: {validation_message(error)}") from error
