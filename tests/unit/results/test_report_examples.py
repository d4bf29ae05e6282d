"""Tests which items a report shows as examples."""

from pathlib import Path

import pytest

from a2rl.core.files import read_model, write_model
from a2rl.grading.job import GradeResult
from a2rl.grading.outputs import outputs_path
from a2rl.results.report.page import write_report
from a2rl.results.report.tables import MAX_CHARS, Example, choose
from a2rl.run.events import PrivateGraded
from a2rl.scoring.score import ItemResult, Verdict
from tests.run_maker import finished_run, grade_result, write_outputs


def item(name: str, value: float, answer: str = "", verdict: Verdict = "wrong") -> ItemResult:
    return ItemResult(id=name, verdict=verdict, value=value, answer=answer)


def test_the_largest_gain_and_the_worst_answer_are_shown() -> None:
    before = [item("a", 0.5, "half"), item("b", 0, "left\n"), item("c", 0.2, "wander"), item("d", 1, "unseen")]
    after = [item("a", 1, "whole"), item("b", 0.9, "right"), item("c", 0.3, "stroll")]
    assert choose(before, after) == [
        Example("b", "better than before", "left", "right"),
        Example("c", "not solved", "wander", "stroll"),
    ]


def test_nothing_is_said_of_what_did_not_happen() -> None:
    assert choose([], []) == []
    assert choose([item("a", 1)], [item("a", 1)]) == []
    assert [one.title for one in choose([item("a", 0)], [item("a", 0.5)])] == ["better than before"]
    assert [one.title for one in choose([item("a", 1)], [item("a", 0.5)])] == ["not solved"]


def test_what_could_not_be_judged_is_no_example() -> None:
    assert choose([item("a", 0, verdict="errored")], [item("a", 1)]) == []
    assert choose([item("a", 0)], [item("a", 0, verdict="errored")]) == []


def test_a_long_answer_is_cut() -> None:
    [shown] = choose([item("a", 0, "x" * 5000)], [item("a", 1, "y" * MAX_CHARS)])
    assert shown.before == "x" * MAX_CHARS + " ..."
    assert shown.after == "y" * MAX_CHARS


@pytest.mark.heavy
def test_the_page_shows_texts_as_text_and_does_without_the_items(tmp_path: Path) -> None:
    run, settings = finished_run(tmp_path / "checkout")
    [private] = run.ledger.events(PrivateGraded)
    path = run.items(private.weights_digest, "private")
    items = read_model(path, GradeResult).items
    write_model(path, grade_result([one.model_copy(update={"answer": "<b>7</b>"}) for one in items], 0.5))
    write_outputs(path, "<b>7</b>")
    write_report(run, settings)
    page = run.report.read_text()
    assert "Examples" in page
    assert '<pre class="asked">1 + 1?</pre>' in page
    assert "<pre>&lt;b&gt;7&lt;/b&gt;</pre>" in page
    assert "<b>7</b>" not in page

    outputs_path(path).write_bytes(b"damaged")
    write_report(run, settings)
    page = run.report.read_text()
    assert "Examples" in page
    assert "1 + 1?" not in page

    path.unlink()
    write_report(run, settings)
    assert "Examples" not in run.report.read_text()
