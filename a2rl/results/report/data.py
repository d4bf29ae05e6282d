"""The data of a run's report, `report/report.json`, for programs, with what happened in sentences. Its JSON schema is
docs/run-report.schema.json."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from a2rl.core.errors import UsageError
from a2rl.core.files import FrozenModel
from a2rl.results.comparability import comparability
from a2rl.results.figures import RunMetrics, run_metrics
from a2rl.run.directory import RunDir
from a2rl.run.events import (
    AgentEnded,
    AgentStarted,
    BaselineKnown,
    Graded,
    ProcessesSurvived,
    RunFailed,
    RunInterrupted,
    SubmissionAccepted,
    SubmissionRefused,
)
from a2rl.run.ledger import Entry, events_of, grades_among
from a2rl.run.ranking import sample_note, selection_note
from a2rl.run.records import VERDICTS, ExecuteRecord, GradeRecord, LlmUse, RunVerdict, Usage
from a2rl.run.spec import RunSettings
from a2rl.scoring.means import Interval
from a2rl.scoring.score import TaskScore
from a2rl.validity.record import counted, read_validity


class Submitted(FrozenModel):
    """One submission, or several refused ones in a row."""

    number: int | None
    """None if it was refused."""
    outcome: Literal["graded", "not graded", "refused"]
    elapsed_s: float
    """Since the start of the agent, with what was given back."""
    model_path: str
    """Below the workspace."""
    score: float | None
    """Public score, 0 to 100."""
    ci: Interval | None
    gain: float | None
    """Points over the base model on the same items."""
    code_revision: str | None
    """A commit of `code/`."""
    reason: str
    """Why it was refused, or has no score."""
    is_result: bool
    """Whether the run's result comes from it."""


class RunReport(FrozenModel):
    """Everything about a run that its page says in figures."""

    schema_version: Literal[1] = 1
    run_id: str
    suite: str
    launch: str
    task: str
    agent: str
    settings: dict[str, Any]
    """The fields of `RunSettings`."""
    versions: dict[str, str]
    verdict: RunVerdict | None
    """None if the run is not finished."""
    reason: str
    validity: str | None
    """What the result is worth; None if that was not decided."""
    not_valid_because: tuple[str, ...] = ()
    baseline: TaskScore
    """Of the base model on the items that decide; before the result stands, on the public ones."""
    final: TaskScore | None
    improvement: float | None
    """Points."""
    improvement_ci: Interval | None
    gain: float
    """The same, but 0 without a result, and for a void one that gained."""
    cross_fitted: float | None
    selection: str
    """What to say of the choice of the result among several; empty if nothing."""
    sample: str
    """What to say of a sample of the eval set; empty for all of it."""
    comparable: bool
    """Whether the figures are comparable with the published ones."""
    not_comparable_because: tuple[str, ...]
    story: tuple[str, ...]
    """What was unusual, and how the agent ended, in sentences."""
    budget_s: float
    elapsed_s: float
    waited_s: float | None
    refunded_s: float | None
    submissions: tuple[Submitted, ...]
    metrics: RunMetrics
    usage: Usage | None
    """What the agent did, by its transcripts."""
    seen: LlmUse | None
    """Its requests to the LLM, as the relay measured them."""
    ledger_head: str
    """The hash of the last entry of the ledger that this was computed from."""


def need_baseline(run: RunDir, entries: Sequence[Entry]) -> TaskScore:
    """Returns the base model's public score.

    Raises:
        UsageError: The run has no baseline yet.
    """
    if known := events_of(entries, BaselineKnown):
        return known[0].public
    raise UsageError(
        f"run {run.id} has no baseline yet, so there is nothing to report: `a2rl resume {run.id}` continues it"
    )


def gather(run: RunDir, entries: Sequence[Entry]) -> RunReport:
    """Returns the report's data.

    Raises:
        UsageError: The run has no baseline yet.
    """
    spec, grade, executed = run.spec, run.read("grade", GradeRecord), run.read("execute", ExecuteRecord)
    baseline, compared, validity = need_baseline(run, entries), comparability(run), read_validity(run)
    return RunReport(
        run_id=spec.run_id, suite=spec.suite, launch=spec.launch, task=spec.task, agent=spec.agent,
        settings=spec.model_dump(mode="json", include=set(RunSettings.model_fields)), versions=spec.versions,
        validity=validity.word if validity else None, not_valid_because=validity.why if validity else (),
        **_result(run, grade, baseline),
        sample=sample_note(run), comparable=not compared.reasons, not_comparable_because=compared.reasons,
        story=tuple(story(entries)), budget_s=spec.budget_s, elapsed_s=run.clock.used_s(),
        waited_s=executed.waited_s if executed else None, refunded_s=executed.refunded_s if executed else None,
        submissions=tuple(_submitted(entries, grades_among(entries), grade.submission_id if grade else None)),
        metrics=run_metrics(run, entries), usage=executed.usage if executed else None,
        seen=executed.seen if executed else None, ledger_head=entries[-1].hash,
    )  # fmt: skip


