"""Presets: settings that belong together, in one word. `paper` is the setting of the paper and its reference code.

And which family of models answers how: rules in params.yaml or a preset, resolved once into a run's specification.
"""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field, ValidationError

from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel, expanded, validation_message
from a2rl.run.spec import PresetName
from a2rl.sampling.generation import Generation
from a2rl.task_api.contract import Variant


class FamilyRule(StrictModel):
    """How the models of a family answer some tasks in their full variants.

    A model from the hub is recognised by its id, and a folder by its files, so that it does not matter whether the hub
    can be reached.
    """

    names: tuple[str, ...] = ()
    """Patterns of hub ids, such as `Qwen/Qwen3-8B*`."""
    model_types: tuple[str, ...] = ()
    """Values of `model_type` in a folder's config.json."""
    context: int | None = None
    """Its `max_position_embeddings`; None: any."""
    any_folder: bool = False
    """Whether every folder is of the family."""
    template_has: str = ""
    """A text that the folder's chat template contains."""
    tasks: tuple[str, ...]
    generation: Generation

    def fits(self, model: str) -> bool:
        """Says whether a base model, a hub id or a folder, is of the family."""
        folder = expanded(model)
        if not folder.is_dir():
            return any(fnmatchcase(model.partition("@")[0], name) for name in self.names)
        config = _json(folder / "config.json")
        is_one = config.get("model_type") in self.model_types and self.template_has in _template(folder)
        return self.any_folder or (is_one and self.context in (None, config.get("max_position_embeddings")))


class TaskPreset(StrictModel):
    """What a preset says of one task."""

    options: dict[str, str] = Field(default_factory=dict)
    judge: str | None = None
    """A name in `judges` of params.yaml, or of an annotator."""
    annotator: str | None = None
    """The judge's annotator, where it has a choice."""
    generation: Generation = Generation()
    """What the task decides regardless of the model."""
    differs: tuple[str, ...] = ()
    """How grading differs from the published figures' whatever the settings are."""


class AgentPreset(StrictModel):
    """How the published figures' code starts an agent."""

    in_paper: bool = True
    driver: str
    limit_s: int | None = None
    """The agent is ended after this time, however long the budget is."""
    differs: tuple[str, ...] = ()
    """What is different here whatever the settings are."""


class Preset(StrictModel):
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


def parsed(text: str) -> Generation:
    """Reads settings of the form temperature=0.6,samples=4.

    Raises:
        UsageError: They are not valid.
    """
    try:
        return Generation.model_validate(text)
    except ValidationError as error:
        unknown = any(each["type"] == "extra_forbidden" for each in error.errors())
        known = f" (there are {', '.join(Generation.model_fields)})" if unknown else ""
        raise UsageError(f"--generation: {validation_message(error)}{known}") from error


def resolved(given: Generation, task: str, variant: Variant, model: str, rules: Sequence[FamilyRule]) -> Generation:
    """Returns the settings of a run: those given, otherwise the family's, otherwise the defaults.

    Raises:
        UsageError: They contradict each other.
    """
    fitting = (rule.generation for rule in rules if variant == "full" and task in rule.tasks and rule.fits(model))
    try:
        return given.over(next(fitting, Generation())).complete()
    except ValidationError as error:
        raise UsageError(f"generation of {task}: {validation_message(error)}") from error


def _json(path: Path) -> dict[str, object]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _template(folder: Path) -> str:
    """Returns the text of a folder's chat template; empty if it has none."""
    try:
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return str(_json(folder / "tokenizer_config.json").get("chat_template", ""))
