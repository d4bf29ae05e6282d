"""Tests the exploring expert: what it reads, what it does, and that it wins."""

from pathlib import Path

import pytest

from tasks.alfworld import mini
from tasks.alfworld.alfred import Game, Play
from tasks.alfworld.alfred.expert import HOMES, Expert, Goal, play_out, read_goal

INTRO = (
    "-= Welcome to TextWorld, ALFRED! =-\n\nYou are in the middle of a room. Looking quickly around you, you see "
    "a {}.\n\nYour task is to: {}"
)
EVERYWHERE = ["go to desk 2", "go to desk 1", "go to drawer 1", "go to shelf 1", "inventory", "look"]


@pytest.fixture(scope="module")
def games() -> list[Game]:
    return [Game.parse(mini.game(household), Path("mini")) for household in mini.generate(120, 11, "train")]


def at(place: str, *more: str) -> list[str]:
    return [command for command in EVERYWHERE if command != f"go to {place}"] + list(more)


@pytest.fixture
def expert() -> Expert:
    """Starts a game with two desks, a drawer and a shelf, in which the expert must find a cd."""
    player = Expert()
    player.begin(INTRO.format("desk 2, a desk 1, a drawer 1, and a shelf 1", "put a cd in shelf."))
    return player


@pytest.mark.parametrize(
    ("task", "goal"),
    [
        ("put a mug in desk.", Goal("mug", "desk")),
        ("put some mug on desk.", Goal("mug", "desk")),
        ("put a clean mug in desk.", Goal("mug", "desk", "clean")),
        ("clean some mug and put it in desk.", Goal("mug", "desk", "clean")),
        ("put a hot mug in desk.", Goal("mug", "desk", "heat")),
        ("heat some mug and put it in desk.", Goal("mug", "desk", "heat")),
        ("put a cool mug in desk.", Goal("mug", "desk", "cool")),
        ("cool some mug and put it in desk.", Goal("mug", "desk", "cool")),
        ("put two mug in desk.", Goal("mug", "desk", count=2)),
        ("find two mug and put them in desk.", Goal("mug", "desk", count=2)),
        ("look at mug under the desklamp.", Goal("mug", lamp="desklamp")),
        ("examine the mug with the desklamp.", Goal("mug", lamp="desklamp")),
    ],
)
def test_it_understands_every_wording_of_a_task(task: str, goal: Goal) -> None:
    assert read_goal(task) == goal


def test_it_understands_no_other_wording() -> None:
    with pytest.raises(ValueError, match="not a task of ALFWorld"):
        read_goal("water the plants.")


def test_it_wins_every_mini_game(games: list[Game]) -> None:
    for game in games:
        play = Play(game)
        play_out(play, Expert())
        assert play.won


def test_it_does_only_what_can_be_done(games: list[Game]) -> None:
    for game in games:
        assert not any("Nothing happens" in turn.observation for turn in play_out(Play(game), Expert()))


def test_the_expert_reads_only_what_a_player_sees(games: list[Game]) -> None:
    for game in games[:30]:
        play, expert = Play(game), Expert()
        seen: list[tuple[str, list[str]]] = [(str(play.intro), list(play.admissible()))]
        commands = []
        while not play.won:
            commands.append(expert.act(*seen[-1]))
            seen.append((str(play.step(commands[-1])), list(play.admissible())))
        again = Expert()
        assert [again.act(*texts) for texts in seen[:-1]] == commands


def test_it_looks_where_things_of_a_kind_are_likeliest_first(expert: Expert) -> None:
    assert HOMES["cd"]["desk"] > HOMES["cd"]["drawer"] / 2 > HOMES["cd"]["shelf"]  # opening costs a step
    assert expert.choose(EVERYWHERE) == "go to desk 2"
    expert.see("You arrive at desk 2. On the desk 2, you see a pen 1.")
    assert expert.choose(at("desk 2")) == "go to desk 1"
    expert.see("You arrive at desk 1. On the desk 1, you see nothing.")
    assert expert.choose(at("desk 1")) == "go to drawer 1"


