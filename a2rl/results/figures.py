"""The figures of a run: the metrics of its course, its improvement over the base model, and what MLflow has of it.

The metrics of its course have the names of the reference (bench/core/metrics.py:96-107, where `bench` is as in
docs/paper-preset.md), but are from the ledger instead of files that the agent can write. Times are seconds of the
budget clock; a submission's is that at which its score was known. For a failure the reference has a score of 0. Here it
has no score and is not valid, and a real 0 is a score.

The improvement is in the task's own score, with an interval at the level that the run needs. The gain of the best of
several submissions on the items by which it was chosen is also given without the bias of that choice.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from a2rl.core.files import StrictModel, read_model
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.grading.job import GradeResult
from a2rl.results.comparability import comparability
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown, Graded, SubmissionAccepted, SubmissionRefused
from a2rl.run.inputs import hidden_of
from a2rl.run.ledger import Entry, events_of, grades_among
from a2rl.run.ranking import chosen_among, sample_note, selection_note
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord
from a2rl.run.spec import RunSettings
from a2rl.scoring.paired import LEVEL, Improvement, compare, corrected, cross_fitted, mean_difference
from a2rl.scoring.score import ItemResult, TaskScore
from a2rl.task_api.catalog import load_grader
from a2rl.task_api.contract import HeadlineGrader
from a2rl.validity.record import counted, read_validity


class RunMetrics(StrictModel):
    """What the reference computes of a run. None: there is nothing to compute it from."""

    valid_submission_rate: float | None = None
    """The share of submissions that have a score. A submission that was refused after it was received has none."""
    first_valid_idx: int | None = None
    """Which submission was the first with a score: 1, 2, ..."""
    first_valid_delay: float | None = None
    time_to_first_improvement: float | None = None
    """Until the first score above the base model's."""
    time_to_best: float | None = None
    """Until the best score; the earliest of equals."""
    monotonic_ratio: float | None = None
    """The share of scores that are better than the one before; None with fewer than two."""
    copy_model_count: int | None = None
    """How many submissions have the weights of the base model."""
    time_used_ratio: float | None = None
    """The share of the budget that the agent used, without the time that was refunded."""
    last_submit_gap: float | None = None
    """From the last submission to the end of the agent; 0 if its grade came later."""


class _Tried(NamedTuple):
    score: float | None
    known_s: float


def run_metrics(run: RunDir, entries: Sequence[Entry]) -> RunMetrics:
    """Returns the metrics of a run, as far as it has come."""
    tried = list(_tried(entries))
    scored = [(score, known_s) for score, known_s in tried if score is not None]
    base = next((each.event.public.score for each in entries if isinstance(each.event, BaselineKnown)), None)
    better = [known_s for score, known_s in scored if base is not None and score > base]
    first = next((place for place, each in enumerate(tried) if each.score is not None), None)
    rises = [after > before for (before, _), (after, _) in pairwise(scored)]
    executed = run.read("execute", ExecuteRecord)
    turns = [each.event for each in entries if isinstance(each.event, AgentStarted | AgentEnded)]
    end_s = turns[-1].elapsed_s if turns and isinstance(turns[-1], AgentEnded) else None
    return RunMetrics(
        valid_submission_rate=_share([each.score is not None for each in tried]),
        first_valid_idx=None if first is None else first + 1,
        first_valid_delay=None if first is None else tried[first].known_s,
        time_to_first_improvement=min(better, default=None),
        time_to_best=max(scored, key=lambda each: (each[0], -each[1]))[1] if scored else None,
        monotonic_ratio=_share(rises),
        copy_model_count=_copies(run, entries),
        time_used_ratio=executed.charged_s / run.spec.budget_s if executed else None,
        last_submit_gap=max(0.0, end_s - tried[-1].known_s) if tried and end_s is not None else None,
    )


def _tried(entries: Sequence[Entry]) -> Iterator[_Tried]:
    """Yields what came of each submission that was received, in order; those that still wait are left out."""
    grades = grades_among(entries)
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused) and event.receipt is not None:
            yield _Tried(None, event.elapsed_s)
        elif isinstance(event, SubmissionAccepted) and (grade := grades.get(event.weights_digest)) is not None:
            yield _Tried(grade.result.score, max(event.elapsed_s, grade.elapsed_s))


def _share(facts: Sequence[bool]) -> float | None:
    return sum(facts) / len(facts) if facts else None


def _copies(run: RunDir, entries: Sequence[Entry]) -> int | None:
    ready = run.read("setup", SetupRecord)
    if ready is None:
        return None
    accepted = events_of(entries, SubmissionAccepted)
    return sum(ready.is_base_model(each.weights_digest) for each in accepted)


