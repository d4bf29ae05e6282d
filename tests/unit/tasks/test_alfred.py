"""Tests the native ALFWorld engine: one test for each peculiarity of the stock engine (see kitchen.py)."""

import copy
import json
import pickle
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.alfworld.alfred import Game, Play, UnsupportedGameError
from tasks.alfworld.alfred.play import NOTHING_HAPPENS, listing, treated
from tasks.alfworld.alfred.problem import KINDS, Kind, display_names
from tasks.alfworld.release import released_grammar
from tests.alfworld.kitchen import GOALS, content, kitchen, played
from tests.alfworld.walks import walk

TRANSCRIPTS = sorted((Path(__file__).parents[2] / "alfworld" / "transcripts").glob("*.jsonl"))


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_a_recorded_game_of_the_stock_engine_plays_the_same(path: Path) -> None:
    game, reset, *turns = (json.loads(line) for line in path.read_text().splitlines())
    data = content() | {"pddl_problem": game["pddl_problem"], "grammar": released_grammar(game["task"])}
    play = Play(Game.parse(data, path))
    assert (play.intro, play.admissible(), play.won) == (reset["answer"], reset["admissible"], reset["won"])
    for turn in turns:
        assert play.step(turn["command"]) == turn["answer"], turn["command"]
        assert (play.admissible(), play.won) == (turn["admissible"], turn["won"]), turn["command"]


def test_there_are_recorded_games() -> None:
    assert len(TRANSCRIPTS) == 3


