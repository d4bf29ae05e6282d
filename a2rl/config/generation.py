"""Which family of models answers how: rules in params.yaml, resolved once into a run's specification."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from a2rl.core.errors import UsageError
from a2rl.core.files import validation_message
from a2rl.sampling.generation import Generation
from a2rl.task_api.contract import Variant


class FamilyRule(BaseModel):
    """How the models of a family answer some tasks in their full variants.

    A model from the hub is recognised by its id, and a folder by its files, so that it does not matter whether the hub
    can be reached.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    names: tuple[str, ...] = ()
    """Patterns of hub ids, such as `Qwen/Qwen3-8B*`."""
    model_types: tuple[str, ...] = ()
    """Values of `model_type` in a folder's config.json."""
    any_folder: bool = False
    """Whether every folder is of the family."""
    template_has: str = ""
    """A text that the folder's chat template contains."""
    tasks: tuple[str, ...]
    generation: Generation

    def fits(self, model: str) -> bool:
        """Says whether a base model, a hub id or a folder, is of the family."""
        folder = Path(model).expanduser()
        if not folder.is_dir():
            return any(fnmatchcase(model.partition("@")[0], name) for name in self.names)
        model_type = _json(folder / "config.json").get("model_type")
        return self.any_folder or (model_type in self.model_types and self.template_has in _template(folder))


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
