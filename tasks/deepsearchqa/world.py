"""A generated world for the mini variant: people, towns and companies, facts about each, and a page on each.

Contract: a world is a function of its split and seed. No name is in worlds of both splits, so that no fact of one helps
with a question about the other; names are built from the same syllables, so that they look alike.

    world = World("train", seed=0)
    world.value("seat", "Balco")     # "Dorton"
    world.pages()[0]                 # Page("Ann Bal", "Ann Bal is a person. The home town of Ann Bal is Dorton. ...")
"""

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Literal, NamedTuple

from tasks.deepsearchqa.research import Page
from tasks.deepsearchqa.research.expert import sentence

Split = Literal["train", "eval"]
Kind = Literal["person", "town", "company"]


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


SYLLABLES = _words(
    "Bal Ben Bor Cal Cor Dal Den Dor Fal Fen Gar Gil Hal Hol Kar Kel Lan Lin Lor Mal "
    "Mar Mel Mor Nor Pal Pen Pol Ral Ros Sal Sel Sor Tal Tar Tol Val Ver Wal Wes Win"
)
GIVEN_NAMES = _words(
    "Ann Anna Bob Carl Dan Dora Ella Eva Finn Hana Hugo Ian Ida Jack Jan Jim "
    "Joe Kim Leo Liam Lily Max Mia Ned Nora Otto Paul Rita Sam Tom Vera Zoe"
)
TOWN_ENDS = _words("bury by den field ford ham land mere port side ton wick")
COMPANY_ENDS = _words("bank co corp fin gen lab lux med net sol tec tex")
HOBBIES = _words("art chess dance darts golf judo music poker rugby tennis")
GOODS = _words("coal cola iron juice milk rope salt silk soda tea water wool")
MONTHS = _words("January February March April May June July August September October November December")
MIN_ITEMS, MAX_ITEMS = 2, 3
"""Number of items of a Set answer."""

NAMES: dict[Kind, tuple[str, ...]] = {
    "person": tuple(" ".join(pair) for pair in product(GIVEN_NAMES, SYLLABLES)),
    "town": tuple("".join(pair) for pair in product(SYLLABLES, TOWN_ENDS)),
    "company": tuple("".join(pair) for pair in product(SYLLABLES, COMPANY_ENDS)),
}


Names = Mapping[Kind, Sequence[str]]
Draw = Callable[[random.Random, Names], str]


class Relation(NamedTuple):
    """A kind of fact about each person, town or company."""

    name: str
    of: Kind
    draw: Draw
    """Draws a value."""
    target: Kind | None = None
    """The kind of thing that the value names; None for a date, a number or a list."""
    is_set: bool = False


def _link(name: str, of: Kind, target: Kind) -> Relation:
    return Relation(name, of, lambda rng, names: rng.choice(names[target]), target)


def _list(name: str, of: Kind, things: Sequence[str]) -> Relation:
    return Relation(
        name, of, lambda rng, _: ", ".join(rng.sample(things, k=rng.randint(MIN_ITEMS, MAX_ITEMS))), is_set=True
    )


def _number(name: str, of: Kind, low: int, high: int) -> Relation:
    return Relation(name, of, lambda rng, _: str(rng.randint(low, high)))


RELATIONS = (
    _link("home town", "person", "town"),
    _link("employer", "person", "company"),
    Relation("birthday", "person", lambda rng, _: f"{rng.randint(1, 28)} {rng.choice(MONTHS)}"),
    _list("hobbies", "person", HOBBIES),
    _link("mayor", "town", "person"),
    _number("population", "town", 1000, 9999),
    _list("exports", "town", GOODS),
    _link("director", "company", "person"),
    _link("seat", "company", "town"),
    _number("founding year", "company", 1850, 1999),
    _list("products", "company", GOODS),
)


def split_of(name: str) -> Split:
    """Returns the split whose worlds have the name."""
    return "eval" if hashlib.sha256(name.encode()).digest()[0] % 2 else "train"


class World:
    """Names and facts of one world."""

    def __init__(self, split: Split, seed: int | str) -> None:
        rng = random.Random(f"deepsearchqa-mini/world/{split}/{seed}")
        self.names: dict[Kind, list[str]] = {
            kind: [name for name in names if split_of(name) == split] for kind, names in NAMES.items()
        }
        self._values: dict[tuple[str, str], str] = {}
        for relation in RELATIONS:
            for name in self.names[relation.of]:
                self._values[relation.name, name] = relation.draw(rng, self.names)

    def value(self, relation: str, name: str) -> str:
        """Returns the value of a fact, such as ("seat", "Balco")."""
        return self._values[relation, name]

    def pages(self) -> list[Page]:
        """Returns a page for each name."""
        return [Page(name, self._text(kind, name)) for kind, names in self.names.items() for name in names]

    def _text(self, kind: Kind, name: str) -> str:
        facts = (
            sentence(f"{relation.name} of {name}", self.value(relation.name, name))
            for relation in RELATIONS
            if relation.of == kind
        )
        return f"{name} is a {kind}. {' '.join(facts)}"
