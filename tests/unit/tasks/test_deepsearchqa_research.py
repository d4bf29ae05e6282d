"""Tests the package that grader and agent share: pages and their search, episodes, and matches of answers."""

import math
from pathlib import Path

import pytest

from tasks.deepsearchqa.research import (
    Episode,
    Hit,
    Index,
    Page,
    Question,
    compare,
    next_turn,
    observation,
    read_pages,
)
from tasks.deepsearchqa.research.episode import has_action

QUESTION = Question("What is the seat of Balco?", "Single Answer", "Dorton", "1 hop")
PAGES = [
    Page("Balco", "Balco is a company. The seat of Balco is Dorton. The director of Balco is Ann Bal."),
    Page("Dorton", "Dorton is a town. The mayor of Dorton is Ann Bal."),
    Page("Notes", "Nothing here."),
]


def test_the_index_ranks_by_bm25() -> None:
    index = Index([Page("p", "x x y"), Page("q", "x z z z z z"), Page("r", "z")])
    assert [hit.title for hit in index.search("x")] == ["p", "q"]
    # Computed by hand: 3 pages of 4, 7 and 2 words; x is in two of them.
    rarity, mean = math.log(1 + 1.5 / 2.5), 13 / 3
    scores = index._weights["x"][1]
    for times, length, score in ((2, 4, scores[0]), (1, 7, scores[1])):
        assert score == pytest.approx(rarity * times / (times + 0.9 * (0.6 + 0.4 * length / mean)), rel=1e-6)


def test_a_result_shows_the_sentence_that_fits_best() -> None:
    index = Index(PAGES)
    assert index.search("who is the director of Balco?")[0] == Hit("Balco", "The director of Balco is Ann Bal.")
    assert index.search("Balco seat")[0].snippet == "The seat of Balco is Dorton."
    assert [hit.title for hit in index.search("Dorton", count=1)] == ["Dorton"]


@pytest.mark.parametrize("query", ["", "the of is", "unheard", "?!"])
def test_a_query_without_a_known_word_finds_nothing(query: str) -> None:
    assert Index(PAGES).search(query) == []
    assert Index([]).search(query) == []


def test_equal_pages_are_found_in_their_order() -> None:
    index = Index([Page(name, "same words") for name in "ab"] + [Page("c", "other")])
    assert [hit.snippet for hit in index.search("same")] == ["same words"] * 2
    assert [hit.title for hit in index.search("same")] == ["a", "b"]


def test_pages_are_text_files_and_rows(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "Lyon.txt").write_text("A town.")
    (tmp_path / "a.jsonl").write_text('{"title": "Nice", "text": "A port."}\n')
    (tmp_path / "readme.rst").write_text("no page")
    assert list(read_pages(tmp_path)) == [Page("Nice", "A port."), Page("Lyon", "A town.")]
    (tmp_path / "a.jsonl").write_text('{"title": "Nice"}\n')
    with pytest.raises(ValueError, match="line 1: no page"):
        list(read_pages(tmp_path))


def test_an_observation_is_one_line_of_snippets() -> None:
    assert observation([Hit("", "a\nb"), Hit("", " "), Hit("", "c" * 400)]) == f"a b | {'c' * 300}"
    assert observation([]) == "No results found."


def test_an_episode_goes_from_search_to_answer() -> None:
    episode = Episode(QUESTION)
    assert episode.take(" Let me see.\nAction: search[ seat of Balco ]\nObservation: made up") == "seat of Balco"
    episode.observe("Nothing.")
    assert episode.text.endswith("Action: search[ seat of Balco ]\nObservation: Nothing.\nThought:")
    assert episode.take(" So.\nAction: answer[ Dorton ]") is None
    assert (episode.answer, episode.over, episode.queries) == ("Dorton", True, ["seat of Balco"])


