"""Tests the services of the mini variant, over real generated data: the training world alone."""

from pathlib import Path

import pytest

from a2rl.core.settings import Settings
from a2rl.task_api.contract import NotForAgentError
from tasks.deepsearchqa.prepare import prepare
from tasks.deepsearchqa.research import Index, read_pages, read_questions
from tasks.deepsearchqa.search import Quotes
from tasks.deepsearchqa.services import open_services
from tasks.deepsearchqa.task import TASK


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name in ("visible", "hidden"):
        (folder / name).mkdir()
    prepare("mini", None, folder / "visible", folder / "hidden")
    return folder


def test_the_mini_services_are_those_in_the_agents_files(data: Path, settings: Settings) -> None:
    visible, hidden = data / "visible", data / "hidden"
    train, evaluated = read_questions(visible / "train.jsonl")[:20], read_questions(hidden / "eval.jsonl")[:20]
    index = Index(read_pages(visible / "pages"))
    with open_services("mini", visible, hidden, TASK.choose({"search": "serpapi"}), settings, None) as services:
        for question in train:
            assert services.judge(question.problem, question.answer) == 1.0
            assert services.judge(question.problem, "somewhere else") == 0.0
            query = question.problem.removeprefix("What is the ").removesuffix("?")
            found = services.search(query)
            expected = [hit._asdict() for hit in index.search(query, 3)]
            assert [hit for hit in found.hits if hit not in expected] == []
            assert len(found.hits) + found.blocked == len(expected)
        for question in evaluated:
            for asks in (services.search, lambda problem: services.judge(problem, "x")):
                for spelling in (question.problem, "\u200b".join(question.problem), question.problem.replace(" ", "_")):
                    with pytest.raises(NotForAgentError, match="eval set"):
                        asks(spelling)
    assert not settings.searches.exists()


def test_a_quote_is_ten_words_in_a_row_or_a_whole_short_question() -> None:
    quotes = Quotes(["one two three four five six seven eight nine ten eleven", "Short one?", ""])
    assert quotes.occur_in("x ONE, two three-four five six seven eight nine\nten y")
    assert not quotes.occur_in("one two three four five six seven eight nine")
    assert not quotes.occur_in("one two three four five six seven eight nine and ten eleven")
    assert quotes.occur_in("a short ONE")
    assert not quotes.occur_in("one short")
    assert not quotes.occur_in("")


@pytest.mark.parametrize(
    "quote",
    [
        "on\u200be two th\u00adree four five s\u2060ix seven eight nine ten",
        "one_two_three_four_five_six_seven_eight_nine_ten",
        "\uff4f\uff4e\uff45 two three four five \U0001d42c\U0001d422\U0001d431 seven eight nine ten",
        "o\u0332ne tw\u00f3 three fo\ufe0fur five six s\u034feven ei\U000e0101ght nine ten",
        "one two three f\u3164our five six se\x01ven eight\u2028nine\u00a0ten",
    ],
)
def test_a_quote_in_another_spelling_is_one(quote: str) -> None:
    assert Quotes(["One two three four five six seven eight nine ten?"]).occur_in(quote)
