"""The generator behind gsm8k's mini variant."""

import itertools
from collections import Counter

import pytest

from tasks.gsm8k.mini import Problem, generate, pretraining_text

OPERATIONS = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right,
}


@pytest.fixture(scope="module")
def train() -> list[Problem]:
    return generate(4000, seed=1, split="train")


@pytest.fixture(scope="module")
def eval_() -> list[Problem]:
    return generate(2000, seed=1, split="eval")


def test_every_line_of_an_answer_recomputes_and_the_last_one_is_the_result(train: list[Problem]) -> None:
    for problem in train:
        *lines, last = problem.answer.splitlines()
        assert len(lines) == len(problem.steps)
        for line in lines:
            left, operator, right, equals, result = line.rsplit(": ", 1)[1].split()
            assert equals == "="
            assert OPERATIONS[operator](int(left), int(right)) == int(result)
        assert last == f"#### {result}"


def test_a_step_uses_the_result_of_the_one_before_it(train: list[Problem]) -> None:
    for problem in train:
        for before, after in itertools.pairwise(problem.steps):
            assert before.result in (after.left, after.right)


def test_problems_have_one_to_four_steps_and_most_have_several(train: list[Problem]) -> None:
    counts = Counter(len(problem.steps) for problem in train)
    assert set(counts) == {1, 2, 3, 4}
    assert counts[1] < 0.25 * len(train)


def test_all_questions_of_one_draw_differ(train: list[Problem]) -> None:
    assert len({problem.question for problem in train}) == len(train)


def test_train_and_eval_never_share_a_question(train: list[Problem], eval_: list[Problem]) -> None:
    seen = {problem.question for problem in train} | {problem.question for problem in generate(4000, 2, "train")}
    assert not seen & {problem.question for problem in eval_}


def test_the_same_seed_gives_the_same_problems_and_another_seed_others() -> None:
    assert generate(50, seed=3, split="eval") == generate(50, seed=3, split="eval")
    assert generate(50, seed=3, split="eval") != generate(50, seed=4, split="eval")


def test_the_pretraining_text_holds_no_eval_or_train_question_and_not_the_prompts_format(
    train: list[Problem], eval_: list[Problem]
) -> None:
    text = "\n".join(pretraining_text(seed=0))
    assert "Question:" not in text
    assert "Let's think" not in text
    assert not [problem.question for problem in train + eval_ if problem.question in text]


def test_the_pretraining_text_is_a_function_of_its_seed() -> None:
    first, again, other = (list(itertools.islice(pretraining_text(seed), 100)) for seed in (0, 0, 1))
    assert first == again
    assert first != other
