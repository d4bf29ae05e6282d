"""Tests the generated shops and the base model's training text."""

import re
from collections import Counter
from pathlib import Path

import pytest

from tasks.webshop import mini
from tasks.webshop.mini import DEPARTMENTS, Pair, World, eval_pairs, kinds, pretraining_text
from tasks.webshop.shop import Expert, Goal, Product, Session, play_out
from tasks.webshop.shop.expert import read_instruction
from tasks.webshop.shop.reward import count_options
from tasks.webshop.shop.transcript import transcript

DOCUMENTS = 200


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> World:
    return mini.generate(1200, 300, 1, "train", tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="module")
def evaluation(tmp_path_factory: pytest.TempPathFactory) -> World:
    return mini.generate(1200, 200, 1, "eval", tmp_path_factory.mktemp("eval"))


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return list(pretraining_text(3, DOCUMENTS))


def products(world: World) -> list[Product]:
    return [world.shop.product(number) for number in range(len(world.shop))]


def pairs(goal: Goal) -> set[Pair]:
    return {Pair(goal.nouns[-1], attribute) for attribute in goal.attributes}


@pytest.mark.heavy
def test_a_shop_has_a_thousand_products_of_forty_kinds(train: World, evaluation: World) -> None:
    for world in (train, evaluation):
        assert len(world.shop) == 1200
        assert len({product.query for product in products(world)}) == len(kinds()) >= 40
        assert len({product.id for product in products(world)}) == 1200


def test_near_duplicates_stand_beside_each_other(train: World) -> None:
    first, other, dearer, few = products(train)[:4]
    assert first.query == other.query == dearer.query == few.query
    assert len(set(first.attributes) & set(other.attributes)) == 1
    assert (dearer.title, dearer.options) == (first.title, first.options)
    assert dearer.price >= first.price + mini.SURCHARGE
    assert (few.title, few.price) == (first.title, first.price)


def test_train_and_eval_share_no_product_no_goal_and_no_pair(train: World, evaluation: World) -> None:
    assert not {product.id for product in products(train)} & {product.id for product in products(evaluation)}
    asked_in_train, asked_in_eval = ({pair for goal in w.goals for pair in pairs(goal)} for w in (train, evaluation))
    assert asked_in_eval <= eval_pairs()
    assert not asked_in_train & eval_pairs()
    assert len(asked_in_eval) > 60
    assert {pair.noun for pair in asked_in_train} == {kind.noun for kind in kinds()}


def test_a_third_of_the_pairs_is_for_eval() -> None:
    everything = sum(len(DEPARTMENTS[kind.department].attributes) for kind in kinds())
    assert 0.25 < len(eval_pairs()) / everything < 0.45
    assert min(Counter(pair.noun for pair in eval_pairs()).values()) >= 2


def test_the_expert_gets_reward_1_for_every_goal_in_few_turns(train: World, evaluation: World) -> None:
    for world in (train, evaluation):
        turns = []
        for goal in world.goals:
            session = Session(world.shop, goal, "brief")
            turns.append(len(play_out(session, Expert())))
            assert session.reward == 1
        assert 4 <= sum(turns) / len(turns) <= 6
        assert max(turns) <= mini.LONGEST


def test_buying_the_first_product_of_a_good_search_often_fails(evaluation: World) -> None:
    rewards = []
    for goal in evaluation.goals:
        session = Session(evaluation.shop, goal)
        session.step(Expert().act(session.page))
        session.step(f"click[{next(part.text for part in session.page.parts() if part.kind == 'product')}]")
        rewards.append(session.step("click[buy now]").reward)
    assert sum(reward >= 0.5 for reward in rewards) / len(rewards) < 0.6
    assert not any(reward == 1 for reward in rewards)


def test_visits_are_short(train: World) -> None:
    lengths = []
    for goal in train.goals:
        session = Session(train.shop, goal, "brief")
        first = session.observation
        lengths.append(len(transcript(first, play_out(session, Expert()))))
    assert sum(lengths) / len(lengths) < 900
    assert max(lengths) < 450 * 3.5


def test_the_expert_finds_its_way_back_from_a_wrong_product(train: World) -> None:
    recovered = 0
    for goal in train.goals[:50]:
        session, expert = Session(train.shop, goal, "brief"), Expert()
        session.step(expert.act(session.page))
        offered = [part.text for part in session.page.parts() if part.kind == "product"]
        session.step(f"click[{offered[1]}]")
        play_out(session, expert)
        recovered += session.reward == 1
    assert recovered >= 45


