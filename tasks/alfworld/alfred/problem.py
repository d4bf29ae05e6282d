"""Reading the PDDL problem of a game: its facts, the names that players see, and the shape of its goal.

PDDL is case-insensitive, and the original engine lowers all names, so everything here is lower case.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from sys import intern
from typing import Literal, NamedTuple, get_args

Kind = Literal[
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
]
KINDS: tuple[Kind, ...] = get_args(Kind)

PREDICATES = frozenset(
    {
        *("atlocation", "receptacleatlocation", "objectatlocation", "inreceptacle", "inreceptacleobject"),
        *("receptacletype", "objecttype", "cancontain", "openable", "isreceptacleobject", "pickupable", "toggleable"),
        *("cleanable", "heatable", "coolable", "iscool", "sliceable"),
    }
)
"""Predicates that hold at the start of released games: no door is open, and nothing is held, clean, hot or sliced."""

_SECTIONS = re.compile(r"\(:objects(.*?)\)\s*\(:init(.*)\)\s*\(:goal(.*)\)\s*\)\s*$", re.DOTALL)
_FACT = re.compile(r"\(([^()]*)\)")


class UnsupportedGameError(ValueError):
    """This engine would not play the game exactly as the original engine does."""


class GoalShape(NamedTuple):
    """The task and its type of object; `target` is the type of the receptacle, or of the lamp to look with."""

    kind: Kind
    object_type: str
    target: str


class Problem(NamedTuple):
    """A parsed problem."""

    types: dict[str, str]
    """The declared type of each identifier, e.g. "object"."""
    facts: dict[str, set[tuple[str, ...]]]
    """The arguments for which each predicate holds at the start."""
    goal: GoalShape

    def identifiers(self) -> set[str]:
        """Returns all identifiers in facts."""
        return {argument for rows in self.facts.values() for row in rows for argument in row}


def parse(text: str) -> Problem:
    """Reads a `pddl_problem`."""
    sections = _SECTIONS.search(text.lower())
    if sections is None:
        raise UnsupportedGameError("the problem has no objects, init and goal")
    objects, init, goal = sections.groups()
    facts: dict[str, set[tuple[str, ...]]] = defaultdict(set)
    for fact in _FACT.findall(init):
        predicate, *arguments = fact.split()
        facts[predicate].add(tuple(arguments))
    if not PREDICATES.issuperset(facts):
        raise UnsupportedGameError(f"the problem has unsupported facts: {', '.join(set(facts) - PREDICATES)}")
    return Problem(_declared(objects.split()), facts, _goal(goal))


def _declared(words: list[str]) -> dict[str, str]:
    types: dict[str, str] = {}
    names: list[str] = []
    words = words[::-1]
    while words:
        word = words.pop()
        if word == "-":
            types.update(dict.fromkeys(names, words.pop()))
            names = []
        else:
            names.append(word)
    return types


def display_names(identifiers: Iterable[str]) -> dict[str, str]:
    """Returns names: kind and number; the numbers of a kind descend over its sorted identifiers."""
    names, ordered = {}, sorted(identifiers)
    left = Counter(_noun(identifier) for identifier in ordered)
    for identifier in ordered:
        noun, numbered = _noun(identifier), "_bar_" in identifier
        names[identifier] = intern(f"{noun} {left[noun]}" if numbered else f"{noun} ")
        left[noun] -= 1
    return names


def _noun(identifier: str) -> str:
    noun, bar, _ = identifier.partition("_bar_")
    return f"{noun}basin" if bar and "basin" in identifier else noun


def _place_shape(able: str, state: str) -> str:
    return (
        f"(exists(?r - receptacle)(exists(?o - object)(and({able} ?o)(objecttype ?o OBJECT)(receptacletype ?r TARGET)"
        f"({state} ?o)(inreceptacle ?o ?r))))"
    )


SHAPES: dict[Kind, str] = {
    "pick_and_place_simple": (
        "(exists(?r - receptacle)(exists(?o - object)"
        "(and(inreceptacle ?o ?r)(objecttype ?o OBJECT)(receptacletype ?r TARGET))))"
    ),
    "look_at_obj_in_light": (
        "(exists(?ot - object ?r - receptacle ?a - agent ?l - location)(and(objecttype ?ot TARGET)(toggleable ?ot)"
        "(istoggled ?ot)(receptacleatlocation ?r ?l)(atlocation ?a ?l)(inreceptacle ?ot ?r)))"
        "(exists(?o - object ?a - agent)(and(objecttype ?o OBJECT)(holds ?a ?o)))"
    ),
    "pick_clean_then_place_in_recep": _place_shape("cleanable", "isclean"),
    "pick_heat_then_place_in_recep": _place_shape("heatable", "ishot"),
    "pick_cool_then_place_in_recep": _place_shape("coolable", "iscool"),
    "pick_two_obj_and_place": (
        "(exists(?r - receptacle)(exists(?o1 - object)(and(objecttype ?o1 OBJECT)(receptacletype ?r TARGET)"
        "(inreceptacle ?o1 ?r)(exists(?o2 - object)(and(not(= ?o1 ?o2))(objecttype ?o2 OBJECT)"
        "(receptacletype ?r TARGET)(inreceptacle ?o2 ?r))))))"
    ),
}
"""The goal of each kind, without spaces; OBJECT and TARGET stand for the types of the thing and of where it belongs."""


def _goal(text: str) -> GoalShape:
    goal = re.sub(r" ?([()]) ?", r"\1", " ".join(text.split()))
    object_types = re.findall(r"\(objecttype \?\w+ (\w+)\)", goal)
    receptacle_types = re.findall(r"\(receptacletype \?\w+ (\w+)\)", goal)
    if object_types:
        # The lamp comes first where one looks, and no receptacle is named.
        wanted, target = object_types[-1], (receptacle_types or object_types)[0]
        for kind, shape in SHAPES.items():
            if goal == f"(and{shape.replace('OBJECT', wanted).replace('TARGET', target)})":
                return GoalShape(kind, wanted, target)
    raise UnsupportedGameError(f"the goal has none of the {len(KINDS)} known shapes")