def test_numbers_are_dealt_downwards_over_a_nouns_sorted_ids() -> None:
    names = display_names(["mug_bar_2", "mug_bar_10", "mug_bar_1", "sink_bar_1", "sink_bar_1_bar_sinkbasin"])
    assert names == {
        "mug_bar_1": "mug 3",
        "mug_bar_10": "mug 2",
        "mug_bar_2": "mug 1",
        "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }


def test_an_id_without_a_position_has_a_name_ending_in_a_space() -> None:
    assert display_names(["mugtype"]) == {"mugtype": "mugtype "}


def test_lists_follow_the_identifiers_and_not_the_names() -> None:
    assert "you see a cabinet 2, a cabinet 1, a countertop 1" in Play(kitchen()).intro


@pytest.mark.parametrize(
    ("names", "text"), [([], "nothing"), (["a"], "a"), (["a", "b"], "a, and b"), (["a", "b", "c"], "a, b, and c")]
)
def test_lists_are_joined_with_a_comma_before_and(names: list[str], text: str) -> None:
    assert listing(names) == text


def test_a_problem_is_read_whatever_its_case() -> None:
    data = content()
    assert (
        Play(Game.parse(data | {"pddl_problem": data["pddl_problem"].upper()}, Path())).intro == Play(kitchen()).intro
    )


@pytest.mark.parametrize("command", ["  go to desk 1 ", "\tgo to desk 1\n", "\u00a0go to desk 1"])
def test_space_around_a_command_does_not_matter(command: str) -> None:
    assert Play(kitchen()).step(command).startswith("You arrive at desk 1.")


@pytest.mark.parametrize(
    "command",
    [
        "Go to desk 1",
        "go  to desk 1",
        "go to desk 1.",
        "go desk 1",
        "go to desk",
        "",
        "think: hm",
        "look around",
        "help 1",
    ],
)
def test_any_other_spelling_does_nothing(command: str) -> None:
    assert Play(kitchen()).step(command) == NOTHING_HAPPENS


def test_looking_around_at_the_start_is_not_the_intro() -> None:
    observation = Play(kitchen()).step("look")
    assert observation == "You are in the middle of a room. Looking quickly around you, you see nothing."


def test_a_start_at_a_receptacle_is_told_by_what_stands_there() -> None:
    problem = content()["pddl_problem"].replace("agent1 loc_bar_0", "agent1 loc_bar_6")
    intro = Play(Game.parse(content() | {"pddl_problem": problem}, Path())).intro
    assert "\n\nYou are facing the desk 1, and shelf 1. Next to it, you see nothing.\n\nYour task is to: " in intro


def test_no_receptacle_at_the_own_place_can_be_gone_to() -> None:
    play = played("go to desk 1")
    assert "go to shelf 1" not in play.admissible()
    assert play.step("go to desk 1") == play.step("go to shelf 1") == NOTHING_HAPPENS
    assert play.step("examine shelf 1") == "On the shelf 1, you see nothing."


def test_only_the_held_object_can_be_examined() -> None:
    play = played("go to desk 1")
    assert play.step("examine pen 1") == NOTHING_HAPPENS
    play.step("take pen 1 from desk 1")
    assert play.step("examine pen 1") == "There's nothing special about pen 1."


def test_an_object_may_be_in_two_places_and_is_taken_from_one() -> None:
    play = played("go to countertop 1", "take mug 2 from countertop 1")
    assert play.step("examine sinkbasin 1") == "On the sinkbasin 1, you see a mug 2."
    play.step("move mug 2 to sinkbasin 1")
    assert play.step("examine sinkbasin 1") == "On the sinkbasin 1, you see a mug 2."
    assert play.step("examine countertop 1") == "On the countertop 1, you see a knife 1."


def test_a_taken_thing_is_seen_where_it_still_is() -> None:
    """It is seen next to a receptacle that it was taken from."""
    play = played("go to desk 1", "take bowl 1 from desk 1")
    assert play.step("look") == "You are facing the desk 1, and shelf 1. Next to it, you see nothing."
    play.step("move bowl 1 to shelf 1")
    assert play.step("look") == "You are facing the desk 1, and shelf 1. Next to it, you see a bowl 1."
    play.step("take bowl 1 from shelf 1")
    play.step("move bowl 1 to desk 1")
    assert play.step("look") == "You are facing the desk 1, and shelf 1. Next to it, you see a bowl 1."


def test_taking_a_thing_leaves_it_at_its_other_locations() -> None:
    away = ("go to cabinet 1", "open cabinet 1", "take bread 1 from cabinet 1", "move bread 1 to cabinet 1")
    play = played(*away, "go to countertop 1", "take knife 1 from countertop 1", "go to desk 1")
    assert play.step("slice bread 1 with knife 1") == "You sliced the bread 1 with the knife 1."


def test_a_lamp_is_turned_on_repeatedly_even_in_a_closed_cabinet() -> None:
    play = played("go to cabinet 1")
    assert play.step("use desklamp 1") == play.step("use desklamp 1") == "You turn on the desklamp 1."
    play.step("go to cabinet 2")
    assert play.step("use desklamp 1") == NOTHING_HAPPENS


def test_heating_needs_the_microwave_and_not_its_door() -> None:
    play = played("go to desk 1", "take tomato 1 from desk 1", "go to microwave 1")
    assert play.step("heat tomato 1 with microwave 1") == "You heat the tomato 1 using the microwave 1."
    assert play.step("cool tomato 1 with microwave 1") == NOTHING_HAPPENS


def test_heat_and_cold_undo_each_other_and_leave_clean_as_it_is() -> None:
    play = played("go to desk 1", "take tomato 1 from desk 1")
    assert play.step("examine tomato 1") == "This is a cold tomato 1."
    for command in ("go to sinkbasin 1", "clean tomato 1 with sinkbasin 1", "go to microwave 1"):
        play.step(command)
    assert play.step("examine tomato 1") == "This is a cool and clean tomato 1."
    play.step("heat tomato 1 with microwave 1")
    assert play.step("examine tomato 1") == "This is a hot and clean tomato 1."
    play.step("go to fridge 1")
    play.step("cool tomato 1 with fridge 1")
    assert play.step("examine tomato 1") == "This is a cool and clean tomato 1."


@pytest.mark.parametrize("sink", ["sink 1", "sinkbasin 1"])
def test_a_sink_and_its_basin_both_clean(sink: str) -> None:
    play = played("go to desk 1", "take tomato 1 from desk 1", f"go to {sink}")
    assert play.step(f"clean tomato 1 with {sink}") == f"You clean the tomato 1 using the {sink}."


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (("clean", "hot", "sliced"), "hot and clean sliced mug 1"),
        (("clean", "cool", "sliced"), "cool and clean sliced mug 1"),
        (("clean", "sliced"), "clean sliced mug 1"),
        (("hot", "sliced"), "hot sliced mug 1"),
        (("cool", "sliced"), "cool sliced mug 1"),
        (("clean", "hot"), "hot and clean mug 1"),
        (("clean", "cool"), "cool and clean mug 1"),
        (("hot",), "hot mug 1"),
        (("clean",), "clean mug 1"),
        (("cool",), "cold mug 1"),
        (("sliced",), "sliced mug 1"),
    ],
)
def test_a_treated_thing_is_described_as_in_the_grammar(state: tuple[str, ...], text: str) -> None:
    assert treated("mug 1", *(name in state for name in ("clean", "hot", "cool", "sliced"))) == text


