"""Scores of judgements made elsewhere: reads and checks files of annotations as alpaca-eval writes them."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from a2rl.core.errors import A2rlError, UsageError
from a2rl.core.settings import Settings
from a2rl.judge.parsers import bounded_number
from tasks.alpacaeval import package
from tasks.alpacaeval.package import NotComputableError
from tasks.alpacaeval.prepare import CALIBRATION, calibration, read_json
from tasks.alpacaeval.task import TASK

INSTRUCTION_SHOWN = 60
FIELDS = {"preference", "output_1", "output_2", "generator_1", "generator_2"}
"""Fields of an annotation that the statistics use."""


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
    plain = package.win_rate(annotations)
    if not plain["n_total"]:
        return AnnotationScore(
            win_rate=None, win_rate_se=None, length_controlled_winrate=None, reason=f"no preference in {path}"
        )
    controlled, reason = None, ""
    try:
        controlled = package.length_controlled(annotations, calibration(_calibration_folder(source, settings)))
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
