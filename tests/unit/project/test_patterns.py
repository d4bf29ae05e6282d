"""Tests that no regular expression of ours takes more than linear time, whatever text it gets."""

import itertools
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from a2rl.core.model_text import answer_of
from a2rl.judge.parsers import UnreadableReplyError, forms_of
from tasks.deepsearchqa import annotator
from tasks.deepsearchqa.research.match import items
from tasks.webshop.shop.analysis import terms, words
from tests.patterns import GROWTH, LIMIT_S, LIMITED, TRUSTED, WHOLE, Pattern, patterns, slowest, slowest_within, tried

ANSWERS = [
    "or 1 ", "1,", "17 or ", "\\boxed{", "\\frac{1}{", "the answer is ", "answer: 1 ", "#### ", "<", "_", "**", "~~",
    "1'000", "maybe 1. ", "wait, ", "x\n", " ", "\n", "Step 1: ", "=1", "<think>", "</think>", "```", "```python\n",
    "def f(x):\n", "\u200b", "a", "a_", "a.", "9", "1_", "1.", "1/", "1, ", "1 or ", "1,111", "-$", "-", "- ", "#", "*",
    "`", "'", '"', "(", "[", "{", "def f", "import os\n", "\t\n", " \n", "\xa0", "\u0301", "Question:", "not ",
    "correct ", "Verdict: ", "search[", "<|", "<|im_start|>", "<|im_end|>", "<|channel|>analysis", "<think></think>",
]  # fmt: skip
PARTS = [
    "-1", "-1, ", ", ", "$", "Rs. ", "RS. 5", "USD ", " or ", " and ", "negative ", "1/2", "1/0", ".5", ".", ":", ")",
    "!", "%", " is ", "import a, ", "    ", "\t", "    return 1\n", "\ud800", "\x00", "\\", "class A:\n", "@a\n",
    "\u0663", "\xbd", "3.000,00", "1 000", "x = [",
]  # fmt: skip
SECONDS = 5.0
"""Far more than is needed: the slowest takes a quarter of a second."""


def judged(text: str) -> None:
    with suppress(UnreadableReplyError):
        annotator.verdict({"choices": [{"message": {"content": text}}]})


READERS: dict[str, Callable[[str], object]] = {
    **WHOLE,
    "what a model says": answer_of,
    "what a judge prefers": forms_of,
    "what a judge of research says": judged,
    "what a judge is asked": lambda text: annotator.question(annotator.ANNOTATOR, annotator.Answered("a", "b", text)),
    "what a shop is asked": terms,
}
"""Whatever reads a text that a model wrote."""


def test_the_patterns_of_all_modules_are_found() -> None:
    texts = [each.text for each in patterns()]
    assert len(texts) > 120
    assert set(TRUSTED) <= set(texts), "these are no longer in the code"


@pytest.mark.heavy
def test_every_pattern_takes_linear_time() -> None:
    bad = []
    for pattern in tried():
        if size := LIMITED.get(pattern.place.partition(":")[0]):
            found = slowest_within(pattern, size)
            is_slow = found.seconds >= LIMIT_S
        else:
            found = slowest(pattern)
            is_slow = found.growth > GROWTH
        bad += [str(found)] * is_slow
    assert bad == []


@pytest.mark.parametrize("part", ANSWERS)
@pytest.mark.parametrize("reader", READERS)
def test_a_reader_of_answers_takes_little_time_for_any_text(reader: str, part: str) -> None:
    began = time.process_time()
    for before, after in (("", ""), ("The answer is 1 ", " !"), ("#### ", "5"), ("x", "\x02 y")):
        READERS[reader](before + part * (50_000 // len(part)) + after)
    assert time.process_time() - began < 3 * SECONDS


@pytest.mark.parametrize("module", WHOLE)
def test_a_reader_of_answers_reads_any_mixture_at_once(module: str) -> None:
    """A reader that hangs or raises would end the grade of all answers."""
    chance = random.Random(module)

    def some(most: int) -> str:
        return "".join(chance.choices([*ANSWERS, *PARTS], k=chance.randint(1, most)))

    for size in [60, 400, 4_000] * 200:
        unit = some(3)
        read(module, some(2) + unit * (size // len(unit)) + some(2))


@pytest.mark.heavy
@pytest.mark.parametrize("module", WHOLE)
def test_no_pair_of_parts_makes_a_reader_slow(module: str) -> None:
    """An exponential pattern shows at a few dozen repetitions, if it fails at the end."""
    for one, other in itertools.product([*ANSWERS, *PARTS], repeat=2):
        read(module, (one + other) * (240 // len(one + other)) + " a")


def read(module: str, text: str) -> None:
    signal.signal(signal.SIGVTALRM, lambda *_: pytest.fail(f"this takes too long: {text!r}"))
    signal.setitimer(signal.ITIMER_VIRTUAL, 1.0)
    try:
        WHOLE[module](text)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


@pytest.mark.parametrize(
    "text", [r"_*[a-z]\w*", r"^\s*stage", r"(?:,|;)(?![^()]*\))", r"(.+)\[(.+)\]", r"(a+)+b", r"x\s*[:=]?\s*1"]
)
def test_a_pattern_that_takes_longer_is_noticed(text: str) -> None:
    assert slowest(Pattern("here", text, 8, frozenset({"search"}))).growth > GROWTH


def test_long_texts_are_split_into_tokens_and_items_at_once() -> None:
    assert words("_" * 100_000) == []
    assert items(",(" * 50_000) == set()
    assert items("x, b (c, d), 1,240; e\nf") == {"x", "b c d", "1240", "e", "f"}
