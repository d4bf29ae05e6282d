"""The figures of a run as MLflow shows them: by name, and each a number or a short text."""

import json
import re
from pathlib import Path
from typing import Any

from a2rl.files import read_model
from a2rl.grading.job import GradeResult
from a2rl.printable import printable
from a2rl.records import ExecuteRecord, GradeRecord, SetupRecord
from a2rl.run import RunDir
from a2rl.score import TaskScore
from a2rl.secrets import scrub

REFUSED = re.compile(r"[^\w\-. :/]")
"""What MLflow takes in no metric's name; a task names its kinds and measures as people read them."""


def score_metrics(score: TaskScore) -> dict[str, float]:
    counts = {name: float(getattr(score, name)) for name in ("total", "correct", "wrong", "truncated", "errored")}
    metrics = {**counts, "grading_seconds": score.seconds}
    if score.score is not None:
        metrics["score"] = score.score
    if score.ci is not None:
        metrics |= {"ci_low": score.ci.low, "ci_high": score.ci.high}
    metrics |= {f"by_kind.{name}": group.score for name, group in score.groups.items() if group.score is not None}
    metrics |= {f"measure.{name}": value for name, value in score.measures.items()}
    return {REFUSED.sub("", name): value for name, value in metrics.items()}


def run_params(run: RunDir, ready: SetupRecord) -> dict[str, Any]:
    params: dict[str, Any] = run.spec.model_dump(exclude={"versions", "run_id", "schema_version"})
    params |= {f"version.{name}": version for name, version in run.spec.versions.items()}
    digests = {"model_digest": ready.model_digest, "data_digest": ready.data_digest}
    return params | digests | {"sandbox": ready.sandbox.kind, "sandbox_layers": ", ".join(ready.sandbox.layers)}


def result_metrics(result: GradeRecord, executed: ExecuteRecord | None) -> dict[str, float]:
    metrics: dict[str, float | None] = {"baseline_score": result.baseline.score, "gain": result.gain}
    if executed is not None:
        metrics |= {"submissions": executed.submissions, "agent_seconds": executed.elapsed_s}
        metrics |= executed.usage.model_dump() if executed.usage else {}
    if result.public and result.final:
        metrics |= {
            "best_score": result.public.score,
            "final_score": result.final.score,
            "improvement": result.improvement,
            "chosen_among": result.chosen_among,
        }
        metrics |= dict(zip(("final_ci_low", "final_ci_high"), result.final.ci or (), strict=False))
        metrics |= dict(zip(("improvement_ci_low", "improvement_ci_high"), result.improvement_ci or (), strict=False))
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _shown(value: Any) -> Any:
    """A field of an item: what a model wrote is made visible, and keeps its lines."""
    return printable(scrub(value), lines=True) if isinstance(value, str) else value


def items_table(items: Path) -> str:
    """Items as MLflow shows tables."""
    rows = [item.model_dump(mode="json") for item in read_model(items, GradeResult).items]
    columns = list(rows[0]) if rows else []
    return json.dumps({"columns": columns, "data": [[_shown(row[name]) for name in columns] for row in rows]})
