"""Writes `report/index.html` of a run from its ledger, records and grades. The page is self-contained."""

import time
from typing import NamedTuple

from a2rl.agents.catalog import find_agent
from a2rl.core.errors import UsageError
from a2rl.core.files import read_model, write_atomically
from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.llm.keys import register_run_secrets
from a2rl.results.comparability import comparability
from a2rl.results.report.chart import Point, draw
from a2rl.results.report.examples import Example, choose
from a2rl.results.report.llm import remarks, seen_figures
from a2rl.results.report.template import load_template
from a2rl.run.budget import format_duration
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
from a2rl.run.ledger import Entry, grades_among
from a2rl.run.ranking import selection_note
from a2rl.run.records import VERDICTS, ExecuteRecord, GradeRecord, SetupRecord, Usage
from a2rl.run.sample import sample_note
from a2rl.scoring.score import Group
from a2rl.tasks.catalog import load_task


class Row(NamedTuple):
    """A row in the table of submissions."""

    number: str
    after: str
    model_path: str
    score: str
    gain: str
    note: str
    counts: bool


def write_report(run: RunDir, settings: Settings) -> None:
    """Writes the page; an existing one is replaced.

    Raises:
        UsageError: The run has no baseline yet.
    """
    spec, entries = run.spec, run.ledger.entries()
    agent = find_agent(spec.agent, settings.root)
    register_run_secrets(agent, settings)
    baselines = [entry.event.public for entry in entries if isinstance(entry.event, BaselineKnown)]
    if not baselines:
        raise UsageError(
            f"run {run.id} has no baseline yet, so there is nothing to report: `a2rl resume {run.id}` continues it"
        )
    baseline = baselines[0]
    grade = run.read("grade", GradeRecord)
    executed = run.read("execute", ExecuteRecord)
    ready = run.need("setup", SetupRecord)
    counts = grade.submission_id if grade else None
    grades = grades_among(entries)
    points = _points(entries, grades, counts)
    page = load_template("a2rl.results.report").render(
        spec=spec,
        task=load_task(spec.task, settings.root),
        setup=ready,
        grade=grade,
        executed=executed,
        baseline=baseline,
        verdict=_verdict(grade),
        selection=selection_note(run) if grade and grade.final else "",
        sample=sample_note(run),
        comparable=comparability(run),
        chart=draw(points, baseline.score, baseline.ci, run.clock.elapsed_s()),
        rows=_rows(entries, grades, counts),
        kinds=_kinds(grade) if grade else [],
        measures=_measures(grade) if grade else [],
        judge=_judge(grade),
        examples=_examples(run, entries, counts),
        story=_story(entries),
        usage=_usage(executed.usage if executed else None),
        seen=seen_figures(executed.seen if executed else None),
        remarks=remarks(executed, spec.driver, agent.calls_llm),
        budget=format_duration(spec.budget_s),
        elapsed=format_duration(run.clock.elapsed_s()),
        settings=_settings(run, ready),
        drawn_at=time.strftime("%Y-%m-%d %H:%M"),
        head=entries[-1].hash,
    )
    write_atomically(run.report, page)


def _verdict(grade: GradeRecord | None) -> str:
    if grade is None:
        return "the run is not finished"
    return VERDICTS[grade.verdict] + (f" ({grade.reason})" if grade.reason else "")


def _points(entries: list[Entry], grades: dict[str, Graded], counts: int | None) -> list[Point]:
    return [
        Point(event.submission_id, event.elapsed_s, result.score, result.ci, event.submission_id == counts)
        for event in (entry.event for entry in entries)
        if isinstance(event, SubmissionAccepted)
        and (grade := grades.get(event.weights_digest)) is not None
        and (result := grade.result).score is not None
    ]


def _rows(entries: list[Entry], grades: dict[str, Graded], counts: int | None) -> list[Row]:
    rows = []
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused):
            what = "refused" if event.count == 1 else f"{event.count} refused"
            rows.append(Row("-", format_duration(event.elapsed_s), event.model_path, what, "", event.reason, False))
        elif isinstance(event, SubmissionAccepted):
            grade = grades.get(event.weights_digest)
            gain = f"{grade.improvement:+.1f}" if grade and grade.improvement is not None else ""
            code = f"code {event.code_revision[:8]}" if event.code_revision else ""
            merged = f"{event.adapter}, merged by the grader" if event.adapter else ""
            note = "; ".join(each for each in (code, merged) if each)
            rows.append(
                Row(
                    str(event.submission_id),
                    format_duration(event.elapsed_s),
                    _short(event.model_path),
                    str(grade.result) if grade else "not graded",
                    gain,
                    note,
                    event.submission_id == counts,
                )
            )
    return rows


