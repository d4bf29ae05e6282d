"""Tests the generated world and its questions: the need to search, separate splits, the base model's text."""

import re
from collections import Counter
from pathlib import Path

import pytest

from a2rl.judge.local import open_judge
from a2rl.scoring.score import TaskScore, summarise
from tasks.deepsearchqa import grade as grader
from tasks.deepsearchqa import mini
from tasks.deepsearchqa.mini import NAMES, RELATIONS, World, split_of
from tasks.deepsearchqa.prepare import prepare
from tasks.deepsearchqa.research import Episode, Index, Question, next_turn, observation, read_pages, read_questions
from tasks.deepsearchqa.research.episode import transcript
from tasks.deepsearchqa.task import TASK
from tests.fake_sampler import FakeSampler

CHARACTERS_OF_A_TOKEN = 3.3
LONGEST_EPISODE = 450
"""Tokens; a longer one would be lost on the base model."""


@pytest.fixture(scope="module")
def world() -> World:
    return World("eval", 1)


@pytest.fixture(scope="module")
def index(world: World) -> Index:
    return Index(world.pages())


@pytest.fixture(scope="module")
def questions(world: World, index: Index) -> list[Question]:
    return list(mini.generate(120, world, index, 1))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("visible", "hidden"):
        (folder / name).mkdir()
    prepare("mini", None, folder / "visible", folder / "hidden")
    return folder


def played(data: Path, write: object) -> TaskScore:
    hidden = data / "hidden"
    sampler = FakeSampler(write)  # type: ignore[arg-type]
    with open_judge(None, *grader.OWN_JUDGE) as judge:
        asking = judge.asking(1)
        ids, options = grader.item_ids(hidden), TASK.choose({})
        return summarise(grader.grade(sampler, hidden, ids, TASK.variant("mini").limits, options, asking)())


@pytest.mark.heavy
def test_the_expert_scores_100_with_one_search_for_each_hop(data: Path) -> None:
    score = played(data, lambda prompt: f" {next_turn(str(prompt))}")
    assert score.score == 100
    assert score.measures["searches"] == 2.5
    assert {name: group.score for name, group in score.groups.items()} == dict.fromkeys(
        ("1 hop", "2 hops", "3 hops", "4 hops"), 100
    )


def test_without_searching_one_scores_near_0(data: Path) -> None:
    """Gives the most frequent answer in the training data to the same kind of question."""
    train = read_questions(data / "visible" / "train.jsonl")
    asked = re.compile(r"What (?:is|are) the (.*?) of ")
    answers: dict[str, Counter[str]] = {}
    for question in train:
        found = asked.match(question.problem)
        assert found
        answers.setdefault(found[1], Counter())[question.answer] += 1

    def guess(prompt: object) -> str:
        found = asked.search(str(prompt))
        assert found
        return f" I guess.\nAction: answer[{answers[found[1]].most_common(1)[0][0]}]"

    score = played(data, guess)
    assert score.score is not None
    assert score.score <= 2
    deep = [group.score for name, group in score.groups.items() if name != "1 hop"]
    assert all(value is not None and value <= 2 for value in deep)


def test_the_splits_share_no_name_and_so_no_fact_and_no_chain(data: Path) -> None:
    titles = [
        {page.title for page in read_pages(data / folder / "pages")} for folder in ("visible", "hidden")
    ]  # for the agent and for the grader
    assert not titles[0] & titles[1]
    assert all(len(each) > 1000 for each in titles)
    assert titles[0] | titles[1] == {name for names in NAMES.values() for name in names}
    train, test = (
        {question.problem for question in read_questions(data / path)}
        for path in ("visible/train.jsonl", "hidden/eval.jsonl")
    )
    assert len(train) == 3000
    assert len(test) == TASK.variant("mini").eval_items
    for split, problems in (("train", train), ("eval", test)):
        assert {split_of(re.split(r" of (?!the )", problem)[1].rstrip("?")) for problem in problems} == {split}


def test_questions_have_one_to_four_hops(questions: list[Question]) -> None:
    """Every third asks for several things."""
    kinds = Counter((question.category, question.answer_type) for question in questions)
    assert {kinds[f"{n} hop{'s' * (n > 1)}", "Set Answer"] for n in range(1, 5)} == {10}
    assert {kinds[f"{n} hop{'s' * (n > 1)}", "Single Answer"] for n in range(1, 5)} == {20}
    assert len({question.problem for question in questions}) == len(questions)
    for question in questions:
        assert question.problem.count(" of ") == int(question.category[0])
        assert (", " in question.answer) == (question.answer_type == "Set Answer")


def test_a_question_has_the_answer_that_the_world_gives(world: World, questions: list[Question]) -> None:
    for question in questions:
        *relations, start = question.problem.removesuffix("?").split(" the ", 1)[1].split(" of ")
        for relation in reversed(relations):
            start = world.value(relation.removeprefix("the "), start)
        assert question.answer == start


def test_an_episode_is_short_enough_for_a_small_model(index: Index, questions: list[Question]) -> None:
    texts = [transcript(question, mini.solve(question, index)[1]) for question in questions]
    assert max(map(len, texts)) / CHARACTERS_OF_A_TOKEN < LONGEST_EPISODE


def test_the_expert_goes_on_where_somebody_else_is_stuck(index: Index, questions: list[Question]) -> None:
    question = next(each for each in questions if each.category == "3 hops")
    episode, stuck = Episode(question, max_steps=9), [" Hm.\nAction: search[weather]", " Hm.\nAction: search[Balmere]"]
    while not episode.over:
        query = episode.take(stuck.pop(0) if stuck else next_turn(episode.text))
        if query is not None:
            episode.observe(observation(index.search(query)))
    assert episode.answer == question.answer


def test_the_same_seed_gives_the_same_world_and_questions(world: World, questions: list[Question]) -> None:
    again = World("eval", 1)
    assert again.pages() == world.pages()
    assert list(mini.generate(120, again, Index(again.pages()), 1)) == questions
    assert World("eval", 2).pages() != world.pages()


def test_every_fact_is_on_its_page_and_found_by_its_name(world: World, index: Index) -> None:
    for relation in RELATIONS:
        for name in world.names[relation.of][:40]:
            [best] = index.search(f"{relation.name} of {name}", count=1)
            assert best.title == name
            assert re.fullmatch(
                rf"The {relation.name} of {name} (is|are) {world.value(relation.name, name)}\.", best.snippet
            )


@pytest.mark.heavy
def test_the_pretraining_text_is_small_and_about_another_world(world: World) -> None:
    documents = list(mini.pretraining_text(0))
    assert documents == list(mini.pretraining_text(0))
    assert 500_000 < sum(map(len, documents)) < 900_000
    told = {name for text in documents for name in re.findall(r"[A-Z]\w+(?: [A-Z]\w+)?", text)}
    for names in world.names.values():
        assert not told.intersection(names)


def test_few_questions_of_pretraining_texts_are_answered_right() -> None:
    episodes = [text for text in mini.pretraining_text(0) if text.startswith("Question: ")]
    right = 0
    for text in episodes:
        searches, answer = text.count("Action: search["), text.rpartition("Action: answer[ ")[2].rstrip("]")
        solved = next_turn(text).endswith(f"Action: answer[ {answer}]")
        right += solved
        assert not solved or searches <= 2
    assert 0.1 < right / len(episodes) < 0.3
