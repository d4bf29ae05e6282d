"""Writes the report over many runs: a page that needs no other host, its data as JSON and CSV, and its figures."""

import csv
import io
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from a2rl.cluster.status import fetch_suites, submitted_runs
from a2rl.core.errors import UsageError
from a2rl.core.files import FrozenModel, digest_of, write_atomically, write_model
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.core.settings import Settings
from a2rl.results.figures import RunMetrics
from a2rl.results.suite import tables
from a2rl.results.suite.drawing import Figure
from a2rl.results.suite.figures import NAMES, draw_figures
from a2rl.results.suite.leaderboard import APART, CHOSEN, MARKS, Board, Reversal, Standing, boards
from a2rl.results.suite.run_summary import RunSummary, Summaries, summaries
from a2rl.results.table import load_template
from a2rl.run.directory import RunDir
from a2rl.run.owner import is_made_here
from a2rl.scoring.means import Interval
from a2rl.task_api.catalog import tasks_here
from a2rl.task_api.contract import Variant

COLUMNS = (
    "run_id", "bundle", "signed_by", "graded_anew", "launch", "suite", "variant", "task", "stack", "agent", "driver",
    "mode", "protocol", "model", "seed",
    "verdict", "validity", "route", "failures", "gain", "ci_low", "ci_high", "cross_fitted", "baseline", "final",
    "submissions", "refused",
    "agent_s", "tokens", "cost_usd", "gpu_hours", "parameters", *RunMetrics.model_fields, "reason",
)  # fmt: skip


NOT_THERE = "it was submitted, and nothing of it is here or in the store"
MAX_NAME = 100
"""A longer name is cut; it becomes a folder's."""
DIGEST_CHARS = 8


class CellRow(FrozenModel):
    """One stack on one task, in report.json."""

    variant: str
    stack: str
    task: str
    runs: tuple[str, ...]
    """Run ids."""
    gain: float
    ci: Interval
    verdicts: dict[str, int]
    expected_best: tuple[float, ...]
    is_best: bool
    is_worst: bool
    is_reversed: bool


class SuiteReport(FrozenModel):
    """`report.json`: everything that the page shows. Its JSON schema is in docs/suite-report.schema.json."""

    schema_version: Literal[1] = 1
    name: str
    standings: tuple[Standing, ...]
    cells: tuple[CellRow, ...]
    reversals: tuple[Reversal, ...]
    unfinished: tuple[str, ...]
    unreadable: dict[str, str]
    """Run id -> why the run is not in the report."""


def runs_of(names: Sequence[str], settings: Settings) -> list[RunDir]:
    """Returns the runs that belong to any of these suites, launches or run ids, here or in the store.

    Raises:
        UsageError: A name has no runs.
        InfrastructureError: The store failed.
    """
    here = {run.id: run for run in RunDir.all(settings.runs)}
    known = sorted((here | {run.id: run for run in fetch_suites(names, settings)}).values(), key=lambda run: run.id)
    found: dict[str, RunDir] = {}
    for name in names:
        of_name = [run for run in known if run.goes_by([name])]
        if not of_name and (submitted := submitted_runs([name], settings)):
            raise UsageError(
                f"no machine has begun a run of {name!r} ({len(submitted)} submitted): see `a2rl suite status {name}`"
            )
        if not of_name:
            raise UsageError(f"no runs of a suite, launch or run id {name!r}: `a2rl runs` lists what there is")
        found |= {run.id: run for run in of_name}
    return list(found.values())


def not_there(names: Sequence[str], runs: Iterable[RunDir], settings: Settings) -> dict[str, str]:
    """Returns the runs of these suites, launches or run ids that were submitted and are not among those found.

    Returns:
        Run id -> why the run is missing.

    Raises:
        InfrastructureError: The claims failed.
    """
    there = {run.id for run in runs}
    return dict.fromkeys((each for each in submitted_runs(names, settings) if each not in there), NOT_THERE)


def report_name(names: Sequence[str]) -> str:
    """Returns the name of the folder for a report over these suites, launches or runs.

    If the names cannot be read from it, because it was cut or characters were replaced, it ends with a digest of them.
    """
    wanted = list(dict.fromkeys(names))
    name = re.sub(r"[^\w.-]", "_", "-and-".join(wanted))[:MAX_NAME]
    if name.split("-and-") == wanted:
        return name
    return f"{name[: MAX_NAME - DIGEST_CHARS - 1]}-{digest_of(wanted)[:DIGEST_CHARS]}"


