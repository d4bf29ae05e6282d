"""The figures of a run for MLflow: metrics and parameters by name, and tables of items."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.files import read_model
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.grading.job import GradeResult
from a2rl.results.comparability import comparability
from a2rl.results.run_metrics import run_metrics
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, SubmissionAccepted, SubmissionRefused
from a2rl.run.ledger import Entry
from a2rl.run.ranking import sample_note, selection_note
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord
from a2rl.run.spec import RunSettings
from a2rl.scoring.score import TaskScore
from a2rl.validity.record import counted_gain, read_validity

SHOWN_REFUSALS = 10
INVALID_IN_NAMES = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow does not accept in the name of a metric. Tasks may use them in names of kinds and measures."""


def score_metrics(score: TaskScore) -> dict[str, float]:
    """Returns the metrics of a graded checkpoint."""
    counts = {name: float(getattr(score, name)) for name in ("total", "correct", "wrong", "truncated", "errored")}
    metrics = {**counts, "grading_seconds": score.seconds}
    if score.score is not None:
        metrics["score"] = score.score
    if score.ci is not None:
        metrics |= {"score_low": score.ci.low, "score_high": score.ci.high}
    metrics |= {f"by_kind.{name}": group.score for name, group in score.groups.items() if group.score is not None}
    metrics |= {f"measure.{name}": value for name, value in score.measures.items()}
    return {INVALID_IN_NAMES.sub("", name): value for name, value in metrics.items()}


class Scored(NamedTuple):
    """A submission at the moment when its grade was known."""

    submission: SubmissionAccepted
    grade: Graded
    at: float
    """That moment, in Unix seconds."""
    best: float | None
    """The best public score until then."""


def scored_submissions(entries: Sequence[Entry]) -> Iterator[Scored]:
    """Yields the graded submissions in the order in which their grades became known.

    Further entries only add to the end of this, so what was mirrored once stays as it is.
    """
    waiting: dict[str, list[SubmissionAccepted]] = {}
    grades: dict[str, Graded] = {}
    best: float | None = None
    for entry in entries:
        event = entry.event
        if isinstance(event, SubmissionAccepted):
            waiting.setdefault(event.weights_digest, []).append(event)
        elif isinstance(event, Graded):
            grades[event.weights_digest] = event
        else:
            continue
        if (grade := grades.get(event.weights_digest)) is not None:
            best = max((each for each in (best, grade.result.score) if each is not None), default=None)
            for submission in waiting.pop(event.weights_digest, ()):
                yield Scored(submission, grade, entry.at, best)


MAIN_PARAMS = ("task", "variant", "agent", "driver", "model", "mode", "protocol", "seed", "budget_s")
"""The settings that every run has as a parameter. Of the others, those that were given: `spec.json` has them all."""
NO_PARAMS = frozenset({"grading_port", "seed_file", *MAIN_PARAMS})


def run_params(run: RunDir, ready: SetupRecord) -> dict[str, Any]:
    """Returns the parameters of a run: the settings that tell it from others."""
    spec = run.spec
    params = {name: getattr(spec, name) for name in MAIN_PARAMS}
    for name, field in RunSettings.model_fields.items():
        if name not in NO_PARAMS and (value := getattr(spec, name)) != field.default:
            params[name] = value if isinstance(value, str | int | float) else str(value)
    return {name: "none" if value is None else value for name, value in params.items()} | {
        "sandbox": ready.sandbox.kind
    }


def run_tags(run: RunDir, ready: SetupRecord) -> dict[str, str]:
    """Returns the tags of a run that are known at its start."""
    drawn = {"a2rl.sampling": note} if (note := run.spec.generation.note) else {}
    versions = " ".join(f"{name}={version}" for name, version in run.spec.versions.items())
    return {
        "a2rl.comparable": str(comparability(run)),
        "a2rl.model_digest": ready.model_digest,
        "a2rl.data_digest": ready.data_digest,
        "a2rl.sandbox_layers": ", ".join(ready.sandbox.layers),
        "a2rl.versions": versions,
        **drawn,
        **sample_tag(run),
    }


