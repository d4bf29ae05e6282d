"""ALFRED's rooms, things and receptacles, and what can be done with them, for the households of the mini variant.

The names are ALFRED's; what a receptacle can hold and what can be done with a thing is the union over the
3,553 training games of ALFWorld (json_2.1.1), without rare things and rare pairs.
"""

from dataclasses import dataclass


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
