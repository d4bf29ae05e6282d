"""A household: a room with receptacles and things, a task in it, and its PDDL problem.

Contract: `problem` has the predicates and goals of the released games, but declares only what the household has. Ids
decide the names and the order of things: the part before `_bar_` becomes the name, and numbers descend over the sorted
ids, hence "a cabinet 2, a cabinet 1".

The names are ALFRED's. What a receptacle can hold and what can be done with a thing is the union over the 3,553
training games of ALFWorld (json_2.1.1), without rare things and rare pairs.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tasks.alfworld.alfred.problem import SHAPES, Kind


@dataclass(frozen=True)
class Room:
    """A kind of room."""

    single: tuple[str, ...]
    """Kinds of receptacle that a room has at most once."""
    several: tuple[str, ...]
    things: tuple[str, ...]

    @property
    def receptacles(self) -> tuple[str, ...]:
        """All kinds of receptacle."""
        return self.single + self.several


@dataclass(frozen=True)
class Thing:
    """A kind of thing."""

    abilities: frozenset[str]
    places: frozenset[str]
    """The kinds of receptacle that can hold it."""


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


ROOMS: dict[str, Room] = {
    "kitchen": Room(
        _names("CoffeeMachine DiningTable Fridge GarbageCan Microwave SinkBasin"),
        _names("Cabinet CounterTop Drawer Shelf SideTable StoveBurner"),
        _names(
            "Apple Bowl Bread ButterKnife Cup DishSponge Egg Fork Kettle Knife Ladle Lettuce Mug Pan PepperShaker Plate"
            " Pot Potato SaltShaker SoapBottle Spatula Spoon Tomato WineBottle"
        ),
    ),
    "bedroom": Room(
        _names("ArmChair Bed Desk Dresser GarbageCan Safe"),
        _names("Drawer Shelf SideTable"),
        _names("AlarmClock Book Bowl CD CellPhone CreditCard KeyChain Laptop Mug Pen Pencil Pillow TissueBox Watch"),
    ),
    "living room": Room(
        _names("CoffeeTable DiningTable Dresser GarbageCan Ottoman Sofa"),
        _names("ArmChair Drawer Shelf SideTable"),
        _names(
            "Book Box CellPhone CreditCard KeyChain Laptop Newspaper Pen Pillow Plate RemoteControl Statue TissueBox"
            " Vase Watch"
        ),
    ),
    "bathroom": Room(
        _names("BathtubBasin Cart CounterTop GarbageCan SinkBasin Toilet ToiletPaperHanger"),
        _names("Cabinet Drawer Shelf"),
        _names("Candle Cloth DishSponge SoapBar SoapBottle SprayBottle TissueBox ToiletPaper"),
    ),
}

_THINGS_TABLE = """\
AlarmClock: : CounterTop Desk DiningTable Dresser Shelf SideTable
Apple: clean heat cool slice: CounterTop DiningTable Fridge GarbageCan Microwave SideTable SinkBasin
Book: : ArmChair Bed Cabinet CoffeeTable CounterTop Desk DiningTable Drawer Dresser Ottoman Shelf SideTable Sofa
Bowl: clean cool hold: Cabinet CoffeeTable CounterTop Desk DiningTable Fridge Microwave Shelf SideTable SinkBasin
Box: hold: ArmChair Cabinet CoffeeTable Desk DiningTable Dresser Ottoman Shelf SideTable Sofa
Bread: heat cool slice: CounterTop DiningTable Fridge GarbageCan Microwave SideTable
ButterKnife: clean: CounterTop DiningTable Drawer SideTable SinkBasin
CD: : Cabinet CounterTop Desk DiningTable Drawer Dresser GarbageCan Safe Shelf SideTable
Candle: : Cabinet Cart CoffeeTable CounterTop DiningTable Drawer Dresser Shelf SideTable Toilet
CellPhone: : ArmChair Bed CoffeeTable CounterTop Desk DiningTable Drawer Dresser Ottoman Safe Shelf SideTable Sofa
Cloth: clean: BathtubBasin Cabinet Cart CounterTop Desk Drawer Dresser GarbageCan Shelf SideTable SinkBasin Toilet
CreditCard: : ArmChair CoffeeTable CounterTop Desk DiningTable Drawer Dresser Ottoman Safe Shelf SideTable Sofa
Cup: clean heat cool hold: Cabinet CounterTop DiningTable Fridge Microwave Shelf SideTable SinkBasin
DeskLamp: switch: CoffeeTable Desk Dresser Shelf SideTable
DishSponge: clean: BathtubBasin Cabinet Cart CounterTop DiningTable Drawer GarbageCan Shelf SideTable SinkBasin Toilet
Egg: clean heat cool slice: CounterTop DiningTable Fridge GarbageCan Microwave SideTable SinkBasin
Fork: clean: CounterTop DiningTable Drawer SideTable SinkBasin
Kettle: clean: Cabinet CounterTop DiningTable Shelf SideTable SinkBasin StoveBurner
KeyChain: : ArmChair CoffeeTable CounterTop Desk DiningTable Drawer Dresser Ottoman Safe Shelf SideTable Sofa
Knife: clean: CounterTop DiningTable Drawer SideTable SinkBasin
Ladle: clean: Cabinet CounterTop DiningTable Drawer SinkBasin
Laptop: : ArmChair Bed CoffeeTable CounterTop Desk DiningTable Dresser Ottoman SideTable Sofa
Lettuce: clean cool slice: CounterTop DiningTable Fridge GarbageCan SideTable SinkBasin
Mug: clean heat cool hold: Cabinet CoffeeMachine CounterTop Desk DiningTable Fridge Microwave Shelf SideTable SinkBasin
Newspaper: : ArmChair Cabinet CoffeeTable DiningTable Drawer Dresser GarbageCan Ottoman Shelf SideTable Sofa
Pan: clean cool hold: Cabinet CounterTop DiningTable Fridge SideTable SinkBasin StoveBurner
Pen: : CoffeeTable CounterTop Desk DiningTable Drawer Dresser GarbageCan Shelf SideTable
Pencil: : CoffeeTable CounterTop Desk DiningTable Drawer Dresser GarbageCan Shelf SideTable
PepperShaker: : Cabinet CounterTop DiningTable Drawer Shelf SideTable
Pillow: : ArmChair Bed Ottoman Sofa
Plate: clean heat cool hold: Cabinet CoffeeTable CounterTop DiningTable Fridge Microwave Shelf SideTable SinkBasin
Pot: clean cool hold: Cabinet CounterTop DiningTable Fridge Shelf SideTable SinkBasin StoveBurner
Potato: clean heat cool slice: CounterTop DiningTable Fridge GarbageCan Microwave SideTable SinkBasin
RemoteControl: : ArmChair CoffeeTable CounterTop Desk DiningTable Drawer Dresser Ottoman Shelf SideTable Sofa
SaltShaker: : Cabinet CounterTop DiningTable Drawer Shelf SideTable
SoapBar: clean: BathtubBasin Cabinet Cart CounterTop Drawer GarbageCan Shelf SideTable SinkBasin Toilet
SoapBottle: : Cabinet Cart CounterTop DiningTable Drawer GarbageCan Shelf SideTable Toilet
Spatula: clean: CounterTop DiningTable Drawer SideTable SinkBasin
Spoon: clean: CounterTop DiningTable Drawer SideTable SinkBasin
SprayBottle: : Cabinet Cart CounterTop DiningTable Drawer Dresser GarbageCan Shelf SideTable Toilet
Statue: : CoffeeTable CounterTop Desk DiningTable Dresser Safe Shelf SideTable
TissueBox: : Cabinet Cart CoffeeTable CounterTop Desk DiningTable Drawer Dresser GarbageCan Shelf SideTable Toilet
ToiletPaper: : Cabinet Cart CounterTop Drawer Dresser GarbageCan Shelf SideTable Toilet ToiletPaperHanger
Tomato: clean heat cool slice: CounterTop DiningTable Fridge GarbageCan Microwave SideTable SinkBasin
Vase: : Cabinet CoffeeTable CounterTop Desk DiningTable Dresser Safe Shelf SideTable
Watch: : CoffeeTable Desk DiningTable Drawer Dresser Shelf SideTable
WineBottle: cool: Cabinet CounterTop DiningTable Fridge GarbageCan Shelf SideTable
"""


def _read_things(table: str) -> dict[str, Thing]:
    rows = (line.split(":") for line in table.splitlines())
    return {name: Thing(frozenset(_names(abilities)), frozenset(_names(places))) for name, abilities, places in rows}


THINGS = _read_things(_THINGS_TABLE)

LAMP = "DeskLamp"
LAMP_ROOMS = ("bedroom", "living room")
OPENABLE = frozenset(_names("Cabinet Drawer Fridge Microwave Safe"))
NEVER_A_TARGET = frozenset(_names("BathtubBasin SinkBasin"))
APPLIANCES = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
"""Where a thing is cleaned, heated and cooled."""

VERBS: dict[Kind, str] = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}
WORDINGS: dict[Kind, tuple[str, str]] = {
    "pick_and_place_simple": ("put a {thing} in {place}.", "put some {thing} on {place}."),
    "look_at_obj_in_light": ("look at {thing} under the desklamp.", "examine the {thing} with the desklamp."),
    "pick_clean_then_place_in_recep": ("put a clean {thing} in {place}.", "clean some {thing} and put it in {place}."),
    "pick_heat_then_place_in_recep": ("put a hot {thing} in {place}.", "heat some {thing} and put it in {place}."),
    "pick_cool_then_place_in_recep": ("put a cool {thing} in {place}.", "cool some {thing} and put it in {place}."),
    "pick_two_obj_and_place": ("put two {thing} in {place}.", "find two {thing} and put them in {place}."),
}
"""As in the released games, including their grammar."""


class Pair(NamedTuple):
    """The subject of a task: a kind of thing, and the kind of receptacle at which the task ends."""

    thing: str
    place: str


@dataclass(frozen=True)
class Household:
    """A room with a task; receptacles and things by their kinds, sorted as the engine lists them."""

    kind: Kind
    task: str
    pair: Pair
    receptacles: tuple[str, ...]
    things: tuple[tuple[str, int], ...]
    """Each with the index of the receptacle that it is in."""
    walkthrough: tuple[str, ...]


def names(kinds: Sequence[str]) -> list[str]:
    """Returns the engine's names of things of these kinds, if their ids sort in this order."""
    numbers = Counter(kinds)
    named = []
    for kind in kinds:
        named.append(f"{kind.lower()} {numbers[kind]}")
        numbers[kind] -= 1
    return named


