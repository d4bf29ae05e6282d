"""A run's report as Markdown, for issues, notebooks and other programs' pages."""

import re
from collections.abc import Iterator

from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.results.report.data import RunReport, Submitted
from a2rl.results.table import Table, interval, points
from a2rl.run.budget import format_duration
from a2rl.run.records import VERDICTS
from a2rl.task_api.contract import Task

MAX_TEXT = 300
"""Characters of one text of the agent."""
SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~&:@-])")
"""What Markdown, tables, HTML or a site that shows it could take for markup, links or mentions."""


def as_markdown(report: RunReport, task: Task) -> str:
    """Returns the report. Everything that an agent may have written is shown as it is, never as markup."""
    return "\n".join(_lines(report, task)) + "\n"


def plain(text: object) -> str:
    """Returns a text in one line in which nothing is markup."""
    return SPECIAL.sub(r"\\\1", printable(scrub(str(text)), MAX_TEXT))


def table_lines(table: Table) -> Iterator[str]:
    """Yields the lines of a table, in which nothing is markup."""
    yield _row(*table.columns)
    yield f"|{'|'.join('---:' if column in table.right else '---' for column in table.columns)}|"
    yield from (_row(*(cell.text for cell in row)) for row in table.rows)


def _lines(report: RunReport, task: Task) -> Iterator[str]:
    settings = report.settings
    yield f"# {plain(task.title)}: {plain(report.agent)}"
    yield ""
    facts = [settings["variant"], settings["mode"], f"{settings['protocol']} protocol", f"seed {settings['seed']}",
             f"base model {settings['model']}", f"driver {settings['driver'] or 'none'}",
             f"budget {format_duration(report.budget_s)}"]  # fmt: skip
    yield plain(", ".join(map(str, facts)))
    yield ""
    yield "| base model | result | gain | 95% interval | verdict | validity |"
    yield "|---:|---:|---:|---|---|---|"
    verdict = VERDICTS[report.verdict] if report.verdict else "the run is not finished"
    why = f" ({report.reason})" if report.reason else ""
    yield _row(
        points(report.baseline.score), points(report.final.score if report.final else None),
        points(report.improvement, "+"), interval(report.improvement_ci, "+"), f"{verdict}{why}",
        report.validity or "not decided",
    )  # fmt: skip
    yield ""
    for sentence in (*report.story, *_notes(report)):
        yield f"- {plain(sentence)}"
    yield ""
    yield "## Submissions"
    yield ""
    if report.submissions:
        yield "| # | after | checkpoint | score | 95% interval | gain | |"
        yield "|---:|---|---|---:|---|---:|---|"
    else:
        yield "None."
    for each in report.submissions:
        yield _submission(each)
    yield ""
    yield f"Run {plain(report.run_id)}, ledger {report.ledger_head[:16]}. `a2rl verify` checks it."


def _notes(report: RunReport) -> Iterator[str]:
    for reason in report.not_valid_because:
        yield f"The result is {report.validity}: {reason}"
    if report.selection:
        yield f"The result is the {report.selection}."
    if report.sample:
        yield f"Every score is that of a {report.sample} items of the eval set."
    if report.settings["variant"] == "mini":
        yield "Mini data: these figures show that the pipeline works. Never compare them with published scores."
        return
    for reason in report.not_comparable_because:
        yield f"Not comparable with the published figures: {reason}."


def _submission(each: Submitted) -> str:
    note = "the result" if each.is_result else each.reason or ("" if each.outcome == "graded" else each.outcome)
    return _row(
        each.number or "-", format_duration(each.elapsed_s), each.model_path, points(each.score),
        interval(each.ci), points(each.gain, "+"), note,
    )  # fmt: skip


def _row(*cells: object) -> str:
    return f"| {' | '.join(plain(cell) for cell in cells)} |"