def _result(run: RunDir, grade: GradeRecord | None, baseline: TaskScore) -> dict[str, Any]:
    """Returns the fields on the result."""
    if grade is None:
        none = dict.fromkeys(("verdict", "final", "improvement", "improvement_ci", "cross_fitted"))
        return {**none, "reason": "", "baseline": baseline, "gain": 0.0, "selection": ""}
    same = ("verdict", "reason", "baseline", "final", "improvement", "improvement_ci", "cross_fitted")
    known = {name: getattr(grade, name) for name in same} | {"gain": counted(run, grade).gain}
    return known | {"selection": selection_note(run) if grade.final else ""}


def _submitted(entries: Sequence[Entry], grades: Mapping[str, Graded], counts: int | None) -> Iterator[Submitted]:
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused):
            more = f" ({event.count} times)" if event.count > 1 else ""
            yield Submitted(
                number=None, outcome="refused", elapsed_s=event.elapsed_s, model_path=_short_path(event.model_path),
                score=None, ci=None, gain=None, code_revision=None, reason=f"{event.reason}{more}", is_result=False,
            )  # fmt: skip
        elif isinstance(event, SubmissionAccepted):
            grade = grades.get(event.weights_digest)
            result = grade.result if grade else None
            yield Submitted(
                number=event.submission_id, outcome="graded" if grade else "not graded", elapsed_s=event.elapsed_s,
                model_path=_short_path(event.model_path), score=result.score if result else None,
                ci=result.ci if result else None, gain=grade.improvement if grade else None,
                code_revision=event.code_revision, reason=result.reason if result else "",
                is_result=event.submission_id == counts,
            )  # fmt: skip


def verdict_in_words(grade: GradeRecord | None) -> str:
    """Returns the verdict with its reason."""
    if grade is None:
        return "the run is not finished"
    return VERDICTS[grade.verdict] + (f" ({grade.reason})" if grade.reason else "")


def story(entries: Sequence[Entry]) -> list[str]:
    """Returns sentences on how the agent ended and on everything unusual."""
    starts = events_of(entries, AgentStarted)
    sentences: list[str] = []
    trials = starts[-1].trial if starts else 1
    if trials > 1:
        sentences.append(f"It made {trials} attempts, each with a summary of the previous ones.")
    if len(starts) > trials:
        sentences.append(f"The agent was started {len(starts)} times, because the run was resumed.")
    for event in (entry.event for entry in entries):
        if isinstance(event, RunInterrupted):
            sentences.append("It was interrupted by the user.")
        elif isinstance(event, ProcessesSurvived):
            listing = ", ".join(f"{pid} {name}" for pid, name in event.processes[:20])
            sentences.append(f"{len(event.processes)} of its processes could not be killed ({listing}).")
        elif isinstance(event, RunFailed):
            sentences.append(f"The run failed: {event.reason}.")
        elif isinstance(event, AgentEnded):
            sentences.append(_sentence_on_end(event))
    return sentences


def _sentence_on_end(event: AgentEnded) -> str:
    status = f" with exit code {event.exit_code}" if event.exit_code is not None else ""
    sentence = {
        "finished": "The agent ended by itself",
        "crashed": f"The agent crashed{status}" if event.exit_code != 0 else "The agent failed, with exit code 0",
        "deadline": "The agent worked until the deadline and was then ended",
        "quota": "The agent was ended",
        "unavailable": "The agent could not be started",
        "lost": "The pipeline failed while the agent was running, and the agent was ended",
        "interrupted": "The agent was ended",
    }[event.reason]
    return f"{sentence}: {event.why}." if event.why else f"{sentence}."


def _short_path(path: str) -> str:
    """Returns the path of a checkpoint below the workspace."""
    return path.rpartition("/workspace/")[2]