def problem(household: Household) -> str:
    """Returns the text of `pddl_problem`."""
    receptacles = _ids(household.receptacles)
    things = _ids([kind for kind, _ in household.things])
    return "\n".join(
        [
            "(define (problem mini)",
            "(:domain alfred)",
            "(:objects",
            *_indented(_objects(household, receptacles, things)),
            ")",
            "(:init",
            *_indented(f"({fact})" for fact in _facts(household, receptacles, things)),
            ")",
            "(:goal",
            "    (and",
            *_indented([_goal(household)], 8),
            "    )",
            ")",
            ")",
            "",
        ]
    )


_AGENT, _START = "agent1", "loc_bar_00"
"""No receptacle is where the agent starts: that alone makes the intro list them all."""
_BASINS = {"SinkBasin": "Sink_bar_{:02}_bar_SinkBasin", "BathtubBasin": "Bathtub_bar_{:02}_bar_BathtubBasin"}
_PREDICATES = {
    "clean": "cleanable",
    "heat": "heatable",
    "cool": "coolable",
    "slice": "sliceable",
    "hold": "isReceptacleObject",
    "switch": "toggleable",
}
_DOMAIN_TYPES = (
    *("ButterKnifeType - otype", "KnifeType - otype", "SinkType - otype"),
    *("FridgeType - rtype", "MicrowaveType - rtype", "SinkBasinType - rtype"),
)
"""Constants of the domain's actions, which every problem has to declare."""