def test_it_opens_what_is_closed(expert: Expert) -> None:
    for place in ("desk 2", "desk 1"):
        expert.see(f"You arrive at {place}. On the {place}, you see nothing.")
    expert.see("You arrive at drawer 1. The drawer 1 is closed.")
    assert expert.choose(at("drawer 1", "open drawer 1")) == "open drawer 1"
    expert.see("You open the drawer 1. The drawer 1 is open. In it, you see a cd 3, and a pen 1.")
    assert expert.choose(at("drawer 1", "take cd 3 from drawer 1")) == "take cd 3 from drawer 1"


def test_it_remembers_what_it_saw_on_its_way() -> None:
    expert = Expert()
    expert.begin(INTRO.format("desk 2, a desk 1, and a shelf 1", "put two mug in shelf."))
    expert.see("You arrive at desk 2. On the desk 2, you see a mug 2, and a mug 1.")
    expert.see("You pick up the mug 2 from the desk 2.")
    expert.see("You arrive at shelf 1. On the shelf 1, you see nothing.")
    expert.see("You move the mug 2 to the shelf 1.")
    assert expert.choose(at("shelf 1", "take mug 2 from shelf 1")) == "go to desk 2"


def test_in_rounds_it_looks_for_the_lamp_from_where_it_stands(games: list[Game]) -> None:
    in_rounds = Expert(homes={}, rounds=True)
    for expert, then in ((Expert(homes={}), "go to desk 2"), (in_rounds, "go to shelf 1")):
        expert.begin(INTRO.format("desk 2, a desk 1, and a shelf 1", "look at mug under the desklamp."))
        expert.see("You arrive at desk 2. On the desk 2, you see a desklamp 1.")
        expert.see("You arrive at desk 1. On the desk 1, you see a mug 1.")
        expert.see("You pick up the mug 1 from the desk 1.")
        assert expert.choose(at("desk 1")) == then
    in_rounds.see("You arrive at shelf 1. On the shelf 1, you see nothing.")
    assert in_rounds.choose(at("shelf 1")) == "go to desk 2"
    for game in games:
        play = Play(game)
        play_out(play, in_rounds)
        assert play.won


def test_it_puts_two_things_into_one_receptacle() -> None:
    expert = Expert()
    expert.begin(INTRO.format("desk 1, a shelf 2, and a shelf 1", "put two mug in shelf."))
    expert.see("You arrive at shelf 1. On the shelf 1, you see a mug 1.")
    expert.see("You arrive at desk 1. On the desk 1, you see a mug 2.")
    expert.see("You pick up the mug 2 from the desk 1.")
    assert expert.choose(at("desk 1", "go to shelf 2")) == "go to shelf 1"


def test_where_it_cannot_go_because_it_is_there_it_looks(expert: Expert) -> None:
    assert expert.choose(["examine desk 2", "go to desk 1", "look"]) == "examine desk 2"


def test_it_can_take_over_from_somebody_else(expert: Expert) -> None:
    expert.see("You arrive at desk 1. On the desk 1, you see a pen 1.")
    expert.see("You pick up the pen 1 from the desk 1.")
    assert expert.choose(at("desk 1", "move pen 1 to desk 1")) == "move pen 1 to desk 1"
    expert.see("You move the pen 1 to the desk 1.")
    assert expert.choose(at("desk 1")) == "go to desk 2"


def test_what_is_hot_and_then_cooled_has_to_be_heated_again() -> None:
    expert = Expert()
    expert.begin(INTRO.format("fridge 1, a microwave 1, and a shelf 1", "put a hot mug in shelf."))
    expert.see("You pick up the mug 1 from the fridge 1.")
    expert.see("You heat the mug 1 using the microwave 1.")
    assert expert.choose(["go to fridge 1", "go to shelf 1"]) == "go to shelf 1"
    expert.see("You cool the mug 1 using the fridge 1.")
    assert expert.choose(["go to microwave 1", "go to shelf 1"]) == "go to microwave 1"


def test_play_ends_after_the_most_steps_allowed(games: list[Game]) -> None:
    assert len(play_out(Play(games[0]), Expert(), max_steps=2)) == 2
