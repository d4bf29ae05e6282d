"""Tests that no regular expression of ours takes more than linear time, whatever text it gets."""

import pytest

from tasks.deepsearchqa.research.match import items
from tasks.webshop.shop.analysis import words
from tests.patterns import GROWTH, LIMIT_S, LIMITED, TRUSTED, Pattern, patterns, slowest, slowest_within

FOUND = list(patterns())
NOT_YET = ("tasks/gsm8k/final_number.py", "tasks/humaneval/program.py")
"""Modules with patterns that are not linear and whose limits do not make them fast."""


def test_the_patterns_of_all_modules_are_found() -> None:
    assert len(FOUND) > 120
    texts = {each.text for each in FOUND}
    assert set(TRUSTED) <= texts, "these are no longer in the code"


@pytest.mark.parametrize("pattern", [each for each in FOUND if each.text not in TRUSTED], ids=lambda each: each.place)
def test_a_pattern_takes_linear_time(pattern: Pattern) -> None:
    if pattern.place.partition(":")[0] in NOT_YET:
        pytest.xfail("reads at most some thousand characters, in more than linear time")
    if size := LIMITED.get(pattern.place.partition(":")[0]):
        found = slowest_within(pattern, size)
        assert found.seconds < LIMIT_S, str(found)
    else:
        found = slowest(pattern)
        assert found.growth <= GROWTH, str(found)


@pytest.mark.parametrize(
    "text", [r"_*[a-z]\w*", r"^\s*stage", r"(?:,|;)(?![^()]*\))", r"(.+)\[(.+)\]", r"(a+)+b", r"x\s*[:=]?\s*1"]
)
def test_a_pattern_that_takes_longer_is_noticed(text: str) -> None:
    assert slowest(Pattern("here", text, 8, frozenset({"search"}))).growth > GROWTH


def test_the_tokeniser_and_the_items_of_an_answer_read_long_texts_at_once() -> None:
    assert words("_" * 100_000) == []
    assert items(",(" * 50_000) == set()
    assert items("x, b (c, d), 1,240; e\nf") == {"x", "b c d", "1240", "e", "f"}
