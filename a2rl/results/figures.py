"""The figures of a run for MLflow: metrics and parameters by name, and tables of items."""

import json
import re
from pathlib import Path
from typing import Any

from a2rl.core.files import read_model
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.grading.job import GradeResult
from a2rl.results.comparability import comparability
from a2rl.run.directory import RunDir
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord
from a2rl.run.sample import sample_note
from a2rl.scoring.score import TaskScore

INVALID_IN_NAMES = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow does not accept in the name of a metric. Tasks may use them in names of kinds and measures."""


def score_metrics(score: TaskScore) -> dict[str, float]:
    """Returns the metrics of a graded checkpoint."""
    counts = {name: float(getattr(score, name)) for name in ("total", "correct", "wrong", "truncated", "errored")}
    metrics = {**counts, "grading_seconds": score.seconds}
    if score.score is not None:
        metrics["score"] = score.score
    if score.ci is not None:
        metrics |= {"ci_low": score.ci.low, "ci_high": score.ci.high}
    metrics |= {f"by_kind.{name}": group.score for name, group in score.groups.items() if group.score is not None}
    metrics |= {f"measure.{name}": value for name, value in score.measures.items()}
    return {INVALID_IN_NAMES.sub("", name): value for name, value in metrics.items()}


def run_params(run: RunDir, ready: SetupRecord) -> dict[str, Any]:
    """Returns the parameters of a run: its settings, versions and digests."""
    params: dict[str, Any] = run.spec.model_dump(exclude={"versions", "run_id", "schema_version", "draw", "split_seed"})
    params |= {f"version.{name}": version for name, version in run.spec.versions.items()}
    digests = {"model_digest": ready.model_digest, "data_digest": ready.data_digest}
    return params | digests | {"sandbox": ready.sandbox.kind, "sandbox_layers": ", ".join(ready.sandbox.layers)}


def run_tags(run: RunDir, ready: SetupRecord) -> dict[str, str]:
    """Returns the tags of a run."""
    drawn = {"a2rl.sampling": note} if (note := run.spec.generation.note) else {}
    return {"a2rl.sandbox": ready.sandbox.kind, "a2rl.comparable": str(comparability(run)), **drawn, **sample_tag(run)}


def sample_tag(run: RunDir) -> dict[str, str]:
    """Returns the tag that says that figures are those of a sample; empty for a whole eval set."""
    return {"a2rl.sample": note} if (note := sample_note(run)) else {}


def result_metrics(result: GradeRecord, executed: ExecuteRecord | None) -> dict[str, float]:
    """Returns the metrics of a run's final result."""
    metrics: dict[str, float | None] = {"baseline_score": result.baseline.score, "gain": result.gain}
    if executed is not None:
        metrics |= {"submissions": executed.submissions, "agent_seconds": executed.elapsed_s}
        metrics |= executed.usage.model_dump() if executed.usage else {}
    if result.judge is not None:
        metrics |= {"judge_requests": result.judge.use.requests, "judge_usd": result.judge.use.dollars}
        if (noise := result.judge.noise) is not None:
            metrics |= {"judge_agreement": noise.agreement, "judge_score_sd": noise.score_sd}
    if result.public and result.final:
        metrics |= {
            "best_score": result.public.score,
            "final_score": result.final.score,
            "improvement": result.improvement,
            "improvement_cross_fitted": result.cross_fitted,
            "chosen_among": result.chosen_among,
        }
        if result.final.ci is not None:
            metrics |= {"final_ci_low": result.final.ci.low, "final_ci_high": result.final.ci.high}
        if result.improvement_ci is not None:
            metrics |= {
                "improvement_ci_low": result.improvement_ci.low,
                "improvement_ci_high": result.improvement_ci.high,
            }
    return {name: float(value) for name, value in metrics.items() if value is not None}


def items_table(items: Path) -> str:
    """Returns a file of items as a table in MLflow's JSON format."""
    rows = [item.model_dump(mode="json") for item in read_model(items, GradeResult).items]
    columns = list(rows[0]) if rows else []
    return json.dumps({"columns": columns, "data": [[_cell(row[name]) for name in columns] for row in rows]})


def _cell(value: Any) -> Any:
    """Returns a field of an item for the table. A text from a model is made printable; its line breaks are kept."""
    return printable(scrub(value), lines=True) if isinstance(value, str) else value
