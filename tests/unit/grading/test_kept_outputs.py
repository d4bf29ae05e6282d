"""Tests that what a model wrote for each item is kept in full beside the grade."""

from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from a2rl.core.errors import IntegrityError
from a2rl.grading.outputs import Output, join_outputs, keeping_outputs, outputs_path, read_outputs
from a2rl.sampling import Conversation, Message, Prompt, Sampler, SamplingParams
from a2rl.tasks import catalog
from a2rl.tasks.catalog import load_grader
from tests.fake_sampler import FakeSampler

PARAMS = SamplingParams(max_new_tokens=5)
LONG = "a long thought " * 1000


def turns_of(prompts: Sequence[Prompt]) -> Conversation[str]:
    """An episode whose prompts are given."""
    answer = ""
    for prompt in prompts:
        answer = (yield prompt).text
    return answer


@pytest.fixture
def episodes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Sequence[Prompt]]:
    """The prompts of each item, by id, of a task whose module is a fake."""
    found: dict[str, Sequence[Prompt]] = {}
    module = ModuleType("grade")

    def grade(sampler: Sampler, hidden: Path, ids: Sequence[str], *_: Any) -> list[str]:
        return sampler.converse([turns_of(found[each]) for each in ids], PARAMS)

    module.grade = grade  # type: ignore[attr-defined]
    module.item_ids = lambda hidden: list(found)  # type: ignore[attr-defined]
    monkeypatch.setattr(catalog, "_task_module", lambda task, name: module)
    return found


def grade(result: Path, ids: Sequence[str], rounds: int = 1) -> list[Output]:
    with keeping_outputs(result):
        grader: Any = load_grader("fake")
        for _ in range(rounds):
            grader.grade(FakeSampler(lambda prompt: LONG), result.parent, ids, None, {})
    return list(read_outputs(outputs_path(result)))


def test_every_turn_of_every_item_is_kept_in_full(tmp_path: Path, episodes: dict[str, Sequence[Prompt]]) -> None:
    episodes |= {"a": ["You see a door.", "You see a door. > open it. It is open."], "b": ["A wall."]}
    first, second = grade(tmp_path / "grade.json", ["a", "b"])
    assert (first.item, second.item) == ("a", "b")
    assert [(turn.prompt, turn.is_whole) for turn in first.turns] == [
        ("You see a door.", True), (" > open it. It is open.", False),
    ]  # fmt: skip
    assert {turn.answer for turn in (*first.turns, *second.turns)} == {LONG}
    assert outputs_path(tmp_path / "grade.json").stat().st_size < len(LONG) / 10


def test_a_prompt_that_does_not_continue_the_one_before_is_kept_whole(
    tmp_path: Path, episodes: dict[str, Sequence[Prompt]]
) -> None:
    hello, again = Message("user", "hello"), Message("user", "again")
    episodes |= {"a": ["one", "another"], "b": [(hello,), (hello, again)]}
    [text, chat] = grade(tmp_path / "grade.json", ["a", "b"])
    assert [turn.is_whole for turn in text.turns] == [True, True]
    assert [turn.prompt for turn in chat.turns] == [(hello,), (again,)]


def test_several_answers_to_an_item_are_told_apart(tmp_path: Path, episodes: dict[str, Sequence[Prompt]]) -> None:
    episodes |= {"a": ["1"], "b": ["2"]}
    found = grade(tmp_path / "grade.json", ["a", "b"], rounds=2)
    assert [(each.item, each.sample) for each in found] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_a_second_attempt_replaces_the_outputs_of_the_first(
    tmp_path: Path, episodes: dict[str, Sequence[Prompt]]
) -> None:
    episodes |= {"a": ["1"], "b": ["2"]}
    grade(tmp_path / "grade.json", ["a"])
    assert [each.item for each in grade(tmp_path / "grade.json", ["b"])] == ["b"]


def test_the_outputs_of_the_parts_of_a_job_are_put_together(
    tmp_path: Path, episodes: dict[str, Sequence[Prompt]]
) -> None:
    episodes |= {"a": ["1"], "b": ["2"]}
    parts = [tmp_path / f"grade-part-{name}.json" for name in ("a", "b", "none")]
    for part, name in zip(parts, ("a", "b"), strict=False):
        grade(part, [name])
    whole = outputs_path(tmp_path / "grade.json")
    join_outputs([outputs_path(part) for part in parts], whole)
    assert [each.item for each in read_outputs(whole)] == ["a", "b"]
    assert list(tmp_path.iterdir()) == [whole]


def test_a_grade_counts_even_if_its_outputs_cannot_be_written(
    tmp_path: Path, episodes: dict[str, Sequence[Prompt]]
) -> None:
    episodes |= {"a": ["1"]}
    with keeping_outputs(tmp_path / "missing" / "grade.json"):
        grader: Any = load_grader("fake")
        assert grader.grade(FakeSampler(lambda prompt: "x"), tmp_path, ["a"], None, {}) == ["x"]


def test_a_damaged_file_is_named(tmp_path: Path, episodes: dict[str, Sequence[Prompt]]) -> None:
    episodes |= {"a": ["1"]}
    grade(tmp_path / "grade.json", ["a"])
    file = outputs_path(tmp_path / "grade.json")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(IntegrityError, match="is damaged"):
        list(read_outputs(file))


def test_other_functions_of_a_grader_stay_as_they_are(tmp_path: Path, episodes: dict[str, Sequence[Prompt]]) -> None:
    episodes |= {"a": ["1"]}
    with keeping_outputs(tmp_path / "grade.json"):
        assert load_grader("fake").item_ids(tmp_path) == ["a"]
