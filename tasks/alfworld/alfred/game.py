"""A game, read and compiled once: everything that stays the same during play.

Sets of objects are integers: bit i stands for the i-th object by internal identifier, the order in which the texts list
things. Receptacles are numbered by identifier too, and places are where a receptacle stands or the player starts.
"""

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any

from . import problem
from .problem import Kind, Problem, UnsupportedGameError

DOMAIN = "0af55e7f92d12b09d28515aa730e4d03fddd17228ef1fd7b18a3ee8ba49b27b9"
GRAMMAR = "10da93e13b58e1a6039723f5d4a59ceae7c60772515bfab9fc603bafa7f8ee06"
"""Digests of the domain and of the grammar without its task sentence, which all 4,027 released games have (json_2.1.1).
"""
TREATMENTS = {"microwavetype": "heat", "fridgetype": "cool", "sinktype": "clean", "sinkbasintype": "clean"}
KNIVES = ("knifetype", "butterknifetype")

_TASK = re.compile(r'(?<="rhs": "Your task is to: )[^"]*')
_HELP = re.compile(r'feedback :: "\s*+([^"]*)"')


@dataclass(frozen=True, slots=True)
class Receptacle:
    """Something that holds things, at a place that never changes."""

    name: str
    type: str
    place: int
    openable: bool
    treatment: str
    """What it is used for: heat, cool or clean; empty for most."""
    accepts: int
    """The objects that can be moved there."""


@dataclass(frozen=True, slots=True)
class Object:
    """Something to take, use or look at. `inside`: its fixed content; None if it is not a container."""

    name: str
    type: str
    inside: int | None


@dataclass(frozen=True, slots=True)
class Goal:
    """What wins: one of `objects`, treated as required, in one of `receptacles`; or in hand, next to a lit lamp."""

    kind: Kind
    objects: int
    receptacles: tuple[int, ...]
    lamps: int


@dataclass(frozen=True, slots=True)
class Start:
    """The initial state of plays. All doors are closed, and nothing is treated, except that some objects are cool."""

    place: int
    contents: tuple[int, ...]
    """Objects by receptacle; an object may start in two of them."""
    objects_at: tuple[int, ...]
    """Objects by place, which may be sliced there."""
    cool: int


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Game:
    """A `game.tw-pddl`. Games compare by identity, so they can be keys."""

    path: Path
    goal_text: str
    """The task sentence, e.g. "put a clean mug in desk."."""
    goal: Goal
    walkthrough: tuple[str, ...]
    help_text: str
    receptacles: tuple[Receptacle, ...]
    objects: tuple[Object, ...]
    receptacle_of: Mapping[str, int]
    """Numbers by name."""
    object_of: Mapping[str, int]
    """Bits by name."""
    places: tuple[tuple[int, ...], ...]
    """The receptacles of each place."""
    trips: tuple[tuple[str, int], ...]
    """Each "go to" command and the place it leads to, sorted."""
    able: Mapping[str, int]
    """The objects that may be treated, by verb: take, use, slice, heat, cool, clean."""
    knives: int
    start: Start

    def __repr__(self) -> str:
        return f"Game({self.goal_text!r}, {str(self.path)!r})"

    @property
    def kind(self) -> Kind:
        """Which of ALFRED's task types it is."""
        return self.goal.kind

    @classmethod
    def load(cls, path: Path) -> "Game":
        """Reads a game file.

        Raises:
            UnsupportedGameError: this engine would not play it exactly as the original engine does.
        """
        try:
            data = json.loads(Path(path).read_bytes())
            return cls.parse(data, Path(path))
        except (UnsupportedGameError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise UnsupportedGameError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, data: Mapping[str, Any], path: Path) -> "Game":
        """The game of a file's content; see `load`."""
        try:
            domain, grammar, text = data["pddl_domain"], data["grammar"], data["pddl_problem"]
        except (KeyError, TypeError) as error:
            raise UnsupportedGameError("not a game file: it needs pddl_domain, grammar and pddl_problem") from error
        if (digest(domain), digest(without_task(grammar))) != (DOMAIN, GRAMMAR):
            raise UnsupportedGameError("its domain or grammar is not the one of ALFWorld json_2.1.1")
        found_task, found_help = _TASK.search(grammar), _HELP.search(grammar.partition("action help {")[2])
        assert found_task  # as the digest says
        assert found_help
        walkthrough = tuple(intern(command) for command in data.get("walkthrough") or ())
        try:
            compiler = _Compiler(problem.parse(text))
            return compiler.game(path, found_task[0], walkthrough, found_help[1])
        except (KeyError, IndexError) as error:
            raise UnsupportedGameError(
                f"its problem has an incomplete fact, or one about something undeclared: {error}"
            ) from error


def digest(text: str) -> str:
    """SHA-256 (hex)."""
    return hashlib.sha256(text.encode()).hexdigest()


def without_task(grammar: str) -> str:
    """Returns the grammar without its task sentence, the only part that differs between games."""
    return _TASK.sub("", grammar, count=1)