@pytest.mark.parametrize(
    ("completed", "answer"),
    [("Dorton] I think", "Dorton"), (" Dorton\nObservation", "Dorton"), ("", ""), ("a, b", "a, b")],
)
def test_a_turn_without_an_action_is_completed_to_an_answer(completed: str, answer: str) -> None:
    episode = Episode(QUESTION, max_steps=1)
    assert episode.take(" no idea") is None
    assert not episode.over
    assert episode.text.endswith("Thought: no idea\nAction: answer[")
    assert episode.take(completed) is None
    assert (episode.answer, episode.over) == (answer, True)


THOUGHT = "Maybe I should write Action: answer[Paris], no."


@pytest.mark.parametrize(
    "turn",
    [
        f"<think>{THOUGHT}</think>\nAction: answer[Lyon]",
        f" <Reasoning>{THOUGHT}</Reasoning>\nAction: answer[ Lyon ]",
        f" {THOUGHT}</think>\nAction: answer[Lyon<|im_end|>]",
    ],
)
def test_an_action_in_a_thought_is_none(turn: str) -> None:
    """The model reads its thoughts again, as in training."""
    episode = Episode(QUESTION)
    episode.take(turn)
    assert episode.answer == "Lyon"
    assert episode.text.endswith(f"Thought: {turn.strip()}")
    assert has_action(turn)
    faithful = Episode(QUESTION, faithful=True)
    faithful.take(turn)
    assert faithful.answer == "Paris"


def test_a_thought_without_an_end_makes_the_model_answer() -> None:
    episode = Episode(QUESTION)
    assert not has_action(f"<think>{THOUGHT}")
    episode.take(f"<think>{THOUGHT}")
    assert episode.forced
    episode.take("<think>Is it Paris?\nNo.</think>Lyon] I think")
    assert episode.answer == "Lyon"


def test_an_episode_ends_after_its_last_turn() -> None:
    episode = Episode(QUESTION, max_steps=2)
    for _ in range(2):
        assert not episode.over
        episode.take("\nAction: search[x]")
        episode.observe("y")
    assert episode.over
    assert episode.answer is None


@pytest.mark.parametrize("text", ["Action: answer[]", "Action: find[x]", "search[x]", "Action: search[x"])
def test_what_is_no_action(text: str) -> None:
    assert not has_action(text)


@pytest.mark.parametrize(
    ("answer", "gold", "kind", "exact", "precision", "recall"),
    [
        ("Dorton", "Dorton", "Single Answer", True, 1, 1),
        (" the DORTON. ", "Dorton", "Single Answer", True, 1, 1),
        ("1,240", "1240", "Single Answer", True, 1, 1),
        ("3.5", "35", "Single Answer", False, 0, 0),
        ("Dorton, maybe", "Dorton", "Single Answer", False, 0, 0),
        ("", "Dorton", "Single Answer", False, 0, 0),
        ("tea, milk", "milk, tea", "Set Answer", True, 1, 1),
        ("Tea; the milk", "milk, tea", "Set Answer", True, 1, 1),
        ("tea, and milk", "milk, tea", "Set Answer", True, 1, 1),
        ("tea", "milk, tea", "Set Answer", False, 1, 0.5),
        ("tea, milk, salt, wool", "milk, tea", "Set Answer", False, 0.5, 1),
        ("tea, tea", "milk, tea", "Set Answer", False, 1, 0.5),
        ("1,240, 17", "17, 1240", "Set Answer", True, 1, 1),
        ("Smith (Leeds, UK), Jones", "Jones, Smith (Leeds, UK)", "Set Answer", True, 1, 1),
        (", ,", "milk, tea", "Set Answer", False, 0, 0),
    ],
)
def test_answers_are_compared_up_to_spelling_and_order(
    answer: str, gold: str, kind: str, exact: bool, precision: float, recall: float
) -> None:
    match = compare(answer, gold, kind)
    assert (match.exact, match.precision, match.recall) == (exact, precision, recall)
    assert match.f1 == (2 * precision * recall / (precision + recall) if precision else 0)


def test_the_expert_refuses_other_questions() -> None:
    with pytest.raises(ValueError, match="not a question of the mini variant"):
        next_turn(Episode(QUESTION._replace(problem="Who won?")).text)