class Compared(NamedTuple):
    """A figure for the base model and for the result."""

    name: str
    before: str
    after: str


def _kinds(grade: GradeRecord) -> list[Compared]:
    """Returns the scores for each kind of item, if the task has kinds."""
    after = grade.final.groups if grade.final else {}
    return [
        Compared(f"{name} ({group.total})", _percent(group), _percent(after.get(name)))
        for name, group in grade.baseline.groups.items()
    ]


def _measures(grade: GradeRecord) -> list[Compared]:
    """Returns the other figures of the task."""
    before, after = grade.baseline.measures, grade.final.measures if grade.final else {}
    return [Compared(name, *(_mean(each.get(name)) for each in (before, after))) for name in {**before, **after}]


def _mean(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _judge(grade: GradeRecord | None) -> list[tuple[str, str]]:
    """Returns what the judge was asked, what it cost, and its noise."""
    if grade is None or grade.judge is None:
        return []
    judge = grade.judge
    shown = {
        "judge": judge.name or judge.model,
        "model": judge.model,
        "asked by": judge.annotator,
        "requests": f"{judge.use.requests:,}",
        "tokens in": f"{judge.use.prompt_tokens:,}",
        "tokens out": f"{judge.use.completion_tokens:,}",
        "paid": f"${judge.use.dollars:.4f}",
    }
    if judge.limit_usd is not None:
        shown["limit"] = f"${judge.limit_usd:.4f}"
    if judge.for_agent.requests or judge.searches:
        shown["of which for the agent"] = f"{judge.for_agent.requests:,} requests, ${judge.for_agent.dollars:.4f}"
        shown["the agent's searches"] = f"{judge.searches:,}"
    shown["noise"] = str(judge.noise) if judge.noise else "not measured (--judge-sample)"
    return list(shown.items())


def _examples(run: RunDir, entries: list[Entry], counts: int | None) -> list[Example]:
    """Returns no examples if the run has no result, or if its items were deleted."""
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionAccepted) and event.submission_id == counts:
            paths = (run.baseline_items, run.items(event.weights_digest, run.spec.final_split))
            if all(path.is_file() for path in paths):
                baseline, result = (read_model(path, GradeResult).items for path in paths)
                return choose(baseline, result)
    return []


def _percent(group: Group | None) -> str:
    return "-" if group is None or group.score is None else f"{group.score:.1f}"


def _short(path: str) -> str:
    return path.rpartition("/workspace/")[2]


def _story(entries: list[Entry]) -> list[str]:
    """Returns sentences on how the agent ended and on everything unusual."""
    starts = [entry.event for entry in entries if isinstance(entry.event, AgentStarted)]
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
        "crashed": f"The agent crashed{status}",
        "deadline": "The agent worked until the deadline and was then ended",
        "quota": "The agent was ended",
        "unavailable": "The agent could not be started",
        "lost": "The pipeline failed while the agent was running, and the agent was ended",
        "interrupted": "The agent was ended",
    }[event.reason]
    return f"{sentence}: {event.why}." if event.why else f"{sentence}."


def _usage(usage: Usage | None) -> list[tuple[str, str]]:
    """Returns the figures that an agent system reports of its own work."""
    if usage is None:
        return []
    figures = [
        ("steps", usage.steps),
        ("tool calls", usage.tool_calls),
        ("tokens in", usage.prompt_tokens),
        ("of which cached", usage.cached_tokens),
        ("tokens out", usage.completion_tokens),
    ]
    shown = [(name, "not reported" if value is None else f"{value:,}") for name, value in figures]
    cost = "not reported" if usage.cost_usd is None else f"${usage.cost_usd:.2f}"
    unread = [("lines not understood", f"{usage.unreadable:,}")] if usage.unreadable else []
    return [*shown, ("cost", cost), *unread]


def _settings(run: RunDir, ready: SetupRecord) -> list[tuple[str, str]]:
    spec = run.spec
    shown = {
        "run": spec.run_id,
        "suite": spec.suite,
        "launch": spec.launch or "-",
        "driver": spec.driver or "-",
        "model digest": ready.model_digest[:16],
        **({"base model not tried": ready.base_not_tried} if ready.base_not_tried else {}),
        "data digest": ready.data_digest[:16],
        **ready.data_about,
        "grading": f"{spec.backend}{', exact' if spec.exact else ''}",
        "answers": spec.generation.in_words(),
        **spec.options,
        "draw of the eval set": f"SHA-256 {spec.draw.commitment[:16]}"
        if spec.draw
        else f"split seed {spec.split_seed}",
        "created": spec.created_at,
        "git commit": spec.git_commit or "-",
        **spec.versions,
    }
    return list(shown.items())
