"""Tests that what a model wrote for each item is kept in full beside the grade."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from a2rl.core.errors import IntegrityError
from a2rl.grading.outputs import Output, join_outputs, outputs_path, read_outputs, recorded
from a2rl.sampling import Conversation, Message, Prompt, SamplingParams
from a2rl.sampling.generation import GeneratingSampler, Generation
from tests.fake_sampler import FakeSampler

PARAMS = SamplingParams(max_new_tokens=5)
LONG = "a long thought " * 1000


def turns_of(prompts: Sequence[Prompt]) -> Conversation[str]:
    """An episode whose prompts are given."""
    answer = ""
    for prompt in prompts:
        answer = (yield prompt).text
    return answer


Episodes = Mapping[str, Sequence[Prompt]]
"""The prompts of each item, by id."""


def grade(result: Path, episodes: Episodes, rounds: int = 1) -> list[Output]:
    """Answers all items, as a task's grader does, and returns what was kept."""
    for number in range(rounds):
        with recorded(FakeSampler(lambda prompt: LONG), result, list(episodes), number) as sampler:
            sampler.converse([turns_of(prompts) for prompts in episodes.values()], PARAMS)
    return list(read_outputs(outputs_path(result)))


def test_every_turn_of_every_item_is_kept_in_full(tmp_path: Path) -> None:
    episodes = {"a": ["You see a door.", "You see a door. > open it. It is open."], "b": ["A wall."]}
    first, second = grade(tmp_path / "grade.json", episodes)
    assert (first.item, second.item) == ("a", "b")
    assert [(turn.prompt, turn.is_whole) for turn in first.turns] == [
        ("You see a door.", True), (" > open it. It is open.", False),
    ]  # fmt: skip
    assert {turn.answer for turn in (*first.turns, *second.turns)} == {LONG}
    assert outputs_path(tmp_path / "grade.json").stat().st_size < len(LONG) / 10


def test_a_prompt_that_does_not_continue_the_last_is_kept_whole(tmp_path: Path) -> None:
    hello, again = Message("user", "hello"), Message("user", "again")
    [text, chat] = grade(tmp_path / "grade.json", {"a": ["one", "another"], "b": [(hello,), (hello, again)]})
    assert [turn.is_whole for turn in text.turns] == [True, True]
    assert [turn.prompt for turn in chat.turns] == [(hello,), (again,)]


def test_several_answers_to_an_item_are_told_apart(tmp_path: Path) -> None:
    found = grade(tmp_path / "grade.json", {"a": ["1"], "b": ["2"]}, rounds=2)
    assert [(each.item, each.sample) for each in found] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]


def test_a_second_attempt_replaces_the_outputs_of_the_first(tmp_path: Path) -> None:
    grade(tmp_path / "grade.json", {"a": ["1"]})
    assert [each.item for each in grade(tmp_path / "grade.json", {"b": ["2"]})] == ["b"]


def test_reasoning_that_is_removed_before_grading_is_kept(tmp_path: Path) -> None:
    result, settings = tmp_path / "grade.json", Generation(strip_reasoning=True)
    with recorded(FakeSampler(lambda prompt: "<think>two and two</think>4"), result, ["a"]) as sampler:
        [graded] = GeneratingSampler(sampler, settings, seed=0).generate(["2 + 2 ="], PARAMS)
    [output] = read_outputs(outputs_path(result))
    assert (graded.text, output.turns[0].answer) == ("4", "<think>two and two</think>4")


def test_the_outputs_of_the_parts_of_a_job_are_put_together(tmp_path: Path) -> None:
    parts = [tmp_path / f"grade-part-{name}.json" for name in ("a", "b", "none")]
    for part, name in zip(parts, ("a", "b"), strict=False):
        grade(part, {name: ["1"]})
    whole = outputs_path(tmp_path / "grade.json")
    join_outputs([outputs_path(part) for part in parts], whole)
    assert [each.item for each in read_outputs(whole)] == ["a", "b"]
    assert list(tmp_path.iterdir()) == [whole]


def test_a_grade_counts_even_if_its_outputs_cannot_be_written(tmp_path: Path) -> None:
    with recorded(FakeSampler(lambda prompt: "x"), tmp_path / "missing" / "grade.json", ["a"]) as sampler:
        assert sampler.converse([turns_of(["1"])], PARAMS) == ["x"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    grade(tmp_path / "grade.json", {"a": ["1"]})
    file = outputs_path(tmp_path / "grade.json")
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(IntegrityError, match="is damaged"):
        list(read_outputs(file))
