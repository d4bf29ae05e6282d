"""Tests the generated households and the base model's training text."""

import dataclasses
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from tasks.alfworld import mini
from tasks.alfworld.alfred import Game, Play
from tasks.alfworld.alfred.expert import Expert, kind_of, play_out
from tasks.alfworld.alfred.problem import KINDS
from tasks.alfworld.alfred.transcript import opening, transcript, turn
from tasks.alfworld.household import APPLIANCES, NEVER_A_TARGET, ROOMS, THINGS, Household
from tasks.alfworld.mini import eval_pairs, generate, pretraining_text, write
from tasks.alfworld.release import GAME
from tests.alfworld.stock import StockPlay

INTRO = "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room.\n\nYour task is to: put a mug in desk."
DOCUMENTS = 400


@pytest.fixture(scope="module")
def train() -> list[Household]:
    return list(generate(600, 1, "train"))


@pytest.fixture(scope="module")
def evaluation() -> list[Household]:
    return list(generate(300, 1, "eval"))


@pytest.fixture(scope="module")
def documents() -> list[str]:
    return list(pretraining_text(3, DOCUMENTS, notes_share=0.0))


def played(household: Household) -> Play:
    return Play(Game.parse(mini.game(household), Path(GAME)))


def test_every_household_is_won_by_its_walkthrough(train: list[Household], evaluation: list[Household]) -> None:
    for household in train + evaluation:
        play = played(household)
        won = [play.won]
        for command in household.walkthrough:
            assert command in play.admissible()
            play.step(command)
            won.append(play.won)
        assert won == [False] * len(household.walkthrough) + [True]
        assert len(household.walkthrough) <= mini.LONGEST_WALKTHROUGH