def improvement_of(run: RunDir, items: Sequence[ItemResult]) -> Improvement | None:
    """Compares the results of a model on some items with the base model's results on the same items.

    If the result was chosen on the same items, the interval is corrected for the choice.

    Returns:
        The improvement in points with its 95% interval; None if it cannot be computed.
    """
    baseline = read_model(run.baseline_items, GradeResult).items
    level = corrected(LEVEL, chosen_among(run))
    grader = load_grader(run.spec.task)
    if not isinstance(grader, HeadlineGrader):
        return compare(baseline, items, level, mean_difference)
    return compare(baseline, items, level, partial(grader.improvement, hidden=hidden_of(run)))


def cross_fitted_gain(run: RunDir) -> float | None:
    """Returns the gain, in points, of the best submission without the bias of choosing it on the items that measure it.

    Submissions count in the order in which they were made. Items that could not be judged for all are left out.

    Returns:
        The gain; None under the strict protocol, with a single submission, and where it cannot be computed.
    """
    if run.spec.protocol == "strict" or chosen_among(run) == 1:
        return None
    grades = run.ledger.grades()
    digests = dict.fromkeys(event.weights_digest for event in run.ledger.events(SubmissionAccepted))
    scored = [each for each in digests if each in grades and grades[each].result.score is not None]
    files = [run.baseline_items, *(run.items(digest, run.spec.final_split) for digest in scored)]
    graded = [{item.id: item for item in read_model(path, GradeResult).items} for path in files]
    shared = [each for each in graded[1] if all(_is_judged(items.get(each)) for items in graded)]
    values = [contributions_of(run, [items[each] for each in shared]) for items in graded] if shared else [None]
    known = [each for each in values if each is not None]
    if len(known) < len(graded):
        return None
    return cross_fitted(known[0], known[1:])


def _is_judged(item: ItemResult | None) -> bool:
    return item is not None and item.verdict != "errored"


def result_items(run: RunDir, entries: Sequence[Entry], number: int | None) -> Path | None:
    """Returns the file with the items that decide the result of a run; None if it has no result.

    Args:
        number: The submission that counts.
    """
    for event in events_of(entries, SubmissionAccepted):
        if event.submission_id == number:
            return run.items(event.weights_digest, run.spec.final_split)
    return None


def contributions_of(run: RunDir, items: Sequence[ItemResult]) -> Sequence[float] | None:
    """Returns what each item adds to the task's score."""
    grader = load_grader(run.spec.task)
    if isinstance(grader, HeadlineGrader):
        return grader.contributions(items, hidden_of(run))
    return [item.value for item in items]


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


def submission_metrics(scored: Scored) -> dict[str, float]:
    """Returns the metrics of a graded submission."""
    grade = scored.grade
    metrics = score_metrics(grade.result) | {"seconds_since_start": scored.submission.elapsed_s}
    return metrics if grade.improvement is None else metrics | {"improvement": grade.improvement}


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
    metrics: dict[str, float | None] = {"baseline": result.baseline.score, "gain": counted(run, result).gain}
    metrics |= run_metrics(run, run.ledger.entries()).model_dump()
    if executed is not None:
        metrics |= {"submissions": executed.submissions, "agent_seconds": executed.elapsed_s}
        metrics |= _usage_metrics(executed)
    if result.judge is not None:
        metrics |= {"judge_requests": result.judge.use.requests, "judge_usd": result.judge.use.dollars}
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
    """Returns what the agent did, and what its driver was asked and cost."""
    seen, reported = executed.seen, executed.usage
    metrics: dict[str, float | None] = {"cost_usd": executed.cost_usd}
    if reported is not None:
        metrics |= {"steps": reported.steps, "tool_calls": reported.tool_calls}
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
    texts = [f"The agent ended ({executed.ended}): {executed.why.rstrip('.')}."] if executed and executed.why else []
    for each in run.ledger.events(SubmissionRefused)[-SHOWN_REFUSALS:]:
        more = f", {each.count} times" if each.count > 1 else ""
        texts.append(f"Refused: {each.model_path or 'a request without a folder'}{more}: {each.reason}.")
    return [printable(scrub(text)) for text in texts]


def items_table(items: Path) -> str:
    """Returns a file of items as a table in MLflow's JSON format."""
    rows = [item.model_dump(mode="json") for item in read_model(items, GradeResult).items]
    columns = list(rows[0]) if rows else []
    return json.dumps({"columns": columns, "data": [[_cell(row[name]) for name in columns] for row in rows]})


def _cell(value: Any) -> Any:
    """Returns a field of an item for the table. A text from a model is made printable; its line breaks are kept."""
    return printable(scrub(value), lines=True) if isinstance(value, str) else value
