"""The submissions of a run, for its chart and its table."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from a2rl.results.report.chart import Point
from a2rl.run.budget import format_duration
from a2rl.run.events import Graded, SubmissionAccepted, SubmissionRefused
from a2rl.run.ledger import Entry


class Row(NamedTuple):
    """A row in the table of submissions."""

    number: str
    after: str
    model_path: str
    score: str
    gain: str
    note: str
    counts: bool


def points(entries: Sequence[Entry], grades: Mapping[str, Graded], counts: int | None) -> list[Point]:
    """Returns the scored submissions; `counts` is the one that the result comes from."""
    return [
        Point(event.submission_id, event.elapsed_s, result.score, result.ci, event.submission_id == counts)
        for event in (entry.event for entry in entries)
        if isinstance(event, SubmissionAccepted)
        and (grade := grades.get(event.weights_digest)) is not None
        and (result := grade.result).score is not None
    ]


def rows(entries: Sequence[Entry], grades: Mapping[str, Graded], counts: int | None) -> list[Row]:
    """Returns all submissions, also those that were refused."""
    found = []
    for event in (entry.event for entry in entries):
        if isinstance(event, SubmissionRefused):
            what = "refused" if event.count == 1 else f"{event.count} refused"
            found.append(Row("-", format_duration(event.elapsed_s), event.model_path, what, "", event.reason, False))
        elif isinstance(event, SubmissionAccepted):
            grade = grades.get(event.weights_digest)
            gain = f"{grade.improvement:+.1f}" if grade and grade.improvement is not None else ""
            code = f"code {event.code_revision[:8]}" if event.code_revision else ""
            merged = f"{event.adapter}, merged by the grader" if event.adapter else ""
            note = "; ".join(each for each in (code, merged) if each)
            found.append(
                Row(
                    str(event.submission_id),
                    format_duration(event.elapsed_s),
                    short_path(event.model_path),
                    str(grade.result) if grade else "not graded",
                    gain,
                    note,
                    event.submission_id == counts,
                )
            )
    return found


def short_path(path: str) -> str:
    """Returns the path of a checkpoint below the workspace."""
    return path.rpartition("/workspace/")[2]
