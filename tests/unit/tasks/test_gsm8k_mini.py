"""Tests the generated word problems and the base model's training text."""

import itertools
import re

import pytest

from tasks.gsm8k.final_number import final_number
from tasks.gsm8k.mini import Problem, generate, pretraining_text

STEP = re.compile(r"(\d+) ([-+*/]) (\d+) = (\d+)")
OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__, "/": int.__floordiv__}


@pytest.fixture(scope="module")
def train() -> list[Problem]:
    return generate(4000, 1, "train")


@pytest.fixture(scope="module")
def evaluation() -> list[Problem]:
    return generate(400, 1, "eval")


def test_every_step_of_every_solution_recomputes(train: list[Problem], evaluation: list[Problem]) -> None:
    for problem in train + evaluation:
        steps = STEP.findall(problem.answer)
        assert 1 <= len(steps) == len(problem.steps) <= 4
        for left, operator, right, result in steps:
            assert OPERATIONS[operator](int(left), int(right)) == int(result)
        assert final_number(problem.answer) == int(steps[-1][3])


def test_each_step_goes_on_from_the_one_before(train: list[Problem]) -> None:
    for problem in train:
        for before, after in itertools.pairwise(problem.steps):
            assert before.result in (after.left, after.right)


def test_train_and_eval_share_no_question_and_no_story(train: list[Problem], evaluation: list[Problem]) -> None:
    def skeleton(problem: Problem) -> str:
        return re.sub(r"\b[A-Z]\w+|\b(apples|shells|stamps|coins|cards|pens|books|eggs)\b", "_", problem.question)

    assert not {problem.question for problem in train} & {problem.question for problem in evaluation}
    # Words at the start of a sentence are blanked too, so a few different stories may look alike, but most must differ.
    shared = {skeleton(problem) for problem in train} & {skeleton(problem) for problem in evaluation}
    assert len(shared) < 0.5 * len(evaluation)


def test_a_seed_gives_the_same_problems_and_another_gives_others() -> None:
    assert generate(50, 3, "train") == generate(50, 3, "train")
    assert generate(50, 3, "train") != generate(50, 4, "train")


def test_questions_do_not_repeat(train: list[Problem]) -> None:
    assert len({problem.question for problem in train}) == len(train)


def test_the_base_model_reads_no_eval_question_and_no_prompt() -> None:
    """That is the prompt of the benchmark."""
    questions = {problem.question for problem in generate(400, 2604, "eval")}
    for document in pretraining_text(0):
        assert "Question:" not in document
        assert "think step by step" not in document
        assert document.partition("\n")[0] not in questions


def test_pretraining_text_is_the_same_for_the_same_seed() -> None:
    first, again = (list(itertools.islice(pretraining_text(5), 200)) for _ in range(2))
    assert first == again