def test_a_container_always_holds_what_it_held_at_the_start() -> None:
    play = played("go to desk 1", "take bowl 1 from desk 1", "go to sink 1", "clean bowl 1 with sink 1")
    assert play.step("examine bowl 1") == "This is a normal bowl 1. In it, you see a pen 1."


def test_what_lies_in_a_closed_receptacle_can_be_sliced() -> None:
    play = played("go to desk 1", "take butterknife 1 from desk 1", "go to cabinet 1")
    assert play.step("slice bread 1 with butterknife 1") == "You sliced the bread 1 with the butterknife 1."


def test_moving_needs_an_open_door_and_a_fitting_type_not_room() -> None:
    play = played("go to countertop 1", "take mug 2 from countertop 1", "go to fridge 1")
    assert play.step("move mug 2 to fridge 1") == NOTHING_HAPPENS
    play.step("open fridge 1")
    assert play.step("move mug 2 to fridge 1") == "You move the mug 2 to the fridge 1."
    assert play.won
    play = played("go to desk 1", "take pen 1 from desk 1")
    assert play.step("move pen 1 to shelf 1") == NOTHING_HAPPENS


def twin_of(play: Play) -> Play:
    return copy.deepcopy(play, {id(play.game): play.game})


def test_plays_in_equal_states_go_on_alike() -> None:
    rng, known, met_again = random.Random(0), dict[object, tuple[list[str], list[str]]](), 0
    for _ in range(40):
        play = Play(kitchen())
        for _ in range(30):
            commands = play.admissible()
            future = (commands, [twin_of(play).step(command) for command in commands])
            met_again += play.state in known
            assert known.setdefault(play.state, future) == future
            play.step(rng.choice(commands))
    assert met_again > 100


def test_a_state_is_that_of_before_once_everything_is_undone() -> None:
    play = Play(kitchen())
    play.step("go to fridge 1")
    before = play.state
    assert play.step("go to nowhere 1") == NOTHING_HAPPENS
    assert play.state == before
    play.step("open fridge 1")
    assert play.state != before
    play.step("close fridge 1")
    assert play.state == before


def test_the_prompts_of_old_do_not_put_anything_anywhere() -> None:
    play = played("go to desk 1", "take bowl 1 from desk 1")
    assert play.step("put bowl 1 in/on shelf 1") == NOTHING_HAPPENS


def test_two_objects_have_to_be_in_the_same_receptacle() -> None:
    play = played("go to countertop 1", "take mug 2 from countertop 1", "go to shelf 1", "move mug 2 to shelf 1",
                  "go to cabinet 2", "open cabinet 2", "take mug 1 from cabinet 2", "go to desk 1",
                  "move mug 1 to desk 1", kind="pick_two_obj_and_place")  # fmt: skip
    assert not play.won
    play.step("take mug 1 from desk 1")
    play.step("move mug 1 to shelf 1")
    assert play.won


def test_one_object_in_two_places_is_not_two() -> None:
    assert not Play(kitchen("pick_two_obj_and_place", "inReceptacle Mug_bar_1 Shelf_bar_1")).won


def test_looking_at_a_thing_asks_for_the_lit_lamp_here() -> None:
    play = played("go to cabinet 1", "use desklamp 1", "go to desk 1", "take pen 1 from desk 1", kind=KINDS[1])
    assert not play.won
    play.step("go to cabinet 1")
    assert play.won
    play.step("go to desk 1")
    assert not play.won