def _ids(kinds: Sequence[str]) -> list[str]:
    return [_BASINS.get(kind, kind + "_bar_{:02}").format(number) for number, kind in enumerate(kinds, 1)]


def _location(index: int) -> str:
    return f"loc_bar_{index + 1:02}"


def _objects(household: Household, receptacles: Sequence[str], things: Sequence[str]) -> Iterator[str]:
    thing_types = {f"{kind}Type - otype" for kind, _ in household.things}
    place_types = {f"{kind}Type - rtype" for kind in household.receptacles}
    yield f"{_AGENT} - agent"
    yield from sorted(thing_types | place_types | set(_DOMAIN_TYPES))
    yield from (f"{thing} - object" for thing in things)
    yield from (f"{receptacle} - receptacle" for receptacle in receptacles)
    yield f"{_START} - location"
    yield from (f"{_location(index)} - location" for index in range(len(receptacles)))


def _facts(household: Household, receptacles: Sequence[str], things: Sequence[str]) -> Iterator[str]:
    for kind, receptacle in zip(household.receptacles, receptacles, strict=True):
        yield f"receptacleType {receptacle} {kind}Type"
    for (kind, _), thing in zip(household.things, things, strict=True):
        yield f"objectType {thing} {kind}Type"
    thing_kinds = sorted({kind for kind, _ in household.things})
    for place in sorted(set(household.receptacles)):
        yield from (f"canContain {place}Type {kind}Type" for kind in thing_kinds if place in THINGS[kind].places)
    yield f"atLocation {_AGENT} {_START}"
    for index, (kind, receptacle) in enumerate(zip(household.receptacles, receptacles, strict=True)):
        yield f"receptacleAtLocation {receptacle} {_location(index)}"
        if kind in OPENABLE:
            yield f"openable {receptacle}"
    for (kind, index), thing in zip(household.things, things, strict=True):
        abilities = sorted(_PREDICATES[ability] for ability in THINGS[kind].abilities)
        yield from (f"{ability} {thing}" for ability in abilities)
        if "toggleable" not in abilities:  # a lamp stays where it is
            yield f"pickupable {thing}"
        yield f"inReceptacle {thing} {receptacles[index]}"
        yield f"objectAtLocation {thing} {_location(index)}"


def _indented(lines: Iterable[str], by: int = 4) -> Iterator[str]:
    return (" " * by + line for line in lines)


def _goal(household: Household) -> str:
    thing, place = household.pair
    target = "DeskLamp" if household.kind == "look_at_obj_in_light" else place
    return SHAPES[household.kind].replace("OBJECT", f"{thing}Type").replace("TARGET", f"{target}Type")
