"""Tests the readers of answers on answers of real models, against a person's verdicts."""

from pathlib import Path

import pytest

from tests.answers import labelled
from tests.answers.__main__ import agreement, numbers, programs


@pytest.mark.parametrize("task", ["gsm8k", "humaneval"])
def test_there_are_right_and_wrong_answers_of_two_models(task: str) -> None:
    answers = labelled(task)
    assert len(answers) > 300
    assert {(each.model, each.right) for each in answers} == {
        (model, right) for model in ("Qwen2.5-Coder-0.5B-Instruct", "smollm2-135m") for right in (False, True)
    }


def test_numbers_are_read_as_a_person_reads_them() -> None:
    assert agreement("gsm8k", numbers) == {"Qwen2.5-Coder-0.5B-Instruct": (200, 200), "smollm2-135m": (200, 200)}


@pytest.mark.slow
def test_code_is_taken_as_a_person_takes_it(shared_data: Path) -> None:
    found = agreement("humaneval", lambda answers: programs(answers, shared_data / "humaneval"))
    assert found == {"Qwen2.5-Coder-0.5B-Instruct": (164, 164), "smollm2-135m": (164, 164)}
