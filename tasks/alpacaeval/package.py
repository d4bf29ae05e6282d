"""The statistics of the `alpaca-eval` package, without its side effects.

`alpaca_eval/__init__.py` (version 0.6.6) reads a `.env` file into the environment and imports clients of several APIs,
which are not needed here, so the modules are imported without running it. The package downloads nothing: the one file
that its statistics would fetch is given to them (see `length_control`).
"""

import importlib
import importlib.util
import logging
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from a2rl.core.errors import InfrastructureError

NAME = "alpaca_eval"
LENGTH_CONTROL = "length_controlled_v1"
_one_at_a_time = threading.RLock()


class NotComputableError(ValueError):
    """The statistics cannot be computed from these annotations; the text says why."""


def module(name: str) -> ModuleType:
    """Imports a module of the package, such as `metrics.glm_winrate`."""
    with _alone():
        if NAME not in sys.modules:
            if (spec := importlib.util.find_spec(NAME)) is None:
                raise InfrastructureError(
                    "the package alpaca-eval is not installed: `pip install --no-deps -r requirements.lock` installs it"
                )
            sys.modules[NAME] = importlib.util.module_from_spec(spec)  # empty, so that __init__.py is not run
        return importlib.import_module(f"{NAME}.{name}")


def win_rate(annotations: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns `win_rate` and `standard_error` in percent and the counts, by `alpaca_eval.metrics.get_winrate`."""
    with _alone():
        metrics = module("metrics.winrate").get_winrate(_frame(annotations))
    return {name: float(value) for name, value in metrics.items()}


class LengthControl(NamedTuple):
    """A fit of the package's regression."""

    rate: float
    """The length-controlled win rate, in percent."""
    strength: float
    """The inverse of the penalty's weight (`C`), as cross-validation chose it."""


def length_control(annotations: Sequence[Mapping[str, Any]], gamed: Path) -> LengthControl:
    """Computes the length-controlled win rate with `alpaca_eval.metrics.get_length_controlled_winrate`.

    The package looks up an instruction's difficulty by its position among the 805: the `index` of an annotation, or
    else the position of the annotation.

    Args:
        annotations: with `preference` (1 to 2), `output_1`, `output_2`, `generator_1` and `generator_2`.
        gamed: the package's `df_gamed.csv`, which it would download otherwise.

    Raises:
        NotComputableError: the regression cannot be fitted to these annotations.
    """
    statistics: Any = module("metrics.glm_winrate")
    frame = _frame(annotations)
    if len(set(frame["output_1"].str.len() - frame["output_2"].str.len())) < 2:
        raise NotComputableError(
            "all answers differ from the reference's by the same length, so length has no effect to fit"
        )
    from sklearn import config_context  # type: ignore[import-untyped]

    try:
        # The package changes global settings of sklearn.
        with _alone(), config_context(), _watched(statistics, gamed) as fitted:
            metrics = statistics.get_length_controlled_winrate(
                frame,
                glm_name=LENGTH_CONTROL,
                save_weights_dir=None,  # otherwise it writes into its installation
                is_warn_extreme_changes=False,
            )
    except (ValueError, KeyError, ArithmeticError) as error:
        raise NotComputableError(f"the length-controlled win rate cannot be fitted: {error}") from error
    return LengthControl(float(metrics["length_controlled_winrate"]), float(fitted[-1].C_[0]))


@contextmanager
def _watched(statistics: Any, gamed: Path) -> Iterator[list[Any]]:
    """Gives the statistics their file instead of a download, and collects what they fit."""
    download, fit, fitted = statistics.hf_hub_download, statistics.fit_LogisticRegressionCV, list[Any]()

    def recording_fit(*arguments: Any, **named: Any) -> Any:
        fitted.append(fit(*arguments, **named))
        return fitted[-1]

    # The only download of the statistics (glm_winrate.py, `_get_featurized_data`).
    statistics.hf_hub_download, statistics.fit_LogisticRegressionCV = lambda **_: str(gamed), recording_fit
    try:
        yield fitted
    finally:
        statistics.hf_hub_download, statistics.fit_LogisticRegressionCV = download, fit


def _frame(annotations: Sequence[Mapping[str, Any]]) -> Any:
    import pandas as pd

    frame = pd.DataFrame.from_records(list(annotations))
    return frame.assign(preference=frame["preference"].astype(float))  # a failed judgement may be null


@contextmanager
def _alone() -> Iterator[None]:
    """Works with the package in one thread at a time, without its deprecation warnings.

    The package, and what is done here to call it, changes settings of the whole process.
    """
    with _one_at_a_time:
        level = logging.root.manager.disable
        logging.disable(logging.WARNING)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            logging.disable(level)
