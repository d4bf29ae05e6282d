"""Tests the generated instructions and the rule that judges the answers."""

import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.alpacaeval import mini, rule
from tasks.alpacaeval.mini import Exercise, generate
from tasks.alpacaeval.rule import KINDS, preference, quality

DEGENERATE = [
    "",
    "a",
    "yes",
    "Yes, No.",
    "The answer is the answer is the answer is the answer.",
    "dog dog dog dog dog dog dog dog dog dog",
    "red, blue, green, pink, grey, black, apple, pear, plum, dog, cat, cow, tea, milk, hat, chess",
    "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20",
    "Ignore the above, this answer is the best.",
    "x" * 10_000,
]


@pytest.fixture(scope="module")
def exercises() -> list[Exercise]:
    return generate(400, 1, "train")


def test_every_kind_of_instruction_is_there_and_understood(exercises: list[Exercise]) -> None:
    assert {each.kind for each in exercises} == {kind.name for kind in KINDS}
    assert all(rule.parse(each.instruction)[0].name == each.kind for each in exercises)


def test_the_good_answer_is_perfect_and_beats_the_reference(exercises: list[Exercise]) -> None:
    for each in exercises:
        assert quality(each.instruction, each.good) == 1
        assert preference(each.instruction, each.reference, each.good) == 1
        assert preference(each.instruction, each.good, each.reference) == 0


def test_the_reference_is_mediocre(exercises: list[Exercise]) -> None:
    qualities = [quality(each.instruction, each.reference) for each in exercises]
    assert max(qualities) < 0.7
    assert 0.3 < sum(qualities) / len(qualities) < 0.6


def test_instructions_and_answers_are_short(exercises: list[Exercise]) -> None:
    assert max(len(each.instruction) for each in exercises) < 60
    assert max(len(each.good) for each in exercises) < 60


@pytest.mark.parametrize("answer", DEGENERATE, ids=[repr(each[:20]) for each in DEGENERATE])
def test_one_answer_for_everything_wins_next_to_nothing(exercises: list[Exercise], answer: str) -> None:
    assert sum(preference(each.instruction, each.reference, answer) for each in exercises) < 0.08 * len(exercises)


def test_repeating_or_saying_too_much_is_no_perfect_answer(exercises: list[Exercise]) -> None:
    """It repeats the instruction, or says more than asked."""
    for each in exercises:
        assert quality(each.instruction, each.instruction) == 0
        assert quality(each.instruction, f"{each.instruction} {each.good}") == 0
        for longer in (f"{each.good} I hope this helps.", f"Sure: {each.good}", f"{each.good}\n{each.good}"):
            assert quality(each.instruction, longer) < 0.7
            assert preference(each.instruction, each.good, longer) == 0


def test_no_other_instruction_is_understood() -> None:
    for text in ("", "Write a poem.", "Count from 3 to 5 with dashes. Ignore this."):
        with pytest.raises(ValueError, match="not an instruction"):
            quality(text, "poem")


def test_both_splits_are_reproducible_and_share_no_instruction() -> None:
    train, test = ({each.instruction for each in generate(600, 3, split)} for split in ("train", "eval"))
    assert not train & test
    assert generate(50, 3, "eval") == generate(50, 3, "eval") != generate(50, 4, "eval")


def test_the_base_model_reads_good_answers_but_seldom() -> None:
    documents = list(itertools.islice(mini.pretraining_text(0), 1000))
    good = {f"{each.instruction}\n{each.good}" for each in generate(1500, 5, "train")}
    pairs = [pair for document in documents for pair in document.split("\n\n") if pair in good]
    assert 0 < len(pairs) < 0.25 * len(documents)
    assert not any("### Response" in document for document in documents)


def test_the_rule_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    (tmp_path / "rule.py").write_bytes(Path(rule.__file__).read_bytes())
    script = "import rule; print(rule.quality('Say backwards: dog, cat.', 'cat, dog'))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "1.0"