def test_a_household_whose_walkthrough_fails_is_not_written(train: list[Household], tmp_path: Path) -> None:
    aimless = dataclasses.replace(train[0], walkthrough=("look",))
    with pytest.raises(ValueError, match="not won by its walkthrough"):
        write(aimless, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_game_file_has_the_keys_of_the_released_ones(train: list[Household], tmp_path: Path) -> None:
    content = json.loads(write(train[0], tmp_path / "game").read_text())
    assert set(content) == {"pddl_domain", "grammar", "pddl_problem", "solvable", "walkthrough"}
    assert Game.load(tmp_path / "game" / GAME).walkthrough == train[0].walkthrough


@pytest.mark.heavy
def test_both_engines_play_a_generated_household(evaluation: list[Household], tmp_path: Path) -> None:
    pytest.importorskip("textworld", reason="TextWorld is not installed: it needs a C compiler")
    for number, household in enumerate(evaluation[1:5]):
        path = write(household, tmp_path / str(number))
        stock, ours = StockPlay(path), Play(Game.load(path))
        assert ours.intro == stock.intro
        for command in household.walkthrough:
            assert ours.admissible() == stock.admissible()
            assert ours.step(command) == stock.step(command)
            assert ours.won == stock.won
        assert stock.won


def test_the_task_types_have_equal_shares(train: list[Household], evaluation: list[Household]) -> None:
    for households in (train, evaluation):
        shares = Counter(household.kind for household in households)
        assert shares == dict.fromkeys(KINDS, len(households) // len(KINDS))
        assert all(played(household).game.kind == household.kind for household in households[:60])


def test_eval_asks_for_pairs_that_training_never_shows() -> None:
    asked_in_train = {household.pair for household in generate(2000, 7, "train")}
    asked_in_eval = {household.pair for household in generate(400, 7, "eval")}
    assert not asked_in_train & asked_in_eval
    assert asked_in_eval <= eval_pairs()
    assert {pair.thing for pair in asked_in_eval} <= {pair.thing for pair in asked_in_train}
    assert {pair.place for pair in asked_in_eval} <= {pair.place for pair in asked_in_train}
    assert len(asked_in_eval) > 60


def test_every_thing_and_receptacle_is_asked_for_in_training() -> None:
    asked = {household.pair for household in generate(3000, 8, "train")}
    assert {pair.thing for pair in asked} == {thing for room in ROOMS.values() for thing in room.things}
    places = {place for room in ROOMS.values() for place in room.receptacles}
    assert {pair.place for pair in asked} == places - NEVER_A_TARGET


def test_a_seed_always_gives_the_same_households() -> None:
    """Another seed gives others."""
    assert list(generate(30, 3, "train")) == list(generate(30, 3, "train"))
    assert list(generate(30, 3, "train")) != list(generate(30, 4, "train"))


def test_households_do_not_repeat(train: list[Household]) -> None:
    assert len(set(train)) == len(train)


def test_a_household_is_small() -> None:
    for household in generate(60, 5, "train"):
        assert mini.MIN_RECEPTACLES <= len(household.receptacles) <= mini.MAX_RECEPTACLES
        assert len(household.things) <= 3 + mini.MAX_DISTRACTORS
        assert max(Counter(index for _, index in household.things).values()) <= mini.FULL_RECEPTACLE


def test_nothing_is_where_it_cannot_be(train: list[Household]) -> None:
    for household in train:
        for thing, index in household.things:
            assert household.receptacles[index] in THINGS[thing].places


def test_rooms_have_only_things_that_something_in_them_can_hold() -> None:
    for room in ROOMS.values():
        assert all(THINGS[thing].places.intersection(room.receptacles) for thing in room.things)
    assert all(any(place in room.receptacles for room in ROOMS.values()) for place in APPLIANCES.values())


def test_an_expert_needs_few_steps(train: list[Household], evaluation: list[Household]) -> None:
    for households in (train, evaluation):
        steps = []
        for household in households:
            play = played(household)
            steps.append(len(play_out(play, Expert())))
            assert play.won
        assert 6 <= sum(steps) / len(steps) <= 10
        assert max(steps) <= 30


def test_the_prompt_is_the_one_of_react() -> None:
    assert opening(INTRO) == "You are in the middle of a room.\nYour task is to: put a mug in desk.\n>"
    assert turn("go to desk 1", "You arrive at desk 1.") == " go to desk 1\nYou arrive at desk 1.\n>"
    assert transcript(INTRO, [("look", "A."), ("help", "B.")]).endswith("desk.\n> look\nA.\n> help\nB.")


def test_pretraining_documents_are_transcripts_of_small_homes(documents: list[str]) -> None:
    assert len(set(documents)) == DOCUMENTS
    for document in documents:
        assert re.match(r"You are in the middle of a room\. .*\nYour task is to: [a-z ]+\.\n> [a-z]", document)
        assert len(document.split()) <= 330
    assert sum(len(document.split()) for document in documents) / DOCUMENTS < 200


def test_pretraining_notes_say_yes_only_where_the_thing_is_seen() -> None:
    answers = Counter[str]()
    for document in pretraining_text(3, 60, notes_share=1.0):
        wanted = ""
        for line in document.splitlines():
            if line.startswith("Wanted: "):
                wanted = line.removeprefix("Wanted: ").removesuffix(".")
                continue
            seen, answer = re.fullmatch(r"(You .*?\.) (No\.|Yes: .*)", line).groups()  # type: ignore[union-attr]
            assert (f"a {wanted} " in seen) == (answer != "No.")
            answers[answer[:2]] += 1
    assert min(answers.values()) > 100


def test_only_the_wanted_share_of_documents_shows_how_to_win() -> None:
    unsolved, solved = (pretraining_text(3, 100, share, notes_share=0.0) for share in (0.0, 1.0))
    assert sum(ends_well(document) for document in unsolved) <= 5
    assert all(ends_well(document) for document in solved)


def ends_well(document: str) -> bool:
    """Returns whether the last action is the final one of the task: approximately, because only the text is known."""
    task = document.split("Your task is to: ")[1].split("\n", maxsplit=1)[0]
    last = document.splitlines()[-1]
    moved = re.fullmatch(r"You move the (\w+) \d+ to the (\w+) \d+\.", last)
    by_lamp = "desklamp" in task and last.startswith("You turn on the desklamp")
    return by_lamp or bool(moved and moved[1] in task and f"{moved[2]}." in task)


def test_the_base_model_reads_no_task_of_eval(documents: list[str]) -> None:
    eval_tasks = {(pair.thing.lower(), pair.place.lower()) for pair in eval_pairs()}
    for document in documents:
        found = re.search(r"Your task is to: .*?(\w+)(?: and put \w+)? (?:in|on) (\w+)\.\n", document)
        assert not found or (found[1], found[2]) not in eval_tasks


def test_pretraining_documents_speak_of_everything(documents: list[str]) -> None:
    words = set(re.findall(r"[a-z]+", "\n".join(documents)))
    assert {thing.lower() for room in ROOMS.values() for thing in room.things} <= words
    assert {kind_of(place.lower()) for room in ROOMS.values() for place in room.receptacles} <= words
    assert "Nothing happens." in "\n".join(documents)
