import random
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from a2rl.contamination.check import LENGTH, length_game, sameness
from a2rl.contamination.twins import gap_between, make_twins, paired_gap, selection_bonus, unpaired_gap
from a2rl.core.files import read_jsonl, write_jsonl
from a2rl.scoring.score import ItemResult
from a2rl.task_api.catalog import load_grader
from tasks.gsm8k.twins import NAMES, twin_of
from tasks.humaneval import twins as humaneval


def draws(share: float, count: int, seed: int) -> list[float]:
    return [float(each) for each in np.random.default_rng(seed).random(count) < share]


def test_a_model_that_has_seen_the_items_shows_a_gap() -> None:
    gap = unpaired_gap(draws(0.9, 200, 1), draws(0.3, 200, 2))
    assert gap.points > 50
    assert gap.p < 0.001


def test_a_clean_model_seldom_shows_a_gap() -> None:
    small = [unpaired_gap(draws(0.5, 60, 2 * seed), draws(0.5, 60, 2 * seed + 1)).p for seed in range(60)]
    assert sum(p < 0.05 for p in small) <= 8
    assert min(small) > 0.0001


def test_a_gap_to_worse_items_is_none_on_the_other_side() -> None:
    assert unpaired_gap(draws(0.2, 200, 1), draws(0.8, 200, 2)).p > 0.99


def test_values_between_0_and_1_are_compared_like_the_ends() -> None:
    seen, fresh = draws(0.6, 80, 1), draws(0.4, 80, 2)
    exact = unpaired_gap(seen, fresh)
    sampled = unpaired_gap([0.5 + each / 4 for each in seen], [0.5 + each / 4 for each in fresh])
    assert sampled.p == pytest.approx(exact.p, abs=0.01)
    assert sampled.points == pytest.approx(exact.points / 4)


def test_pairs_find_smaller_gaps() -> None:
    seen, fresh = [1.0] * 100, [1.0] * 85 + [0.0] * 15
    assert paired_gap(seen, fresh).p < 0.001
    assert paired_gap(seen, seen).p == 1.0


def test_the_best_of_many_tries_may_be_better_by_chance() -> None:
    assert selection_bonus(1, 100) == 0
    assert selection_bonus(20, 100) > selection_bonus(5, 100) > 5


def results(values: Sequence[float], lengths: Sequence[float]) -> list[ItemResult]:
    return [
        ItemResult(id=str(place), verdict="wrong", value=value, measures={LENGTH: length}, answer=f"answer {length}")
        for place, (value, length) in enumerate(zip(values, lengths, strict=True))
    ]


def test_answers_that_are_longer_where_they_lose_are_found() -> None:
    rng = random.Random(0)
    values = [float(rng.random() < 0.4) for _ in range(150)]
    padded = length_game(results(values, [rng.randint(100, 300) + (0 if value else 900) for value in values]))
    honest = length_game(results(values, [rng.randint(100, 300) for _ in values]))
    assert padded is not None
    assert honest is not None
    assert padded.correlation < -0.8
    assert padded.p < 0.001
    assert padded.lost_chars > padded.won_chars
    assert abs(honest.correlation) < 0.25


def test_answers_without_lengths_say_nothing() -> None:
    assert length_game([ItemResult(id="1", verdict="wrong", value=0.0)]) is None


def test_one_answer_for_all_items_is_found() -> None:
    one = "The answer that always wins, whatever was asked."
    items = [ItemResult(id=str(n), verdict="correct", value=1.0, answer=one) for n in range(9)]
    found = sameness([*items, ItemResult(id="9", verdict="wrong", value=0.0, answer="Something else altogether.")])
    assert found is not None
    assert found.share == pytest.approx(0.9)
    assert len(found.ids) == 9
    assert sameness([ItemResult(id="1", verdict="wrong", value=0.0, answer="yes")]) is None


QUESTION = "Nora buys 16 eggs. She uses 5 of them and sells the rest for $3 each. How much does she get?"
ANSWER = "She sells 16-5=<<16-5=11>>11 eggs.\nShe gets 11*3=<<11*3=33>>33 dollars.\n#### 33"


def test_the_twin_of_a_word_problem_has_other_numbers() -> None:
    """It has the answer that follows from them."""
    twin = twin_of(QUESTION, ANSWER, random.Random(1))
    assert twin is not None
    eggs, used, price = (int(each) for each in re.findall(r"\d+", twin[0]))
    assert (eggs, used, price) != (16, 5, 3)
    assert twin[1].endswith(f"#### {(eggs - used) * price}")
    assert "Nora" not in twin[0] or twin[0].startswith("Nora")