def write_suite_report(
    name: str, runs: Iterable[RunDir], settings: Settings, missing: Mapping[str, str] = MappingProxyType({})
) -> Path:
    """Writes the report over some runs to `reports/<name>/`.

    Args:
        missing: Why others are left out, by run id.

    Returns:
        The path of the page.

    Raises:
        UsageError: None of the runs can be read.
    """
    runs = list(runs)
    found = summaries(runs)
    if not found.runs:
        raise UsageError("there is no run to report on")
    folder = settings.reports / name
    # The page of a run that was sent may have been written by anybody.
    ours = [run for run in runs if run.root.parent == settings.fetched or is_made_here(run, settings)]
    links = {run.id: os.path.relpath(run.report, folder) for run in ours if run.report.exists()}
    return write_site(folder, name, Summaries(found.runs, {**missing, **found.unreadable}), links, settings)


def write_site(
    folder: Path, name: str, found: Summaries, links: Mapping[str, str], settings: Settings, feed: str = ""
) -> Path:
    """Writes a report over runs, whose pages may be anywhere.

    Args:
        found: The runs, and why others are left out.
        links: The page of each run that has one, relative to the folder, by run id.
        feed: The name of a file with a feed, in the folder; empty for none.

    Returns:
        The path of the page.
    """
    shown = boards(found.runs)
    tasks = tasks_here(settings.root)
    figures = {board.variant: list(draw_figures(board)) for board in shown}
    for variant, drawn in figures.items():
        for figure in drawn:
            _write_figure(folder / "figures" / variant, figure)
    write_model(folder / "report.json", report_of(name, shown, found.unreadable))
    rows = (_run_row(run, cell.stack) for board in shown for cell in board.cells for run in cell.runs)
    _write_csv(folder / "runs.csv", COLUMNS, rows)
    page = load_template("a2rl.results.suite").render(
        name=name, boards=shown, figures=figures, marks=MARKS, chosen=CHOSEN, apart=APART, feed=feed, links=links,
        tables=tables, comparisons={board.variant: tables.comparisons(board) for board in shown},
        left_out=tables.left_out(found.unreadable), whole=[task.id for task in tasks.values() if not task.full],
        drawn_at=time.strftime("%Y-%m-%d %H:%M"),
    )  # fmt: skip
    write_atomically(folder / "index.html", page)
    for variant in get_args(Variant):
        # Those of other runs, such as that of a bundle that was withdrawn. Files of other names are the user's.
        for old in set(NAMES) - {figure.name for figure in figures.get(variant, ())}:
            for path in (folder / "figures" / variant / f"{old}.{kind}" for kind in ("svg", "pdf", "csv")):
                if path.is_file() and not path.is_symlink():
                    path.unlink(missing_ok=True)
    return folder / "index.html"


def report_of(name: str, shown: Sequence[Board], unreadable: dict[str, str]) -> SuiteReport:
    """Returns the report's data."""
    cells = [
        CellRow(
            variant=board.variant, stack=cell.stack, task=cell.task, runs=tuple(run.run_id for run in cell.runs),
            gain=cell.gain, ci=cell.ci, verdicts={str(key): count for key, count in cell.verdicts.items()},
            expected_best=tuple(cell.expected_best), is_best=cell.is_best,
            is_worst=cell.is_worst, is_reversed=cell.is_reversed,
        )
        for board in shown
        for cell in board.cells
    ]  # fmt: skip
    return SuiteReport(
        name=name,
        standings=tuple(each for board in shown for each in board.standings),
        cells=tuple(cells),
        reversals=tuple(each for board in shown for each in board.reversals),
        unfinished=tuple(run.run_id for board in shown for run in board.unfinished),
        unreadable=unreadable,
    )


def _run_row(run: RunSummary, stack: str) -> dict[str, Any]:
    low, high = run.ci or (None, None)
    facts: Mapping[str, Any] = {
        **run.settings, **run.metrics.model_dump(), **dict(run), "stack": stack, "ci_low": low, "ci_high": high,
        "route": " > ".join(run.route), "failures": ", ".join(run.failures),
    }  # fmt: skip
    return {name: facts[name] for name in COLUMNS}


def _write_figure(folder: Path, figure: Figure) -> None:
    write_atomically(folder / f"{figure.name}.svg", figure.svg)
    folder.joinpath(f"{figure.name}.pdf").write_bytes(figure.pdf)
    if figure.rows:
        _write_csv(folder / f"{figure.name}.csv", list(figure.rows[0]), figure.rows)


def _write_csv(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _plain(value) for key, value in row.items()} for row in rows)
    write_atomically(path, text.getvalue())


def _plain(value: Any) -> Any:
    """Returns a value for a CSV file. A text that a spreadsheet would take for a formula is marked as text.

    Where commas are in numbers, spreadsheets take semicolons for the ends of cells.
    """
    if not isinstance(value, str):
        return value
    return re.sub(r"(^|;)(?=\s*[=+@-])", r"\1'", printable(scrub(value)))
