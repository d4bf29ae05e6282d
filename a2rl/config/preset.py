"""Presets: settings that belong together, in one word. `paper` is the setting of the paper and its reference code."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from a2rl.config.generation import FamilyRule, resolved
from a2rl.run.spec import PresetName
from a2rl.sampling.generation import Generation
from a2rl.task_api.contract import Variant


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TaskPreset(_Section):
    """What a preset says of one task."""

    options: dict[str, str] = {}
    judge: str | None = None
    """A name in `judges` of params.yaml, or of an annotator."""
    generation: Generation = Generation()
    """What the task decides regardless of the model."""
    differs: tuple[str, ...] = ()
    """How grading differs from the published figures' whatever the settings are."""


class AgentPreset(_Section):
    """How the published figures' code starts an agent."""

    in_paper: bool = True
    driver: str
    limit_s: int | None = None
    """The agent is ended after this time, however long the budget is."""
    differs: tuple[str, ...] = ()
    """What is different here whatever the settings are."""


class Preset(_Section):
    """Settings for every task. A value that a user gives wins."""

    settings: dict[str, str]
    """Settings of a run, by their keys in a suite."""
    models: tuple[str, ...]
    """The base models, agents, drivers and modes of the published figures."""
    agents: dict[str, AgentPreset]
    drivers: tuple[str, ...]
    modes: tuple[str, ...]
    not_stated: tuple[str, ...]
    """What the paper does not say."""
    differs: tuple[str, ...]
    """What is different here whatever the settings are."""
    generation: tuple[FamilyRule, ...]
    tasks: dict[str, TaskPreset]

    def of_task(self, task: str) -> TaskPreset:
        """Returns what the preset says of a task; nothing for a task that it does not know."""
        return self.tasks.get(task, TaskPreset())

    def fill(self, cell: Mapping[str, Any], given: set[str]) -> dict[str, Any]:
        """Returns the settings of a run with those that were not given taken from the preset.

        Args:
            cell: The settings by their keys.
            given: The keys that a user gave.
        """
        wanted = {key: value for key, value in self.settings.items() if key in cell and key not in given}
        chosen = {**cell, **wanted}
        if "judge" not in given and chosen["variant"] == "full":
            chosen["judge"] = self.of_task(cell["task"]).judge
        return chosen

    def answers(self, given: Generation, task: str, variant: Variant, model: str) -> Generation:
        """Returns how a model answers a task: as given, else as the task has it, else as the model's family does.

        Raises:
            UsageError: The settings contradict each other.
        """
        return resolved(given.over(self.of_task(task).generation), task, variant, model, self.generation)


@cache
def load_preset(name: PresetName) -> Preset | None:
    """Returns a preset; None for `none`."""
    if name == "none":
        return None
    text = Path(__file__).with_name(f"{name}.yaml").read_text(encoding="utf-8")
    return Preset.model_validate(yaml.safe_load(text))