def test_two_people_of_a_twin_have_two_names() -> None:
    question = "Casey has 16 eggs. Blake buys 5 of them. Morgan and Devon watch. How many has Casey left?"
    answer = "Casey has 16-5=<<16-5=11>>11 eggs.\n#### 11"
    for seed in range(40):
        twin = twin_of(question, answer, random.Random(seed))
        assert twin is not None
        [first, second, *others, again] = re.findall("|".join(NAMES), twin[0])
        assert first == again
        assert len({first, second, *others}) == 4


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Tom has three dogs and 3 cats. How many?", "3+3=<<3+3=6>>6\n#### 6"),
        (
            "A shirt costs 40 dollars, 20% less with 20 others. How much?",
            "40*.2=<<40*.2=8>>8\n40-8=<<40-8=32>>32\n#### 32",
        ),
        ("Tom has 5 dogs. How many legs?", "They have 5*4=<<5*4=20>>20 legs and 1 tail.\n#### 21"),
        ("Tom has 5 dogs and 8 cats.", "5+8=<<__import__('os')=13>>13\n#### 13"),
    ],
)
def test_what_cannot_be_followed_has_no_twin(question: str, answer: str) -> None:
    assert twin_of(question, answer, random.Random(0)) is None


FUNCTION = {
    "task_id": "HumanEval/0", "entry_point": "add",
    "prompt": 'def add(first: int, second: int) -> int:\n    """Adds first and second."""\n',
    "canonical_solution": "    return first + second\n",
    "test": "def check(candidate):\n    assert candidate(1, 2) == 3\n",
}  # fmt: skip


def test_the_twin_of_a_function_has_other_names_and_passes() -> None:
    twin = humaneval.twin_of(FUNCTION, random.Random(0))
    assert twin is not None
    assert twin["entry_point"] != "add"
    assert "first" not in twin["canonical_solution"]
    scope: dict[str, object] = {}
    exec(f"{twin['prompt']}{twin['canonical_solution']}\n{twin['test']}\ncheck({twin['entry_point']})", scope)


def test_twins_of_published_items_are_paired_with_them(tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    rows = [{"question": QUESTION, "answer": ANSWER}, {"question": "No numbers here?", "answer": "#### 4"}] * 15
    write_jsonl(hidden / "eval.jsonl", rows)
    write_jsonl(hidden / "shots.jsonl", [])
    twins = make_twins("gsm8k", "full", hidden, tmp_path / "twins")
    assert twins is not None
    assert twins.of is not None
    assert set(twins.of.values()) <= {str(place) for place in range(0, 30, 2)}
    assert len(read_jsonl(twins.hidden / "eval.jsonl")) == len(twins.of)
    assert make_twins("gsm8k", "full", hidden, tmp_path / "twins") == twins


@pytest.mark.parametrize(
    ("task", "rows"),
    [
        ("humaneval", [{**FUNCTION, "task_id": f"HumanEval/{n}"} for n in range(30)]),
        ("gsm8k", [{"question": QUESTION, "answer": ANSWER}] * 30),
    ],
)
def test_twins_are_compared_by_the_ids_of_their_task(task: str, rows: list[dict[str, str]], tmp_path: Path) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    write_jsonl(hidden / "eval.jsonl", rows)
    write_jsonl(hidden / "shots.jsonl", [])
    twins = make_twins(task, "full", hidden, tmp_path / "twins")
    assert twins is not None
    grader = load_grader(task)
    seen, fresh = (
        dict.fromkeys(grader.item_ids(folder), value) for folder, value in ((hidden, 1.0), (twins.hidden, 0.5))
    )
    gap = gap_between(seen, fresh, twins.of)
    assert gap is not None
    assert gap.points == 50


def test_the_gap_of_paired_twins_uses_only_items_that_have_one() -> None:
    seen = {str(n): 1.0 for n in range(60)}
    gap = gap_between(seen, {str(n): 0.0 for n in range(30)}, {str(n): str(2 * n) for n in range(30)})
    assert gap is not None
    assert (gap.points, gap.seen) == (100.0, 30)
    assert gap_between(seen, {str(n): 0.0 for n in range(5)}, None) is None
