"""Tests the generated programming problems and the base model's training text."""

import re
from collections import Counter
from typing import Any

import pytest

from tasks.humaneval.mini import FINISHED, Problem, canonical, families, generate, pretraining_text

DOC = re.compile(r'"""(.*)"""')


@pytest.fixture(scope="module")
def train() -> list[Problem]:
    return generate(2000, 1, "train")


@pytest.fixture(scope="module")
def evaluation() -> list[Problem]:
    return generate(240, 1, "eval")


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return list(pretraining_text(0))


def doc(text: str) -> str:
    found = DOC.search(text)
    assert found
    return found[1]


def test_every_reference_solution_passes_its_test(train: list[Problem], evaluation: list[Problem]) -> None:
    for problem in train + evaluation:
        namespace: dict[str, Any] = {}
        exec(problem.prompt + problem.solution + problem.test, namespace)
        namespace["check"](namespace[problem.entry_point])


def test_no_test_is_passed_by_an_empty_body_or_the_argument(evaluation: list[Problem]) -> None:
    for problem in evaluation:
        argument = problem.prompt.partition("(")[2].partition(")")[0]
        for body in ("    pass\n", f"    return {argument}\n"):
            namespace: dict[str, Any] = {}
            exec(problem.prompt + body + problem.test, namespace)
            with pytest.raises(AssertionError):
                namespace["check"](namespace[problem.entry_point])


def test_most_tests_tell_a_solution_from_the_others(evaluation: list[Problem]) -> None:
    passed = 0
    for problem, other in zip(evaluation, evaluation[1:] + evaluation[:1], strict=True):
        namespace: dict[str, Any] = {}
        exec(problem.prompt + other.solution + problem.test, namespace)
        try:
            namespace["check"](namespace[problem.entry_point])
            passed += 1
        except Exception:  # noqa: BLE001 - a solution of another problem may fail in any way
            continue
    assert passed <= len(evaluation) * 0.02


def test_there_are_at_least_forty_families_in_both_splits(train: list[Problem], evaluation: list[Problem]) -> None:
    trained = Counter(problem.family.name for problem in train)
    assert len(trained) >= 80
    assert min(trained.values()) >= 5
    assert len({problem.family.name for problem in evaluation}) >= 60


@pytest.mark.heavy
def test_splits_and_pretraining_share_no_docstring(
    train: list[Problem], evaluation: list[Problem], documents: list[str]
) -> None:
    trained, evaluated = ({doc(problem.prompt) for problem in split} for split in (train, evaluation))
    assert len(trained) > 1000
    assert len(evaluated) == 240
    assert not trained & evaluated
    read = {line for text in documents for line in re.findall(r'(?:# |""")(.*?\.)(?="""|$)', text, re.MULTILINE)}
    assert len(read) > 1000
    assert not read & (trained | evaluated)


def test_no_eval_problem_is_trained_with_another_argument(train: list[Problem], evaluation: list[Problem]) -> None:
    trained, evaluated = ({canonical(problem.prompt) for problem in split} for split in (train, evaluation))
    assert len(evaluated) == len(evaluation)
    assert not trained & evaluated


def test_the_canonical_form_names_neither_function_nor_argument() -> None:
    told = {
        canonical(f'def {name}({each}):\n    """The sum of {each} below 7."""\n')
        for name in "fg"
        for each in ("nums", "items")
    }
    assert told == {"# The sum of x below 7.\n"} == {canonical("# The sum of values below 7.\n")}


def test_some_combinations_are_only_evaluated() -> None:
    """Their parts are trained."""
    kept = {family.returns for family in families("eval", True)} - {
        family.returns for family in families("train", True)
    }
    assert len(kept) == 5
    assert set(families("train", False)) == set(families("eval", False))


def test_problems_are_a_function_of_the_seed(train: list[Problem]) -> None:
    assert generate(50, 1, "train") == train[:50]
    assert generate(50, 2, "train") != train[:50]


def test_prompts_and_solutions_are_short_enough_for_a_tiny_model(train: list[Problem]) -> None:
    assert max(len(problem.prompt) for problem in train) < 110
    assert max(len(problem.solution) for problem in train) < 65


def test_the_base_model_reads_whole_functions_of_some_families(
    documents: list[str],
) -> None:
    """It reads empty ones of the others."""
    functions = [text for text in documents if text.startswith("def ")]
    finished = [text for text in functions if not text.endswith("    pass\n")]
    assert 0.4 < len(functions) / len(documents) < 0.7
    assert 0.5 < len(finished) / len(functions) < 0.7
    assert set(FINISHED) <= {family.name for family in families("pretraining", False)}
