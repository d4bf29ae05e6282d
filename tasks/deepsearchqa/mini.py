"""The mini variant of deepsearchqa: questions over a generated world, and the text that the base model `tiny` reads.

Contract: everything is a function of its seed. A question asks for a fact about something that another fact identifies,
and so on, with one to four hops ("What is the seat of the employer of Ann Bal?"); every third one asks for several
things (a Set answer). The expert can answer each question by searching.

A world has people, towns and companies, facts about each, and a page on each. The worlds of the splits share no name,
so that no chain of facts is in both; names are built from the same syllables, so that they look alike.

    world = World("eval", seed=0)
    world.value("seat", "Balco")     # "Dorton"
    world.pages()[0]                 # Page("Ann Bal", "Ann Bal is a person. The home town of Ann Bal is Dorton. ...")
    question = next(generate(1, world, Index(world.pages()), seed=0))
"""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import cycle, product
from typing import Literal, NamedTuple

from tasks.deepsearchqa.research import Episode, Index, Page, Question, next_turn, observation
from tasks.deepsearchqa.research.episode import STEP, observed, sentence, transcript
from tasks.deepsearchqa.research.match import SET_ANSWER

SINGLE_ANSWER = "Single Answer"
MAX_HOPS = 4
PRETRAINING_DOCUMENTS = 1200
PAGES_SHARE, NOTES_SHARE, SOLVED_SHARE = 0.2, 0.35, 0.1
"""Shares of the documents: pages, notes, and questions of one hop that the expert answers."""
PRETRAINING_WORLDS = 20
"""Facts differ between worlds, so that a model has to read them instead of memorising them."""
LOOKED_UP = 4
"""Number of facts in a document of notes."""
MAX_RANDOM_LOOKUPS = 3


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


def generate(count: int, world: World, index: Index, seed: int | str) -> Iterator[Question]:
    """Yields `count` different questions, with one to four hops in turn."""
    rng = random.Random(f"deepsearchqa-mini/questions/{seed}")
    seen: set[str] = set()
    for hops in cycle(range(1, MAX_HOPS + 1)):
        if len(seen) == count:
            return
        wants_set = len(seen) // MAX_HOPS % 3 == 2
        while (question := _draw(rng, world, hops, wants_set)).problem in seen or not _answerable(question, index):
            pass
        seen.add(question.problem)
        yield question


def canonical(text: str) -> str:
    """See `a2rl.task_api.contract.Preparer`: unchanged, since the names in a question decide what to look up."""
    return text


def solve(question: Question, index: Index) -> tuple[Episode, list[tuple[str, str]]]:
    """Returns the expert's episode, and its turns: what it wrote and what the search showed."""
    episode, turns = Episode(question), list[tuple[str, str]]()
    while not episode.over:
        written, shown = next_turn(episode.text), ""
        if (query := episode.take(written)) is not None:
            shown = observation(index.search(query))
            episode.observe(shown)
        turns.append((written, shown))
    return episode, turns


def pretraining_text(seed: int, documents: int = PRETRAINING_DOCUMENTS) -> Iterator[str]:
    """Yields documents that teach what pages, searches and answers look like, but hardly how to find an answer.

    They are pages, notes with look-ups of unrelated facts, and questions with random look-ups that are answered with
    the last result.
    """
    rng = random.Random(f"deepsearchqa-mini/pretraining/{seed}")
    worlds = [World("train", f"pretraining/{seed}/{number}") for number in range(PRETRAINING_WORLDS)]
    indices = [Index(world.pages()) for world in worlds]
    for number in range(documents):
        world, index = worlds[number % PRETRAINING_WORLDS], indices[number % PRETRAINING_WORLDS]
        drawn = rng.random()
        if drawn < PAGES_SHARE:
            yield rng.choice(index.pages).text
        elif drawn < PAGES_SHARE + NOTES_SHARE:
            yield _notes(rng, world, index)
        elif drawn < PAGES_SHARE + NOTES_SHARE + SOLVED_SHARE:
            question = _draw(rng, world, 1, wants_set=rng.random() < 1 / 3)
            yield transcript(question, solve(question, index)[1])
        else:
            yield _random_lookups(rng, world, index)


def _draw(rng: random.Random, world: World, hops: int, wants_set: bool) -> Question:
    """Draws a chain of facts from a random start, without repeated names."""
    kind: Kind = rng.choice(list(NAMES))
    name = start = rng.choice(world.names[kind])
    asked, passed = list[Relation](), [name]
    for _ in range(hops - 1):
        relation = rng.choice([each for each in RELATIONS if each.of == kind and each.target])
        assert relation.target is not None
        asked.append(relation)
        kind, name = relation.target, world.value(relation.name, name)
        passed.append(name)
    last = rng.choice([each for each in RELATIONS if each.of == kind and each.is_set == wants_set])
    answer = world.value(last.name, name)
    if len({*passed, answer}) <= hops:
        return _draw(rng, world, hops, wants_set)
    names = STEP.join(relation.name for relation in reversed([*asked, last]))
    return Question(
        problem=f"What {'are' if wants_set else 'is'} the {names} of {start}?",
        answer_type=SET_ANSWER if wants_set else SINGLE_ANSWER,
        answer=answer,
        category=f"{hops} {'hop' if hops == 1 else 'hops'}",
    )


def _answerable(question: Question, index: Index) -> bool:
    return solve(question, index)[0].answer == question.answer


def _notes(rng: random.Random, world: World, index: Index) -> str:
    turns, learned, _ = _lookups(rng, world, index, LOOKED_UP)
    shown = "".join(f" {written}{observed(shown)}" for written, shown in turns)
    return f"Thought:{shown} {learned}"


def _random_lookups(rng: random.Random, world: World, index: Index) -> str:
    """Looks up random facts, mostly not what was asked for, and answers with the last one."""
    question = _draw(rng, world, rng.randint(1, MAX_HOPS), wants_set=rng.random() < 1 / 3)
    turns, learned, value = _lookups(rng, world, index, rng.randint(1, MAX_RANDOM_LOOKUPS))
    return transcript(question, [*turns, (f"{learned}\nAction: answer[ {value}]", "")])


def _lookups(rng: random.Random, world: World, index: Index, count: int) -> tuple[list[tuple[str, str]], str, str]:
    """Returns turns that look up random facts, the last fact, and its value."""
    turns, learned, value = list[tuple[str, str]](), "", ""
    for _ in range(count):
        relation = rng.choice(RELATIONS)
        name = rng.choice(world.names[relation.of])
        fact, value = f"{relation.name} of {name}", world.value(relation.name, name)
        thought = f"{learned} Now the {fact}.".strip()
        turns.append((f"{thought}\nAction: search[ {fact}]", observation(index.search(fact))))
        learned = sentence(fact, value)
    return turns, learned, value
