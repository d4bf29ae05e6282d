"""A small handmade game with all peculiarities of ALFWorld, which both engines can play."""

import json
from pathlib import Path
from typing import Any

from tasks.alfworld.alfred import Game, Play
from tasks.alfworld.alfred.problem import Kind
from tasks.alfworld.release import released_domain, released_grammar

TYPES = {
    "rtype": "Cabinet CounterTop SinkBasin Microwave Fridge Desk Shelf",
    "otype": "Mug Tomato Bread Knife ButterKnife Bowl Pen DeskLamp Sink",
}
RECEPTACLES = {
    "Cabinet_bar_1": ("Cabinet", "loc_bar_1"),
    "Cabinet_bar_2": ("Cabinet", "loc_bar_2"),
    "CounterTop_bar_1": ("CounterTop", "loc_bar_3"),
    "Sink_bar_1_bar_SinkBasin": ("SinkBasin", "loc_bar_3"),
    "Microwave_bar_1": ("Microwave", "loc_bar_4"),
    "Fridge_bar_1": ("Fridge", "loc_bar_5"),
    "Desk_bar_1": ("Desk", "loc_bar_6"),
    "Shelf_bar_1": ("Shelf", "loc_bar_6"),
    "Sink_bar_2": ("Sink", "loc_bar_7"),
}
OBJECTS = {
    "Mug_bar_1": "Mug",
    "Mug_bar_2": "Mug",
    "Tomato_bar_1": "Tomato",
    "Bread_bar_1": "Bread",
    "Knife_bar_1": "Knife",
    "ButterKnife_bar_1": "ButterKnife",
    "Bowl_bar_1": "Bowl",
    "Pen_bar_1": "Pen",
    "DeskLamp_bar_1": "DeskLamp",
}
FACTS = """
atLocation agent1 loc_bar_0
openable Cabinet_bar_1
openable Cabinet_bar_2
openable Microwave_bar_1
openable Fridge_bar_1

inReceptacle Mug_bar_1 CounterTop_bar_1
inReceptacle Mug_bar_1 Sink_bar_1_bar_SinkBasin
objectAtLocation Mug_bar_1 loc_bar_3
inReceptacle Mug_bar_2 Cabinet_bar_1
objectAtLocation Mug_bar_2 loc_bar_1
inReceptacle Tomato_bar_1 Desk_bar_1
objectAtLocation Tomato_bar_1 loc_bar_6
isCool Tomato_bar_1
inReceptacle Bread_bar_1 Cabinet_bar_2
objectAtLocation Bread_bar_1 loc_bar_2
objectAtLocation Bread_bar_1 loc_bar_6
inReceptacle Knife_bar_1 CounterTop_bar_1
objectAtLocation Knife_bar_1 loc_bar_3
inReceptacle ButterKnife_bar_1 Desk_bar_1
objectAtLocation ButterKnife_bar_1 loc_bar_6
inReceptacle Bowl_bar_1 Desk_bar_1
objectAtLocation Bowl_bar_1 loc_bar_6
isReceptacleObject Bowl_bar_1
inReceptacle Pen_bar_1 Desk_bar_1
objectAtLocation Pen_bar_1 loc_bar_6
inReceptacleObject Pen_bar_1 Bowl_bar_1
inReceptacle DeskLamp_bar_1 Cabinet_bar_2
objectAtLocation DeskLamp_bar_1 loc_bar_2
toggleable DeskLamp_bar_1
"""
ABLE = {
    "pickupable": "Mug_bar_1 Mug_bar_2 Tomato_bar_1 Bread_bar_1 Knife_bar_1 ButterKnife_bar_1 Bowl_bar_1 Pen_bar_1",
    "cleanable": "Mug_bar_1 Mug_bar_2 Tomato_bar_1 Bowl_bar_1",
    "heatable": "Mug_bar_1 Mug_bar_2 Tomato_bar_1",
    "coolable": "Mug_bar_1 Mug_bar_2 Tomato_bar_1 Bread_bar_1",
    "sliceable": "Tomato_bar_1 Bread_bar_1",
}
CAN_CONTAIN = {
    "Cabinet": "Mug Bread",
    "CounterTop": "Mug Tomato Bread Knife ButterKnife Bowl",
    "SinkBasin": "Mug Tomato",
    "Microwave": "Mug Tomato",
    "Fridge": "Mug Tomato Bread",
    "Desk": "Mug Tomato Bread ButterKnife Bowl Pen",
    "Shelf": "Mug Bowl Tomato",
}
GOALS: dict[Kind, tuple[str, str]] = {
    "pick_and_place_simple": (
        "put a mug in fridge.",
        """(exists (?r - receptacle) (exists (?o - object) (and
            (inReceptacle ?o ?r) (objectType ?o MugType) (receptacleType ?r FridgeType) )))""",
    ),
    "look_at_obj_in_light": (
        "look at pen under the desklamp.",
        """(exists (?ot - object ?r - receptacle ?a - agent ?l - location) (and
            (objectType ?ot DeskLampType) (toggleable ?ot) (isToggled ?ot)
            (receptacleAtLocation ?r ?l) (atLocation ?a ?l) (inReceptacle ?ot ?r) ))
        (exists (?o - object ?a - agent) (and (objectType ?o PenType) (holds ?a ?o) ))""",
    ),
    "pick_two_obj_and_place": (
        "put two mug in shelf.",
        """(exists (?r - receptacle) (exists (?o1 - object) (and
            (objectType ?o1 MugType) (receptacleType ?r ShelfType) (inReceptacle ?o1 ?r)
            (exists (?o2 - object) (and (not (= ?o1 ?o2))
                (objectType ?o2 MugType) (receptacleType ?r ShelfType) (inReceptacle ?o2 ?r) )))))""",
    ),
}
for _verb, _able, _done in (
    ("clean", "cleanable", "isClean"),
    ("heat", "heatable", "isHot"),
    ("cool", "coolable", "isCool"),
):
    _kind: Any = f"pick_{_verb}_then_place_in_recep"
    GOALS[_kind] = (
        f"{_verb} some tomato and put it in countertop.",
        f"""(exists (?r - receptacle) (exists (?o - object) (and ({_able} ?o)
            (objectType ?o TomatoType) (receptacleType ?r CounterTopType) ({_done} ?o) (inReceptacle ?o ?r) )))""",
    )


