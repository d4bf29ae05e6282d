"""Which items a report shows."""

from a2rl.report.examples import SHOWN, Example, choose
from a2rl.score import ItemResult, Verdict


def item(name: str, value: float, answer: str = "", verdict: Verdict = "wrong") -> ItemResult:
    return ItemResult(id=name, verdict=verdict, value=value, answer=answer)


def test_the_largest_gain_and_the_worst_answer_are_shown() -> None:
    before = [item("a", 0.5, "half"), item("b", 0, "left\n"), item("c", 0.2, "wander"), item("d", 1, "unseen")]
    after = [item("a", 1, "whole"), item("b", 0.9, "right"), item("c", 0.3, "stroll")]
    assert choose(before, after) == [
        Example("b: better than before", "left", "right"),
        Example("c: not solved", "wander", "stroll"),
    ]


def test_nothing_is_said_of_what_did_not_happen() -> None:
    assert choose([], []) == []
    assert choose([item("a", 1)], [item("a", 1)]) == []
    assert [one.title for one in choose([item("a", 0)], [item("a", 0.5)])] == ["a: better than before"]
    assert [one.title for one in choose([item("a", 1)], [item("a", 0.5)])] == ["a: not solved"]


def test_what_could_not_be_judged_is_no_example() -> None:
    assert choose([item("a", 0, verdict="errored")], [item("a", 1)]) == []
    assert choose([item("a", 0)], [item("a", 0, verdict="errored")]) == []


def test_a_long_answer_is_cut() -> None:
    [shown] = choose([item("a", 0, "x" * 5000)], [item("a", 1, "y" * SHOWN)])
    assert shown.before == "x" * SHOWN + " ..."
    assert shown.after == "y" * SHOWN
