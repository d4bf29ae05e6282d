"""The `alpaca-eval` package, as far as its authors' statistics and annotator go, and kept from reaching out.

Its own front door (`alpaca_eval/__init__.py`, version 0.6.6) reads a `.env` file into the environment and loads clients
of several APIs; `alpaca_eval.utils` wants `pkg_resources`, which setuptools no longer has. Neither is needed here, so
the modules are loaded without that front door. The package is never given a chance to download: the one file that its
statistics fetch is handed to them (see `length_controlled`).
"""

import importlib
import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from a2rl.errors import InfrastructureError

NAME = "alpaca_eval"
LENGTH_CONTROL = "length_controlled_v1"


class NotComputable(ValueError):
    """The statistics cannot be had from these annotations; the text says why."""


def folder() -> Path:
    """Where the package is installed. Raises InfrastructureError: it is not."""
    spec = importlib.util.find_spec(NAME)
    if spec is None or spec.origin is None:
        raise InfrastructureError("the package alpaca-eval is not installed: `make setup` installs it")
    return Path(spec.origin).parent


def module(name: str) -> ModuleType:
    """A module of the package, such as `metrics.glm_winrate`."""
    if NAME not in sys.modules and (spec := importlib.util.find_spec(NAME)) is not None:
        sys.modules[NAME] = importlib.util.module_from_spec(spec)  # with nothing in it: its file is not run
    with _quiet(), _pkg_resources():
        return importlib.import_module(f"{NAME}.{name}")


def win_rate(annotations: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """`win_rate` and `standard_error` in percent and the counts, by `alpaca_eval.metrics.get_winrate`."""
    with _quiet():
        metrics = module("metrics.winrate").get_winrate(_frame(annotations))
    return {name: float(value) for name, value in metrics.items()}


class LengthControl(NamedTuple):
    """A fit of the package's regression."""

    rate: float
    """The length-controlled win rate, in percent."""
    strength: float
    """The inverse of the penalty's weight (`C`), as cross-validation chose it."""


def length_controlled(annotations: Sequence[Mapping[str, Any]], calibration: Path) -> float:
    """The length-controlled win rate in percent; see `length_control`."""
    return length_control(annotations, calibration).rate


def length_control(annotations: Sequence[Mapping[str, Any]], calibration: Path) -> LengthControl:
    """The length-controlled win rate, by `alpaca_eval.metrics.get_length_controlled_winrate`.

    The package knows an instruction's difficulty by its place among the 805: by the field `index` of an annotation
    where there is one, else by the annotation's own place.

    Args:
        annotations: with `preference` (1 to 2), `output_1`, `output_2`, `generator_1` and `generator_2`.
        calibration: the package's `df_gamed.csv`, which it would download otherwise.

    Raises:
        NotComputable: the regression cannot be fitted to these annotations.
    """
    statistics: Any = module("metrics.glm_winrate")
    frame = _frame(annotations)
    if len(set(frame["output_1"].str.len() - frame["output_2"].str.len())) < 2:
        raise NotComputable("all answers are longer than the reference's by the same length: there is no effect to fit")
    from sklearn import config_context  # type: ignore[import-untyped]

    download, fit, fitted = statistics.hf_hub_download, statistics.fit_LogisticRegressionCV, []

    def kept_fit(*arguments: Any, **named: Any) -> Any:
        fitted.append(fit(*arguments, **named))
        return fitted[-1]

    # The only place where the statistics reach out (glm_winrate.py, `_get_featurized_data`).
    statistics.hf_hub_download, statistics.fit_LogisticRegressionCV = lambda **_: str(calibration), kept_fit
    try:
        with _quiet(), config_context():  # the package changes sklearn's settings for good
            metrics = statistics.get_length_controlled_winrate(
                frame,
                glm_name=LENGTH_CONTROL,
                save_weights_dir=None,  # else it writes into its own installation
                is_warn_extreme_changes=False,
            )
    except (ValueError, KeyError, ArithmeticError) as error:
        raise NotComputable(f"the length-controlled win rate cannot be fitted: {error}") from error
    finally:
        statistics.hf_hub_download, statistics.fit_LogisticRegressionCV = download, fit
    return LengthControl(float(metrics["length_controlled_winrate"]), float(fitted[-1].C_[0]))


def _frame(annotations: Sequence[Mapping[str, Any]]) -> Any:
    import pandas as pd

    frame = pd.DataFrame.from_records(list(annotations))
    return frame.assign(preference=frame["preference"].astype(float))  # a failed judgement may be null


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the package's notes to the developers of its next version."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)


@contextmanager
def _pkg_resources() -> Iterator[None]:
    """A stand-in while the package is loaded: the two functions that use it are not for us."""
    name = "pkg_resources"
    if importlib.util.find_spec(name) is not None:
        yield
        return
    sys.modules[name] = ModuleType(name)
    try:
        yield
    finally:
        del sys.modules[name]
