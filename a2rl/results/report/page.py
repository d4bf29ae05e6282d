"""Writes the report of a run from its ledger, records and grades: a self-contained page, and the same as JSON.

`python -P -m a2rl.results.report.page RUN` is the process that does it. It is a separate one because the report shows
what the agent wrote: `draw_report` limits it.
"""

import sys
import time
from pathlib import Path
from typing import Any

from a2rl.agent_systems.definition import recorded_agent
from a2rl.core.errors import InfrastructureError
from a2rl.core.files import write_atomically
from a2rl.core.processes import read_apart
from a2rl.core.settings import Settings
from a2rl.llm.keys import keys_message, receive_keys, register_run_secrets
from a2rl.recording.trajectory import read_summary
from a2rl.results.comparability import comparability
from a2rl.results.report.data import RunReport, gather, need_baseline, story, verdict_in_words
from a2rl.results.report.tables import (
    Chart,
    examples_of,
    judge_figures,
    kinds,
    measures,
    remarks,
    seen_figures,
    settings_and_versions,
    usage_figures,
)
from a2rl.results.report.work import code_changes, read_steps, time_line
from a2rl.results.table import load_template
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.ledger import Entry, events_of
from a2rl.run.ranking import sample_note, selection_note
from a2rl.run.records import ExecuteRecord, GradeRecord, SetupRecord
from a2rl.task_api.catalog import load_task
from a2rl.validity.record import read_validity

TIMEOUT_S, MAX_CPU_S = 100.0, 25
MAX_MEMORY_BYTES = 1000 << 20
DATA = "report.json"
"""The file for programs, beside the page."""


def draw_report(run: RunDir, settings: Settings) -> None:
    """Writes the report as `write_report` does, in a limited process: what it shows was written by the agent.

    Raises:
        UsageError: The run has no baseline yet.
        InfrastructureError: The report cannot be drawn.
    """
    need_baseline(run, run.ledger.entries())
    register_run_secrets(recorded_agent(run.spec.agent, settings.root), settings)
    limits = (TIMEOUT_S, MAX_MEMORY_BYTES, MAX_CPU_S)
    read = read_apart("a2rl.results.report.page", [str(run.root)], settings, keys_message({}), *limits)
    if read.problem:
        raise InfrastructureError(f"the report of run {run.id} cannot be drawn: {read.problem}")


def write_report(run: RunDir, settings: Settings) -> None:
    """Writes `index.html` and `report.json` in the run's folder `report`; existing ones are replaced.

    Raises:
        UsageError: The run has no baseline yet.
    """
    for name, text in report_files(run, settings).items():
        write_atomically(run.report.with_name(name), text)


def report_files(run: RunDir, settings: Settings, entries: list[Entry] | None = None) -> dict[str, str]:
    """Returns the files of the report by name. They follow from the run's files alone, so that `a2rl verify` can make
    them again and compare.

    Args:
        entries: The ledger as it was when the report was drawn; as it is now unless given.

    Raises:
        UsageError: The run has no baseline yet.
    """
    register_run_secrets(recorded_agent(run.spec.agent, settings.root), settings)
    entries = run.ledger.entries() if entries is None else entries
    report = gather(run, entries)
    page = load_template("a2rl.results.report").render(
        **_head(run, entries, settings), **_results(run, entries, report), **_work(run, entries, settings)
    )
    return {
        run.report.name: page,
        DATA: report.model_dump_json(indent=2) + "\n",
    }


def _head(run: RunDir, entries: list[Entry], settings: Settings) -> dict[str, Any]:
    """Returns what the page says of the run as a whole."""
    ready = run.need("setup", SetupRecord)
    return {
        "spec": run.spec,
        "task": load_task(run.spec.task, settings.root),
        "setup": ready,
        "sample": sample_note(run),
        "comparable": comparability(run),
        "budget": format_duration(run.spec.budget_s),
        "duration": format_duration,
        "elapsed": format_duration(run.clock.used_s()),
        "settings": settings_and_versions(run, ready),
        "as_of": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(entries[-1].at)),
    }


def _results(run: RunDir, entries: list[Entry], report: RunReport) -> dict[str, Any]:
    """Returns the scores, and what follows from them."""
    baseline, grade = need_baseline(run, entries), run.read("grade", GradeRecord)
    counts, accepted = grade.submission_id if grade else None, events_of(entries, SubmissionAccepted)
    return {
        "grade": grade,
        "baseline": baseline,
        "verdict": verdict_in_words(grade),
        "validity": read_validity(run),
        "selection": selection_note(run) if grade and grade.final else "",
        "chart": Chart(report.submissions, baseline.score, baseline.ci, run.clock.used_s()),
        "submissions": report.submissions,
        "adapters": {each.submission_id: each.adapter for each in accepted},
        "kinds": kinds(grade) if grade else [],
        "measures": measures(grade) if grade else [],
        "judge": judge_figures(grade),
        "examples": examples_of(run, entries, counts),
        "head": entries[-1].hash,
    }


def _work(run: RunDir, entries: list[Entry], settings: Settings) -> dict[str, Any]:
    """Returns what the agent did."""
    executed, agent = run.read("execute", ExecuteRecord), recorded_agent(run.spec.agent, settings.root)
    steps = read_steps(run, entries)
    return {
        "executed": executed,
        "story": story(entries),
        "usage": usage_figures(executed.usage if executed else None),
        "seen": seen_figures(executed.seen if executed else None),
        "remarks": remarks(executed, run.spec.driver, agent.calls_llm),
        "changes": code_changes(run.code, entries),
        "claims": read_summary(run),
        "steps": steps,
        "time_line": time_line(run, entries, steps),
        "marks": steps.marks if steps else [],
    }


if __name__ == "__main__":
    receive_keys(sys.stdin)
    write_report(RunDir(Path(sys.argv[1])), Settings.load())