def sample_tag(run: RunDir) -> dict[str, str]:
    """Returns the tag that says that figures are those of a sample; empty for a whole eval set."""
    return {"a2rl.sample": note} if (note := sample_note(run)) else {}


def result_metrics(run: RunDir, result: GradeRecord, executed: ExecuteRecord | None) -> dict[str, float]:
    """Returns the metrics of a run's final result."""
    metrics: dict[str, float | None] = {"baseline": result.baseline.score, "gain": counted_gain(run, result)}
    metrics |= run_metrics(run, run.ledger.entries()).model_dump()
    if executed is not None:
        metrics |= {"submissions": executed.submissions, "agent_seconds": executed.elapsed_s}
        metrics |= _usage_metrics(executed)
    if result.judge is not None:
        metrics |= {"judge_requests": result.judge.use.requests, "judge_usd": result.judge.use.dollars}
        if (noise := result.judge.noise) is not None:
            metrics |= {"judge_agreement": noise.agreement, "judge_score_sd": noise.score_sd}
    if result.public and result.final:
        metrics |= {"score": result.final.score, "improvement": result.improvement}
        if result.chosen_among > 1:
            metrics |= {"improvement_cross_fitted": result.cross_fitted, "chosen_among": result.chosen_among}
        if (ci := result.final.ci) is not None:
            metrics |= {"score_low": ci.low, "score_high": ci.high}
        if (ci := result.improvement_ci) is not None:
            metrics |= {"improvement_low": ci.low, "improvement_high": ci.high}
    return {name: float(value) for name, value in metrics.items() if value is not None}


def _usage_metrics(executed: ExecuteRecord) -> dict[str, float | None]:
    """Returns what the driver was asked and cost: as the relay measured it, or else as the agent reports it."""
    seen, reported = executed.seen, executed.usage
    metrics: dict[str, float | None] = {"cost_usd": executed.cost_usd}
    if reported is not None:
        metrics |= {"steps": reported.steps, "tool_calls": reported.tool_calls}
        if reported.prompt_tokens is not None and reported.completion_tokens is not None:
            metrics["tokens"] = reported.prompt_tokens + reported.completion_tokens
    if seen is not None and seen.requests:
        metrics |= {"tokens": seen.tokens, "llm_requests": seen.requests}
    return metrics


def result_tags(run: RunDir, result: GradeRecord) -> dict[str, str]:
    """Returns the tags of a run's final result."""
    tags = {"verdict": result.verdict, "a2rl.reason": result.reason}
    if (validity := read_validity(run)) is not None:
        tags |= {"validity": validity.word, "a2rl.findings": " ".join(validity.why)}
    if result.final and (note := selection_note(run)):
        tags["a2rl.selection"] = note
    return tags


def remarks_on(run: RunDir) -> list[str]:
    """Returns what a reader of a result should know beside it, as sentences: why the agent ended, if there is more to
    say than that it did, and why submissions were refused."""
    executed = run.read("execute", ExecuteRecord)
    texts = [f"The agent ended ({executed.ended}): {executed.why}."] if executed and executed.why else []
    for each in run.ledger.events(SubmissionRefused)[-SHOWN_REFUSALS:]:
        more = f", {each.count} times" if each.count > 1 else ""
        texts.append(f"Refused: {each.model_path}{more}: {each.reason}.")
    return [printable(scrub(text)) for text in texts]


def items_table(items: Path) -> str:
    """Returns a file of items as a table in MLflow's JSON format."""
    rows = [item.model_dump(mode="json") for item in read_model(items, GradeResult).items]
    columns = list(rows[0]) if rows else []
    return json.dumps({"columns": columns, "data": [[_cell(row[name]) for name in columns] for row in rows]})


def _cell(value: Any) -> Any:
    """Returns a field of an item for the table. A text from a model is made printable; its line breaks are kept."""
    return printable(scrub(value), lines=True) if isinstance(value, str) else value