def bits(mask: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


class _Compiler:
    """Translates identifiers to numbers."""

    def __init__(self, parsed: Problem) -> None:
        self.facts = parsed.facts
        self.shape = parsed.goal
        self.names = problem.display_names(parsed.identifiers())
        present = sorted(self.names)
        self.object_ids = [each for each in present if parsed.types.get(each) == "object"]
        self.receptacle_ids = [each for each in present if parsed.types.get(each) == "receptacle"]
        self.bit = {identifier: 1 << index for index, identifier in enumerate(self.object_ids)}
        self.number = {identifier: index for index, identifier in enumerate(self.receptacle_ids)}
        self.type_of = dict(self._pairs("objecttype")) | dict(self._pairs("receptacletype"))
        self.location_of = dict(self._pairs("receptacleatlocation"))
        self._check()
        self.of_type: dict[str, int] = defaultdict(int)
        for identifier, kind in self._pairs("objecttype"):
            self.of_type[kind] |= self.bit[identifier]
        self.accepted: dict[str, int] = defaultdict(int)
        for kind, contained in self._pairs("cancontain"):
            self.accepted[kind] |= self.of_type[contained]
        ((_, start),) = self.facts["atlocation"]
        locations = sorted({*self.location_of.values(), start})
        self.place = {location: index for index, location in enumerate(locations)}
        self.start_place = self.place[start]

    def _pairs(self, predicate: str) -> Iterator[tuple[str, str]]:
        return ((row[0], row[1]) for row in self.facts[predicate])

    def _check(self) -> None:
        """Rejects what no released game has, since the original engine handles it in ways not reproduced here."""
        facts = self.facts
        if len(facts["atlocation"]) != 1:
            raise UnsupportedGameError("the player has to start at one location")
        for predicate, things in (("receptacleatlocation", "receptacle"), ("objecttype", "object")):
            if len({row[0] for row in facts[predicate]}) < len(facts[predicate]):
                raise UnsupportedGameError(f"a {things} has two facts {predicate}")
        if not self.location_of.keys() == self.number.keys() == {row[0] for row in facts["receptacletype"]}:
            raise UnsupportedGameError("every receptacle needs a type and a location")
        if any(thing not in self.bit or holder not in self.number for thing, holder in self._pairs("inreceptacle")):
            raise UnsupportedGameError("only objects can be in receptacles")
        if not self.bit.keys() >= {row[0] for row in facts["objecttype"]}:
            raise UnsupportedGameError("only objects have a type of object")

    def game(self, path: Path, goal_text: str, walkthrough: tuple[str, ...], help_text: str) -> Game:
        receptacles = tuple(self._receptacle(identifier) for identifier in self.receptacle_ids)
        objects = tuple(self._object(identifier) for identifier in self.object_ids)
        places: list[tuple[int, ...]] = [()] * len(self.place)
        for number, receptacle in enumerate(receptacles):
            places[receptacle.place] += (number,)
        return Game(
            path=path,
            goal_text=goal_text,
            goal=self._goal(),
            walkthrough=walkthrough,
            help_text=intern(help_text),
            receptacles=receptacles,
            objects=objects,
            receptacle_of={receptacle.name: number for number, receptacle in enumerate(receptacles)},
            object_of={thing.name: 1 << index for index, thing in enumerate(objects)},
            places=tuple(places),
            trips=tuple(sorted((intern(f"go to {each.name}"), each.place) for each in receptacles)),
            able={
                "take": self._mask("pickupable"),
                "use": self._mask("toggleable"),
                "slice": self._mask("sliceable"),
                "heat": self._mask("heatable"),
                "cool": self._mask("coolable"),
                "clean": self._mask("cleanable"),
            },
            knives=sum(self.of_type[kind] for kind in KNIVES),
            start=self._start(),
        )

    def _mask(self, predicate: str) -> int:
        return sum(self.bit[row[0]] for row in self.facts[predicate])

    def _receptacle(self, identifier: str) -> Receptacle:
        kind = self.type_of[identifier]
        return Receptacle(
            name=self.names[identifier],
            type=intern(kind),
            place=self.place[self.location_of[identifier]],
            openable=(identifier,) in self.facts["openable"],
            treatment=TREATMENTS.get(kind, ""),
            accepts=self.accepted[kind],
        )

    def _object(self, identifier: str) -> Object:
        inside = None
        if (identifier,) in self.facts["isreceptacleobject"]:
            inside = sum(self.bit[inner] for inner, outer in self._pairs("inreceptacleobject") if outer == identifier)
        return Object(self.names[identifier], intern(self.type_of.get(identifier, "")), inside)

    def _goal(self) -> Goal:
        kind, object_type, target = self.shape
        objects = self.of_type[object_type]
        for treatment in ("clean", "heat", "cool"):
            if kind == f"pick_{treatment}_then_place_in_recep":
                objects &= self._mask(f"{treatment}able")
        receptacles = tuple(n for identifier, n in self.number.items() if self.type_of[identifier] == target)
        return Goal(kind, objects, receptacles, self.of_type[target] & self._mask("toggleable"))

    def _start(self) -> Start:
        contents, objects_at = [0] * len(self.number), [0] * len(self.place)
        for thing, holder in self._pairs("inreceptacle"):
            contents[self.number[holder]] |= self.bit[thing]
        for thing, location in self._pairs("objectatlocation"):
            if location in self.place:
                objects_at[self.place[location]] |= self.bit[thing]
        return Start(
            place=self.start_place,
            contents=tuple(contents),
            objects_at=tuple(objects_at),
            cool=self._mask("iscool"),
        )
