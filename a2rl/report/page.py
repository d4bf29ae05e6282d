"""Writes `report/index.html` of a run from its ledger, records and grades; it needs nothing else and loads nothing."""

import time
from typing import NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from a2rl.budget import format_duration
from a2rl.catalog import find_agent, load_task
from a2rl.errors import UsageError
from a2rl.events import (
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
from a2rl.files import read_model, write_atomically
from a2rl.grading.job import GradeResult
from a2rl.keys import learn_secrets
from a2rl.ledger import Entry, grades_among
from a2rl.printable import printable
from a2rl.ranking import selection_note
from a2rl.records import VERDICTS, ExecuteRecord, GradeRecord, SetupRecord, Usage
from a2rl.report.chart import Point, draw
from a2rl.report.examples import Example, choose
from a2rl.report.llm import remarks, seen_figures
from a2rl.run import RunDir
from a2rl.score import Group
from a2rl.secrets import scrub
from a2rl.settings import Settings


class Row(NamedTuple):
    """A submission in the table."""

    number: str
    after: str
    model_path: str
    score: str
    gain: str
    note: str
    counts: bool


def write_report(run: RunDir, settings: Settings) -> None:
    """Draws the page anew.

    Raises:
        UsageError: the run has not got as far as a baseline.
    """
    spec, entries = run.spec, run.ledger.entries()
    agent = find_agent(spec.agent, settings.root)
    learn_secrets(agent, settings)
    baseline = next((entry.event.public for entry in entries if isinstance(entry.event, BaselineKnown)), None)
    if baseline is None:
        raise UsageError(
            f"run {run.id} has no baseline yet, so there is nothing to report: `a2rl resume {run.id}` goes on"
        )
    grade, executed, ready = (
        run.read("grade", GradeRecord),
        run.read("execute", ExecuteRecord),
        run.need("setup", SetupRecord),
    )
    counts = grade.submission_id if grade else None
    grades = grades_among(entries)
    points = _points(entries, grades, counts)
    environment = Environment(
        loader=PackageLoader("a2rl.report", "."),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        trim_blocks=True,
        finalize=_visible,
    )
    page = environment.get_template("page.html").render(
        spec=spec,
        task=load_task(spec.task, settings.root),
        setup=ready,
        grade=grade,
        executed=executed,
        baseline=baseline,
        verdict=_verdict(grade),
        selection=selection_note(run) if grade and grade.final else "",
        chart=draw(points, baseline.score, baseline.ci, run.clock.elapsed_s()),
        rows=_rows(entries, grades, counts),
        kinds=_kinds(grade) if grade else [],
        measures=_measures(grade) if grade else [],
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


def _visible(value: object) -> object:
    """What the page says, before it is escaped as HTML."""
    return value if isinstance(value, int | float) else printable(scrub(str(value)), lines=True)


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
            note = f"code {event.code_revision[:8]}" if event.code_revision else ""
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
    """A figure of the base model and of the result."""

    name: str
    before: str
    after: str


def _kinds(grade: GradeRecord) -> list[Compared]:
    """Scores by kind of item, where the task has kinds."""
    after = grade.final.groups if grade.final else {}
    return [
        Compared(f"{name} ({group.total})", _percent(group), _percent(after.get(name)))
        for name, group in grade.baseline.groups.items()
    ]


def _measures(grade: GradeRecord) -> list[Compared]:
    """The task's other figures."""
    after = grade.final.measures if grade.final else {}
    return [
        Compared(name, f"{value:.2f}", f"{after[name]:.2f}" if name in after else "-")
        for name, value in grade.baseline.measures.items()
    ]


def _examples(run: RunDir, entries: list[Entry], counts: int | None) -> list[Example]:
    """No examples where a run has no result, or does not have its items any more."""
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
    """What happened to the agent, in words; one sentence for each thing out of the ordinary."""
    starts = [entry.event for entry in entries if isinstance(entry.event, AgentStarted)]
    told, trials = [], starts[-1].trial if starts else 1
    if trials > 1:
        told.append(f"It made {trials} attempts, each with a summary of those before.")
    if len(starts) > trials:
        told.append(f"The agent was started {len(starts)} times: the run was resumed.")
    for event in (entry.event for entry in entries):
        if isinstance(event, RunInterrupted):
            told.append("It was interrupted by the user.")
        elif isinstance(event, ProcessesSurvived):
            listing = ", ".join(f"{pid} {name}" for pid, name in event.processes[:20])
            told.append(f"{len(event.processes)} of its processes could not be ended with it ({listing}).")
        elif isinstance(event, RunFailed):
            told.append(f"The run failed: {event.reason}.")
        elif isinstance(event, AgentEnded):
            status = f" with exit code {event.exit_code}" if event.exit_code is not None else ""
            sentence = {
                "finished": "The agent ended of its own accord.",
                "crashed": f"The agent crashed{status}.",
                "deadline": "The agent worked until the deadline and was then ended.",
                "quota": "The agent was ended.",
                "unavailable": "The agent could not be started.",
                "lost": "The pipeline died under the agent, which was ended with it.",
                "interrupted": "The agent was ended.",
            }[event.reason]
            told.append(sentence.removesuffix(".") + f": {event.why}." if event.why else sentence)
    return told


def _usage(usage: Usage | None) -> list[tuple[str, str]]:
    """What an agent system reports of its own work."""
    if usage is None:
        return []
    figures = [
        ("steps", usage.steps),
        ("tool calls", usage.tool_calls),
        ("tokens in", usage.prompt_tokens),
        ("of them cached", usage.cached_tokens),
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
        "driver": spec.driver or "-",
        "model digest": ready.model_digest[:16],
        "data digest": ready.data_digest[:16],
        **ready.data_about,
        "grading": f"{spec.backend}{', exact' if spec.exact else ''}",
        **spec.options,
        "split seed": str(spec.split_seed),
        "created": spec.created_at,
        "git commit": spec.git_commit or "-",
        **spec.versions,
    }
    return list(shown.items())