@pytest.mark.parametrize(("verb", "at"), [("clean", "sink 1"), ("heat", "microwave 1"), ("cool", "fridge 1")])
def test_a_treatment_has_to_be_the_one_asked_for(verb: str, at: str) -> None:
    kind: Kind = next(kind for kind in KINDS if f"_{verb}_" in kind)
    fetched = ("go to desk 1", "take tomato 1 from desk 1")
    put = ("go to countertop 1", "move tomato 1 to countertop 1")
    assert played(*fetched, *put, kind=kind).won == (verb == "cool")  # it was cold at the start
    assert played(*fetched, f"go to {at}", f"{verb} tomato 1 with {at}", *put, kind=kind).won


def test_help_is_the_text_of_the_game() -> None:
    assert Play(kitchen()).step("help").startswith("Available commands:\n  look:")


def test_admissible_commands_are_sorted_and_without_repetition() -> None:
    play = played("go to countertop 1")
    assert play.admissible() == sorted(set(play.admissible()))


def test_every_command_is_a_step() -> None:
    play = Play(kitchen())
    for command in ("look", "think: hm", "", "xyzzy"):
        play.step(command)
    assert play.steps == 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_command_does_something_only_if_it_is_admissible(kind: Kind) -> None:
    """And every admissible command does something."""
    game = kitchen(kind)
    play, tried = Play(game), set[str]()
    for command in walk(game, random.Random(kind), 300):
        tried |= {command, *play.admissible()}
        admissible = set(play.admissible())
        for each in tried:
            assert (twin_of(play).step(each) != NOTHING_HAPPENS) == (each.strip() in admissible), each
        play.step(command)


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_a_game_follows_from_its_goal(kind: Kind) -> None:
    game = kitchen(kind)
    assert (game.kind, game.goal_text) == (kind, GOALS[kind][0])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pddl_domain": "(define (domain alfred))"}, "its domain or grammar is not the one"),
        ({"grammar": "grammar"}, "its domain or grammar is not the one"),
        ({"pddl_problem": "(define)"}, "no objects, init and goal"),
        (
            {"pddl_problem": content()["pddl_problem"].replace("(objectType ?o MugType)", "")},
            "none of the 6 known shapes",
        ),
        (
            {"pddl_problem": content(more_facts="holds agent1 Mug_bar_1")["pddl_problem"]},
            "unsupported facts: holds",
        ),
        (
            {"pddl_problem": content(more_facts="receptacleAtLocation Desk_bar_1 loc_bar_1")["pddl_problem"]},
            "two facts receptacleatlocation",
        ),
        ({"pddl_problem": content(more_facts="sliceable Cheese_bar_1")["pddl_problem"]}, "undeclared: 'cheese_bar_1'"),
        ({"pddl_problem": content(more_facts="cleanable")["pddl_problem"]}, "incomplete fact, or one about"),
        ({"pddl_problem": content(more_facts="atLocation agent1 loc_bar_1")["pddl_problem"]}, "start at one location"),
    ],
)
def test_a_game_that_would_play_differently_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(UnsupportedGameError, match=message):
        Game.parse(content() | change, Path())


@pytest.mark.parametrize("text", ["", "[]", "{}", "\xff"])
def test_a_file_that_is_no_game_is_refused_by_name(text: str, tmp_path: Path) -> None:
    (tmp_path / "game.tw-pddl").write_text(text, encoding="latin-1")
    with pytest.raises(UnsupportedGameError, match=r"game\.tw-pddl: "):
        Game.load(tmp_path / "game.tw-pddl")


def test_the_engine_runs_anywhere_with_the_standard_library(repository: Path, tmp_path: Path) -> None:
    shutil.copytree(repository / "tasks" / "alfworld" / "alfred", tmp_path / "alfred")
    (tmp_path / "game.tw-pddl").write_text(json.dumps(content()))
    script = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from pathlib import Path; from alfred import Game, Play\n"
        f"sys.stdout.write(Play(Game.load(Path({str(tmp_path)!r}) / 'game.tw-pddl')).step('go to sink 1'))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "You arrive at sink 1. On the sink 1, you see nothing."


def test_a_game_can_be_sent_to_another_process() -> None:
    game = kitchen()
    twin = pickle.loads(pickle.dumps(game))
    assert Play(twin).intro == Play(game).intro
    assert repr(twin) == "Game('put a mug in fridge.', 'kitchen/game.tw-pddl')"
