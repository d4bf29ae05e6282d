"""What Prefect's pages show of a flow run: for each of its runs a progress bar, a table of submissions and links, and
at the end the leaderboard.

A `Mirror` calls this in a thread of its own, so that nothing here can fail or delay a run. The runs' texts are made
printable, and nothing of them is taken as markup.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import Any
from uuid import UUID

from prefect.artifacts import (
    TableArtifact,
    create_link_artifact,
    create_markdown_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactUpdate
from prefect.runtime import flow_run

from a2rl.core.errors import A2rlError
from a2rl.core.printable import printable
from a2rl.core.secrets import scrub
from a2rl.results.figures import scored_submissions
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.suite.leaderboard import Board, boards
from a2rl.results.suite.run_summary import summaries
from a2rl.results.suite.tables import runs, standings
from a2rl.results.table import plain, table_lines
from a2rl.run.budget import format_duration
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionRefused
from a2rl.run.ledger import Entry
from a2rl.run.records import GradeRecord

MAX_CELL = 300
MAX_KEY = 200
MAX_TAGS = 30
EVERY_S = 5.0
"""How often the progress bar of a run moves."""


class FlowPage:
    """The artifacts of the flow run that makes this object.

    Args:
        runs: The runs of the flow run.
        tracker: Knows the pages of the runs in MLflow.
    """

    def __init__(self, runs: Sequence[RunDir], tracker: Tracker) -> None:
        self._runs, self._tracker = runs, tracker
        self._context = copy_context()  # artifacts belong to the flow run of the context in which they are made
        self._made: dict[str, UUID] = {}
        self._shown: dict[str, object] = {}
        self._id, self._tags = str(flow_run.id or ""), tuple(flow_run.tags or ())

    def update(self, run: RunDir) -> None:
        """Brings the artifacts of a run up to date."""
        self._context.run(self._update, run)

    def finish(self) -> None:
        """Writes the leaderboard."""
        self._context.run(self._finish)

    def _update(self, run: RunDir) -> None:
        self._once("tags", "tags", self._tag)
        entries = run.ledger.entries()
        self._progress(run)
        if rows := list(_rows(run, entries)):
            key, description = _key(run, "submissions"), _about(run)
            self._once(key, (rows, description), lambda: self._show_table(key, rows, description))
        if run.report.exists():
            self._once(_key(run, "report"), run.report, lambda: self._link(run, "report", run.report.as_uri()))
        if page := self._tracker.page(run):
            self._once(_key(run, "mlflow"), page, lambda: self._link(run, "mlflow", page))

    def _progress(self, run: RunDir) -> None:
        if not run.clock.path.exists():
            return
        elapsed, allowed = run.clock.elapsed_s(), run.clock.allowed_s()
        share = round(100.0 if run.record_path("execute").exists() else min(100.0, 100 * elapsed / allowed), 1)
        description = f"{plain(run.id)}: {format_duration(elapsed)} of {format_duration(allowed)}"
        key = _key(run, "budget")
        self._once(key, (share, description), lambda: self._show_progress(key, share, description))

    def _show_progress(self, key: str, share: float, description: str) -> None:
        if key in self._made:
            update_progress_artifact(self._made[key], share, description, _sync=True)  # type: ignore[call-arg]
        else:
            self._made[key] = UUID(str(create_progress_artifact(share, key, description, _sync=True)))  # type: ignore[call-arg]

    def _show_table(self, key: str, rows: list[dict[str, Any]], description: str) -> None:
        if key in self._made:
            data = TableArtifact(table=rows).format(_sync=True)  # type: ignore[call-arg]
            with get_client(sync_client=True) as client:
                client.update_artifact(self._made[key], ArtifactUpdate(data=data, description=description))
        else:
            self._made[key] = UUID(str(create_table_artifact(rows, key, description, _sync=True)))  # type: ignore[call-arg]

    def _link(self, run: RunDir, what: str, url: str) -> None:
        text = {"report": "The report", "mlflow": "MLflow"}[what]
        create_link_artifact(url, text, _key(run, what), f"{text} of {plain(run.id)}", _sync=True)  # type: ignore[call-arg]

    def _once(self, key: str, state: object, write: Callable[[], object]) -> None:
        if self._shown.get(key) != state:
            write()
            self._shown[key] = state

    def _tag(self) -> None:
        tags = list(dict.fromkeys([*self._tags, *(tag for run in self._runs for tag in tags_of(run))]))[:MAX_TAGS]
        if self._id:
            with get_client(sync_client=True) as client:
                client.update_flow_run(UUID(self._id), tags=tags)

    def _finish(self) -> None:
        found, unreadable = summaries(self._runs)
        if not found:
            return
        key = _slug(f"{self._runs[0].spec.suite}-leaderboard")
        lines = [line for board in boards(found) for line in _board(board)]
        lines += [f"- {plain(run)} cannot be read: {plain(why)}" for run, why in unreadable.items()]
        if page := self._tracker.results_page(self._runs[0]):
            lines += ["", f"[All runs in MLflow]({page})"]
        create_markdown_artifact("\n".join(lines), key, "The results of this flow run", _sync=True)  # type: ignore[call-arg]


def tags_of(run: RunDir) -> list[str]:
    """Returns the tags by which the pages of Prefect find a run; none if its settings are not on this machine yet."""
    try:
        spec = run.spec
    except A2rlError:
        return []
    return [_cell(name) for name in (spec.suite, spec.launch, spec.task, spec.agent) if name]


def _rows(run: RunDir, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Yields the rows of a run's table of submissions, in the order in which they were graded or refused."""
    for each in scored_submissions(entries):
        score, improvement = each.grade.result.score, each.grade.improvement
        yield {
            "submission": each.submission.submission_id,
            "time": format_duration(each.submission.elapsed_s),
            "public score": "" if score is None else f"{score:.1f}",
            "gain": "" if improvement is None else f"{improvement:+.1f}",
            "model": _cell(each.submission.model_path.removeprefix(f"{run.workspace}/")),
            "note": _cell(each.grade.result.reason),
        }
    for entry in entries:
        if isinstance(event := entry.event, SubmissionRefused):
            yield {
                "submission": "refused", "time": format_duration(event.elapsed_s), "public score": "", "gain": "",
                "model": _cell(event.model_path.removeprefix(f"{run.workspace}/")), "note": _cell(event.reason),
            }  # fmt: skip


def _about(run: RunDir) -> str:
    description = f"Submissions of {plain(run.id)}"
    graded = run.read("grade", GradeRecord)
    if graded is None:
        return description
    score = graded.final.score if graded.final else None
    result = "" if score is None else f", score {score:.1f} ({graded.gain:+.1f})"
    return f"{description}. Result: {graded.verdict}{result}"


def _board(board: Board) -> Iterator[str]:
    yield f"### {plain(board.variant)}"
    yield ""
    yield from table_lines(standings(board))
    yield ""
    yield from table_lines(runs(board))


def _cell(text: str) -> str:
    """Returns a text for a cell of a table, where Prefect takes only `[text](url)` as markup."""
    return printable(scrub(text), MAX_CELL).replace("](", "] (")


def _key(run: RunDir, what: str) -> str:
    return _slug(f"{run.id}-{what}")


def _slug(text: str) -> str:
    """Returns a key as Prefect accepts it."""
    return re.sub(r"[^a-z0-9-]+", "-", text.lower())[-MAX_KEY:].strip("-")