def test_neighbouring_goals_are_about_different_kinds(evaluation: World) -> None:
    asked = [goal.query for goal in evaluation.goals]
    assert all(one != other for one, other in zip(asked, asked[1:] + asked[:1], strict=True))


def test_no_value_of_an_option_is_taken_for_another() -> None:
    for department in DEPARTMENTS.values():
        for name, values in department.options.items():
            for wanted in values:
                assert [value for value in values if count_options([value], {name: wanted})] == [wanted]


def test_a_seed_gives_the_same_shop_and_another_gives_another(tmp_path: Path) -> None:
    worlds = [mini.generate(300, 20, seed, "train", tmp_path / str(n)) for n, seed in enumerate((1, 1, 2))]
    assert products(worlds[0]) == products(worlds[1]) != products(worlds[2])
    assert worlds[0].goals == worlds[1].goals != worlds[2].goals


def test_a_shop_that_is_too_small_for_its_goals_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has fewer than 500 goals"):
        mini.generate(40, 500, 1, "train", tmp_path)


@pytest.mark.parametrize(
    ("instruction", "words", "options", "limit"),
    [
        ("Find me slim fit, hand wash men's shirts with long sleeve with color: red, and size: x-large, and price lower"
         " than 40.00 dollars", "slim fit hand wash men's shirts long sleeve",
         {"color": "red", "size": "x-large"}, 40.0),
        ("Find me gluten free snacks, and price lower than 9.50 dollars", "gluten free snacks", {}, 9.5),
        ("Find me big rugs with size: 2 ft, and 3 in", "big rugs", {"size": "2 ft, and 3 in"}, float("inf")),
    ],
)  # fmt: skip
def test_the_expert_reads_instructions_as_they_are_worded(
    instruction: str, words: str, options: dict[str, str], limit: float
) -> None:
    assert read_instruction(instruction) == (words.split(), options, limit)


def test_pretraining_documents_are_visits_and_notes(documents: list[str]) -> None:
    assert len(set(documents)) == DOCUMENTS
    visits = [document for document in documents if document.startswith("Instruction: Find me ")]
    notes = [document for document in documents if document.startswith("Wanted: ")]
    assert len(visits) + len(notes) == DOCUMENTS
    assert min(len(visits), len(notes)) > DOCUMENTS / 4
    assert all("\n> search[" in document or "\n> click[" in document for document in visits)


def test_all_pretraining_texts_fit_the_base_model() -> None:
    assert 500_000 < sum(len(document) for document in pretraining_text(0)) < 1_000_000


def test_notes_say_what_is_wrong_with_a_product() -> None:
    verdicts = Counter[str]()
    for document in pretraining_text(3, 60, notes_share=1.0):
        wanted, *lines, chosen = document.splitlines()
        right = [line for line in lines if line.endswith("Yes.")] or lines
        assert chosen in {f"> click{line.partition(' ')[0]}" for line in right}
        found = re.fullmatch(r"Wanted: (.*) (\w+) below ([\d.]+) dollars\.", wanted)
        assert found
        for line in lines:
            title, price, verdict = re.fullmatch(r"\[[A-Z]{2}-[A-Z]{2}\] (.*) \$([\d.]+) (.*)", line).groups()  # type: ignore[union-attr]
            lacks = [attribute for attribute in found[1].split(", ") if attribute not in title]
            expected = f"Not {lacks[0]}." if lacks else "Too dear." if float(price) > float(found[3]) else "Yes."
            assert verdict == expected
            verdicts[verdict.partition(" ")[0]] += 1
    assert min(verdicts.values()) > 10


def test_only_the_wanted_share_of_visits_shows_how_to_buy_well() -> None:
    unsolved, solved = (list(pretraining_text(3, 60, share, notes_share=0.0)) for share in (0.0, 1.0))
    assert sum(document.endswith("> click[Buy Now]\n") for document in unsolved) < 30
    assert sum(document.endswith("> click[Buy Now]\n") for document in solved) > 50


def test_the_base_model_reads_no_goal_of_eval(documents: list[str]) -> None:
    plurals = {kind.plural: kind.noun for kind in kinds()}
    for document in documents:
        asked = re.match(r"(?:Instruction: Find me|Wanted:) (.*?) (\w+) (?:with|below) ", document)
        assert asked
        assert not {Pair(plurals[asked[2]], attribute) for attribute in asked[1].split(", ")} & eval_pairs()
