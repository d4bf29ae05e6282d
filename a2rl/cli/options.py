"""The options of the commands. Those for the settings of a run are generated from `a2rl.run.spec.RunSettings`."""

import inspect
import math
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from annotated_types import Ge, Gt, Le
from pydantic import BaseModel

from a2rl.config.plan import check_source
from a2rl.config.suite import SETTINGS, SUITE_SETTINGS, Function, Setting, with_parameters
from a2rl.core.errors import unknown_name
from a2rl.run.budget import format_duration
from a2rl.run.spec import RunSettings
from a2rl.task_api import contract

RunId = Annotated[str, typer.Argument(help="Run id.")]
RunIds = Annotated[list[str], typer.Argument(help="Run ids.")]
Submission = Annotated[
    int | None, typer.Argument(min=1, help="Number of a submission; unless given, the one that counts.")
]
Task = Annotated[str, typer.Option(help=RunSettings.model_fields["task"].description)]
Variant = Annotated[str, typer.Option(help="mini: small generated data. full: the real data.")]
Source = Annotated[
    Path | None, typer.Option(help="Folder with a copy of the full variant's data, to use instead of the hub.")
]
Split = Annotated[str, typer.Option(help="public, private or all.")]
Judge = Annotated[str | None, typer.Option(help=RunSettings.model_fields["judge"].description)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on the last line.")]


def one_of(kind: str, name: str, known: Any) -> Any:
    """Checks that a name is one of those of a Literal and returns it.

    Raises:
        UsageError: It is not.
    """
    if name not in get_args(known):
        raise unknown_name(kind, name, get_args(known))
    return name


def nearest_variant(task: contract.Task, name: str, source: Path | None) -> contract.Variant:
    """Returns the variant of a task with this name, or else the one that there is.

    Raises:
        UsageError: No variant has this name, or it takes no copy of data, and there is a `source`.
    """
    variant = task.nearest(one_of("variant", name, contract.Variant))
    check_source(source, variant)
    return variant


def finite(value: float) -> float:
    """Refuses inf as the value of an option.

    Raises:
        typer.BadParameter: It is not finite.
    """
    if not math.isfinite(value):
        raise typer.BadParameter("it must be a finite number")
    return value


def with_settings(command: Function) -> Function:
    """Replaces `**given` in a command's signature by one option for each setting of a run, with its default."""
    return with_parameters(command, [_single(setting) for setting in SETTINGS])


def with_replaced_settings(command: Function) -> Function:
    """Replaces `**given` in a command's signature by one option for each setting of a suite.

    The command gets the values by the suite's keys. An option that is not given is None.
    """
    return with_parameters(command, [_replacement(setting) for setting in SUITE_SETTINGS])


def _single(setting: Setting) -> inspect.Parameter:
    """Returns an option that shows its default. Without it the value is None, so that a preset can decide."""
    default = setting.field.default
    if setting.is_duration and default is not None:
        default = format_duration(default)
    shown = "" if default in (None, "") or isinstance(default, BaseModel) else f" [default: {default}]"
    return _keyword(setting.key, _input_type(setting), _option(setting, shown))


def _replacement(setting: Setting) -> inspect.Parameter:
    kind: Any = _input_type(setting)
    if setting.is_axis and not setting.is_switch:
        kind = list[kind]
    return _keyword(setting.suite_key, kind, _option(setting))


def _keyword(name: str, kind: Any, option: Any) -> inspect.Parameter:
    """Returns a parameter that is None unless the option is given."""
    annotation = Annotated[kind | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=None)


def _option(setting: Setting, more: str = "") -> Any:
    bounds = {type(each): each for each in setting.field.metadata}
    help_text = setting.field.description or ""
    if Gt in bounds and not setting.is_duration:
        help_text += f" More than {bounds[Gt].gt}."  # Typer has no open ranges
    metavar = None
    if setting.choices:
        metavar = "|".join(setting.choices)
    elif setting.is_duration:
        metavar = "duration"
    name = setting.key.replace("_", "-")
    return typer.Option(
        f"--{name}/--no-{name}" if setting.is_switch else f"--{name}",
        help=help_text + more,
        min=bounds[Ge].ge if Ge in bounds else None,
        max=bounds[Le].le if Le in bounds else None,
        metavar=metavar,
    )


def _input_type(setting: Setting) -> Any:
    """Returns the type to which the user's text is converted.

    Choices are checked later; an error then suggests the most similar choice.
    """
    if setting.is_duration or setting.choices:
        return str
    if isinstance(setting.field.default, BaseModel):
        return str
    types = [each for each in get_args(setting.field.annotation) if each is not type(None)]
    return types[0] if types else setting.field.annotation
