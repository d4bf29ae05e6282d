"""Suites: experiments in params.yaml, as axes of settings whose combinations are the runs.

A suite works like a build matrix of GitHub Actions:

    suites:
      my-experiment:
        tasks: [gsm8k, alfworld]
        agents: [claude-code, codex]
        mode: [free, rl-only]
        budget: 12h
        exclude:
          - {agent: codex, mode: rl-only}
        include:
          - {task: alfworld, budget: 24h}
          - {task: webshop, agent: codex}
"""

import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, get_args, get_origin

from pydantic import AfterValidator, AliasChoices, BeforeValidator, Field, ValidationError, create_model
from pydantic.fields import FieldInfo

from a2rl.config.preset import load_preset
from a2rl.core.errors import UsageError, unknown_name
from a2rl.core.files import StrictModel, validation_message
from a2rl.run.spec import RunSettings

PLURAL = {"task": "tasks", "agent": "agents", "seed": "seeds"}
"""Settings that are always axes. Their keys in suites, and the flow's parameters, are in the plural."""
REQUIRED = ("task", "agent")
"""Settings that every suite has to give."""


def _no_switch(value: Any) -> Any:
    if isinstance(value, bool):  # which would count as the number 0 or 1
        raise ValueError("true and false are no values of it")
    return value


class Setting(NamedTuple):
    """A setting under the names that users see."""

    name: str
    """The field's name, as in `RunSettings` and spec.json: `budget_s`."""
    field: FieldInfo
    is_axis: bool = True
    """Whether a suite may give several values."""

    @property
    def key(self) -> str:
        """The name of one value: `budget`, `max_cost_usd`, `task`."""
        return self.name.removesuffix("_s")

    @property
    def suite_key(self) -> str:
        """The name in a suite: `budget`, `max_cost_usd`, `tasks`."""
        return PLURAL.get(self.key, self.key)

    @property
    def is_duration(self) -> bool:
        """Whether users write it as a duration."""
        return self.name.endswith("_s")

    @property
    def is_switch(self) -> bool:
        """Whether it is on or off: `--name` or `--no-name` on the command line."""
        return self.field.annotation is bool

    @property
    def value_type(self) -> Any:
        """The type of one value, with its bounds."""
        no_switch = () if self.is_switch else (BeforeValidator(_no_switch),)
        return Annotated[self.field.annotation, Field(), *self.field.metadata, *no_switch]

    @property
    def choices(self) -> tuple[str, ...]:
        """The values it can have, if they are few; None may be another one."""
        kinds = (self.field.annotation, *get_args(self.field.annotation))
        return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), ())


SETTINGS = tuple(Setting(name, field) for name, field in RunSettings.model_fields.items())


def _as_tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    for value in values:
        if values.count(value) > 1:
            raise ValueError(f"{value} is given more than once")
    return values


def _entries(entries: tuple[StrictModel, ...]) -> tuple[StrictModel, ...]:
    given = tuple(map(_given, entries))
    if {} in given:
        raise ValueError("an entry names no setting")
    _distinct(given)
    return entries


def _values_type(setting: Setting) -> Any:
    """The type of one value or a list of values."""
    value: Any = setting.value_type
    return Annotated[tuple[value, ...], BeforeValidator(_as_tuple), Field(min_length=1), AfterValidator(_distinct)]


def _names(setting: Setting) -> list[str]:
    """The keys of a suite that a setting may have: its own, and the plural."""
    return list(dict.fromkeys((setting.suite_key, setting.key, f"{setting.key}s")))


def _axis(setting: Setting) -> Any:
    """A field of a suite, under the key or its plural."""
    default = ... if setting.name in REQUIRED else (setting.field.default,)
    field = Field(default, validation_alias=AliasChoices(*_names(setting)), description=setting.field.description)
    return _values_type(setting), field


_AXES: dict[str, Any] = {each.suite_key: _axis(each) for each in SETTINGS}
_VALUES: dict[str, Any] = {each.key: (each.value_type, None) for each in SETTINGS}
_LISTS: dict[str, Any] = {each.key: (_values_type(each), ()) for each in SETTINGS}
_Axes: Any = create_model("_Axes", __base__=StrictModel, **_AXES)
Included: Any = create_model("Included", __base__=StrictModel, **_VALUES)
"""An entry of `include`: one value for each of some settings."""
Excluded: Any = create_model("Excluded", __base__=StrictModel, **_LISTS)
"""An entry of `exclude`: one or more values for each of some settings."""