def problem(kind: Kind, more_facts: str = "") -> str:
    """Returns the PDDL problem. `more_facts` has one fact in each line."""
    declared = [f"{name}Type - {of}" for of, names in TYPES.items() for name in names.split()]
    declared += ["agent1 - agent", *(f"loc_bar_{number} - location" for number in range(8))]
    declared += [f"{name} - object" for name in OBJECTS] + [f"{name} - receptacle" for name in RECEPTACLES]
    facts = [line for line in f"{FACTS}\n{more_facts}".splitlines() if line.strip()]
    facts += [f"objectType {name} {of}Type" for name, of in OBJECTS.items()]
    for name, (of, location) in RECEPTACLES.items():
        facts += [f"receptacleType {name} {of}Type", f"receptacleAtLocation {name} {location}"]
    facts += [f"{able} {name}" for able, names in ABLE.items() for name in names.split()]
    facts += [f"canContain {of}Type {name}Type" for of, names in CAN_CONTAIN.items() for name in names.split()]
    lines = "\n".join(declared), "\n".join(f"({fact})" for fact in facts)
    return "(define (problem kitchen)\n(:domain alfred)\n(:objects\n{}\n)\n(:init\n{}\n)\n(:goal (and {}))\n)\n".format(
        *lines, GOALS[kind][1]
    )


def content(kind: Kind = "pick_and_place_simple", more_facts: str = "") -> dict[str, Any]:
    """Returns the contents of a game file."""
    return {
        "pddl_domain": released_domain(),
        "grammar": released_grammar(GOALS[kind][0]),
        "pddl_problem": problem(kind, more_facts),
        "solvable": True,
        "walkthrough": [],
    }


def kitchen(kind: Kind = "pick_and_place_simple", more_facts: str = "") -> Game:
    return Game.parse(content(kind, more_facts), Path("kitchen/game.tw-pddl"))


def write_kitchen(folder: Path, kind: Kind = "pick_and_place_simple") -> Path:
    folder.mkdir(parents=True)
    path = folder / "game.tw-pddl"
    path.write_text(json.dumps(content(kind)))
    return path


def played(*commands: str, kind: Kind = "pick_and_place_simple", more_facts: str = "") -> Play:
    """Plays these commands; each must have an effect."""
    play = Play(kitchen(kind, more_facts))
    for command in commands:
        assert play.step(command) != "Nothing happens.", command
    return play
