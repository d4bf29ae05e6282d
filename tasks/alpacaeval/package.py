"""The statistics of the `alpaca-eval` package, without its side effects, also for annotations that were made elsewhere.

`alpaca_eval/__init__.py` (version 0.6.6) reads a `.env` file into the environment and imports clients of several APIs,
which are not needed here, so the modules are imported without running it. The package downloads nothing: the one file
that its statistics would fetch is given to them (see `length_control`).
"""

import importlib
import importlib.util
import logging
import math
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import A2rlError, InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.judge.parsers import bounded_number
from tasks.alpacaeval.prepare import CALIBRATION, calibration, read_json
from tasks.alpacaeval.task import TASK

NAME = "alpaca_eval"
LENGTH_CONTROL = "length_controlled_v1"
INSTRUCTION_SHOWN = 60
FIELDS = {"preference", "output_1", "output_2", "generator_1", "generator_2"}
"""Fields of an annotation that the statistics use."""
_one_at_a_time = threading.RLock()


class NotComputableError(ValueError):
    """The statistics cannot be computed from these annotations; the text says why."""


def folder() -> Path:
    """Returns the folder of the package. Raises InfrastructureError if it is not installed."""
    spec = importlib.util.find_spec(NAME)
    if spec is None or spec.origin is None:
        raise InfrastructureError(
            "the package alpaca-eval is not installed: `pip install --no-deps -r requirements.lock` installs it"
        )
    return Path(spec.origin).parent


def module(name: str) -> ModuleType:
    """Imports a module of the package, such as `metrics.glm_winrate`."""
    with _alone():
        if NAME not in sys.modules and (spec := importlib.util.find_spec(NAME)) is not None:
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


class AnnotationScore(BaseModel):
    """What `a2rl score --annotations` prints."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    win_rate: float | None
    win_rate_se: float | None
    length_controlled_winrate: float | None
    reason: str
    """Why a figure is missing; empty if all are there."""


def score_annotations(path: Path, source: Path | None, settings: Settings) -> AnnotationScore:
    """Computes the statistics of a file of annotations as alpaca-eval writes them.

    Args:
        path: .json or .json.xz; the annotations in the order of the 805 instructions, or each with its `index`.
        source: a local mirror with df_gamed.csv; None for the prepared full data's, or else the hub's.

    Raises:
        UsageError: the file has no annotations.
    """
    annotations = _read_annotations(path)
    plain = win_rate(annotations)
    if not plain["n_total"]:
        return AnnotationScore(
            win_rate=None, win_rate_se=None, length_controlled_winrate=None, reason=f"no preference in {path}"
        )
    controlled, reason = None, ""
    try:
        controlled = length_control(annotations, calibration(_calibration_folder(source, settings))).rate
    except (A2rlError, NotComputableError) as error:
        reason = f"no length-controlled win rate: {error}"
    return AnnotationScore(
        win_rate=plain["win_rate"],
        win_rate_se=plain["standard_error"] if math.isfinite(plain["standard_error"]) else None,
        length_controlled_winrate=controlled,
        reason=reason,
    )


def _calibration_folder(source: Path | None, settings: Settings) -> Path | None:
    prepared = settings.data(TASK.id, "full") / "hidden"
    return prepared if source is None and (prepared / CALIBRATION).is_file() else source


def _read_annotations(path: Path) -> list[dict[str, Any]]:
    rows = read_json(path)
    if (
        not isinstance(rows, list)
        or not rows
        or not all(isinstance(row, dict) and row.keys() >= FIELDS for row in rows)
    ):
        raise UsageError(f"{path} has no annotations: give a list of objects with {', '.join(sorted(FIELDS))}")
    for place, row in enumerate(rows):
        try:
            _check_annotation(row)
        except ValueError as error:
            raise UsageError(f"{path}, annotation {place}{_named(row)}: {error}") from error
    _check_models_and_places(path, rows)
    return rows


def _check_annotation(row: Mapping[str, Any]) -> None:
    """Raises ValueError with the reason if the annotation is invalid."""
    if row["preference"] is not None and row["preference"] != 0:  # both mean: no preference
        bounded_number(row["preference"], 1, 2, "the preference")
    if "index" in row and bounded_number(row["index"], 0, TASK.variant("full").eval_items - 1, "the index") % 1:
        raise ValueError(f"the index is {row['index']}, not a whole number")
    for field in sorted(FIELDS - {"preference"}):
        if not isinstance(row[field], str):
            raise ValueError(f"{field} is not a text")


def _check_models_and_places(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Raises UsageError if the annotations are of several models, or their instructions are ambiguous."""
    for field in ("generator_1", "generator_2"):
        if len(names := {row[field] for row in rows}) > 1:
            raise UsageError(
                f"{path} has annotations of {len(names)} models as {field}: give the annotations of one model"
            )
    places = [row["index"] for row in rows if "index" in row]
    if places and len(places) < len(rows):
        raise UsageError(f"{path} has an index in some annotations only: give it in all of them or in none")
    if len(set(places)) < len(places):
        twice = next(place for place in places if places.count(place) > 1)
        raise UsageError(f"{path} has two annotations with the index {twice}: give one of each")


def _named(row: Mapping[str, Any]) -> str:
    """Returns the instruction of an annotation in brackets; empty if it has none."""
    instruction = row.get("instruction")
    return f" ({instruction[:INSTRUCTION_SHOWN]!r})" if isinstance(instruction, str) else ""