class Suite(_Axes):  # type: ignore[misc] # its other fields are made from RunSettings
    """A suite of params.yaml.

    Every setting of a run (`a2rl run --help`) is a key, with one value or a list of values; `tasks`, `agents` and
    `seeds` are in the plural, and others may be (`modes`). `tasks`, `agents`, `seeds` and every setting with more than
    one value are the axes. The runs are all combinations of the axes' values, changed in this order:

    1. `exclude`: a combination that agrees with all keys of an entry is left out. A list stands for any of its values.
       What the suite does not give has the preset's value.
    2. `include`: an entry is added to every combination that agrees with its values on the axes. Its other values
       replace the suite's. If it agrees with none, it becomes a run of its own, with the suite's first value for every
       setting that it does not name.

    Options of `a2rl bench` and parameters of the flow replace keys of the suite. Entries of `include` that have another
    value than those given are then dropped.
    """

    concurrency: Annotated[int, BeforeValidator(_no_switch)] = Field(
        1, ge=1, description="Number of runs side by side."
    )
    include: Annotated[tuple[Included, ...], AfterValidator(_entries)] = ()
    exclude: Annotated[tuple[Excluded, ...], AfterValidator(_entries)] = ()

    def cells(self) -> list[RunSettings]:
        """The settings of every run."""
        values = {each.key: getattr(self, each.suite_key) for each in SETTINGS}
        axes = {key for key, several in values.items() if key in PLURAL or len(several) > 1}
        given, excluded = self._given_keys, [_given(entry) for entry in self.exclude]
        named = [
            (cell, set(given))
            for cell, run in self._combinations()
            if not any(_is_excluded(run, entry) for entry in excluded)
        ]
        first = {key: several[0] for key, several in values.items()}
        added = []
        for entry in map(_given, self.include):
            matching = [(cell, keys) for cell, keys in named if _agrees(cell, entry, axes)]
            for cell, keys in matching:
                cell.update(entry)
                keys.update(entry)
            if not matching:
                added.append((first | entry, given | entry.keys()))
        return [self._settings(cell, keys) for cell, keys in named + added]

    def without_effect(self) -> str:
        """Says which key of the suite changes none of its runs, as a mistyped one does; nothing if there is none."""
        runs = [run for _, run in self._combinations()] if self.exclude else []
        for entry in map(_given, self.exclude):
            if not any(_is_excluded(run, entry) for run in runs):
                shown = ", ".join(f"{key} {' or '.join(map(str, values))}" for key, values in entry.items())
                return f"exclude leaves out nothing with {shown}: no combination of the suite has that"
        return ""

    @property
    def _given_keys(self) -> set[str]:
        return {each.key for each in SETTINGS if each.suite_key in self.model_fields_set}

    def _combinations(self) -> Iterator[tuple[dict[str, Any], RunSettings]]:
        """Yields all combinations of the axes' values, each with the settings of its run."""
        values = {each.key: getattr(self, each.suite_key) for each in SETTINGS}
        for chosen in itertools.product(*values.values()):
            cell = dict(zip(values, chosen, strict=True))
            yield cell, self._settings(cell, self._given_keys)

    def _settings(self, cell: Mapping[str, Any], given: set[str]) -> RunSettings:
        """Returns the settings of a run; a preset decides what was not given."""
        preset = load_preset(cell["preset"])
        chosen = preset.fill(cell, given) if preset else cell
        return RunSettings(**{each.name: chosen[each.key] for each in SETTINGS})


SUITE_SETTINGS = (*SETTINGS, Setting("concurrency", Suite.model_fields["concurrency"], is_axis=False))
"""What `a2rl bench` and the flow can replace in a suite."""


Function = TypeVar("Function", bound=Callable[..., Any])


def with_parameters(function: Function, added: Iterable[inspect.Parameter]) -> Function:
    """Replaces `**given` in the signature of a function, which Typer or Prefect reads, by parameters of its own.

    They come after the function's arguments and before its own options.
    """
    signature = inspect.signature(function)
    own = signature.parameters.values()
    arguments = [each for each in own if each.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    options = [each for each in own if each.kind is inspect.Parameter.KEYWORD_ONLY]
    parameters = [*arguments, *added, *options]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    return function


def _given(entry: StrictModel) -> dict[str, Any]:
    return {name: getattr(entry, name) for name in entry.model_fields_set}


def _is_excluded(run: RunSettings, entry: Mapping[str, tuple[Any, ...]]) -> bool:
    return all(getattr(run, each.name) in entry[each.key] for each in SETTINGS if each.key in entry)


def _agrees(cell: Mapping[str, Any], entry: Mapping[str, Any], keys: Iterable[str]) -> bool:
    """Whether the cell has the entry's values, as far as the entry has any for these keys."""
    return all(cell[key] == entry[key] for key in keys if key in entry)


def make_suite(values: Mapping[str, Any]) -> Suite:
    """A suite from its keys.

    Raises:
        UsageError: a value is not allowed.
    """
    for setting in SETTINGS:
        names = [name for name in _names(setting) if name in values]
        if len(names) > 1:
            raise UsageError(f"{names[0]} and {names[1]} are the same setting: give one of them")
        given = _as_tuple(values.get(setting.suite_key, ()))
        for value in given if setting.choices else ():
            if value not in setting.choices:
                raise unknown_name(setting.key, str(value), setting.choices)
    try:
        suite: Suite = Suite.model_validate(values)
    except ValidationError as error:
        axes = {setting.suite_key for setting in SETTINGS if setting.is_axis}
        raise UsageError(validation_message(error, axes)) from error
    return suite


def single_run(given: Mapping[str, Any]) -> Suite:
    """A suite of one run.

    Args:
        given: the run's settings, by the names of `Setting.key`.

    Raises:
        UsageError: a value is not allowed.
    """
    defaults = {each.key: each.field.default for each in SETTINGS if each.name in REQUIRED}
    chosen = defaults | {key: value for key, value in given.items() if value is not None}
    return make_suite({each.suite_key: chosen[each.key] for each in SETTINGS if each.key in chosen})


def replace_settings(suite: Suite, given: Mapping[str, Any]) -> Suite:
    """The suite with some of its settings replaced: see `Suite`.

    Args:
        given: new values by the suite's keys; a list makes an axis. None leaves the suite's.

    Raises:
        UsageError: a value is not allowed.
    """
    given = {key: value for key, value in given.items() if value is not None}
    values = suite.model_dump(exclude_unset=True) | given
    chosen = make_suite(values)
    entries = [_given(entry) for entry in suite.include]
    return make_suite(values | {"include": [entry for entry in entries if _is_among(entry, chosen, given)]})


def _is_among(entry: Mapping[str, Any], chosen: Suite, given: Mapping[str, Any]) -> bool:
    """Whether the replaced settings have the values of an entry among theirs."""
    replaced = [each for each in SETTINGS if each.suite_key in given and each.key in entry]
    return all(entry[each.key] in getattr(chosen, each.suite_key) for each in replaced)
