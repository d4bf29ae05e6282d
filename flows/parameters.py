"""The flow's parameters for the settings of a suite, generated from `a2rl.run.spec.RunSettings`.

Prefect reads the signature of a flow: for the form in its UI, and to check `prefect deployment run --param`.
"""

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from a2rl.config.suite import SUITE_SETTINGS, Setting

Function = TypeVar("Function", bound=Callable[..., Any])


def with_suite_parameters(function: Function) -> Function:
    """Replaces `**given` in a function's signature by one parameter for each setting of a suite.

    The function gets the values by the suite's keys. None keeps the suite's value.
    """
    signature = inspect.signature(function)
    own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *map(_parameter, SUITE_SETTINGS)]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {each.name: each.annotation for each in parameters}
    described = "\n".join(f"    {each.suite_key}: {each.field.description}" for each in SUITE_SETTINGS)
    function.__doc__ = f"{inspect.getdoc(function)}\n\nArgs:\n{described}"  # Prefect takes its descriptions from there
    return function


def _parameter(setting: Setting) -> inspect.Parameter:
    """Returns the parameter for a setting. Its value is None or one value; for an axis it may be a list of values."""
    value: Any = str if setting.is_duration else setting.value_type  # a duration such as 12h
    several = value | list[value] if setting.is_axis else value
    return inspect.Parameter(setting.suite_key, inspect.Parameter.KEYWORD_ONLY, annotation=several | None, default=None)
