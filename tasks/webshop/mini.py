"""The mini variant of webshop: a generated catalogue, goals in it, and the text that the base model `tiny` reads.

Contract: everything is a function of its seed. A shop has families of near-duplicates: for each product there is one
that differs in an attribute, one that is more expensive, and one that lacks options, so that a wrong purchase is easy.
Train and eval have separate shops and share no product. A goal asks for *pairs* of a kind of product and an attribute;
a third of the pairs occur in eval only: see `eval_pairs`. Every goal can be fulfilled: the expert, which sees what a
customer sees, gets reward 1.

    world = generate(products=1200, goals=200, seed=0, split="eval", folder=Path("shop"))
"""

import hashlib
import random
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Literal, NamedTuple

from tasks.webshop.release import PRICE_STEPS, Wish, goal
from tasks.webshop.shop import Expert, Goal, Product, Session, Shop, play_out, stock
from tasks.webshop.shop.catalogue import PATH_MARK
from tasks.webshop.shop.page import BUY_NOW, Page
from tasks.webshop.shop.session import Step
from tasks.webshop.shop.transcript import transcript

Split = Literal["train", "eval"]

PRODUCTS = 1200
LONGEST = 8
"""Turns of an expert's visit."""
DISTRACTED_SHARE = 0.6
"""Share of the goals for which the first product that a good search finds is a wrong one."""
MIN_PRICE, MAX_PRICE = 4, 60
"""Dollars, before the surcharge of a near-duplicate."""
SURCHARGE = 30
VALUES_OFFERED = 3
"""Maximum number of values of an option."""
PRETRAINING_DOCUMENTS = 1100
SOLVED_SHARE, NOTES_SHARE = 0.25, 0.35
"""Share of the visits that the expert makes, and share of the documents that are notes."""
NOTES = 6
"""Maximum number of products that a note compares."""
MAX_RANDOM_TURNS = 7
INVALID_SHARE = 0.03
_PARTICULARS = re.compile(r"(?<= )with [a-z ]{1,100}: .{0,500}?(?=, and price lower)|(?<=price lower than )[\d.]+")
_CODE = re.compile(r"(?<=\[)[A-Z]{2}-[A-Z]{2}(?=\])")
SYLLABLES = tuple(consonant + vowel for consonant in "BDFGKLMNRSTV" for vowel in "AEIOU")
CODES = len(SYLLABLES) ** 2


class Department(NamedTuple):
    """A part of a generated shop. Kinds map a noun to its plural, which customers use."""

    path: str
    kinds: Mapping[str, str]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    """Values differ enough that the reward, which compares loosely, never confuses two of them."""


COLORS = ("black", "blue", "brown", "gray", "green", "pink", "purple", "red", "white", "yellow")
OUNCES = ("3 oz", "8 oz", "16 oz", "32 oz")
SIZES = ("small", "medium", "large")

DEPARTMENTS: Mapping[str, Department] = {
    "fashion": Department(
        "Clothing, Shoes & Jewelry",
        {
            "shirt": "shirts", "dress": "dresses", "jacket": "jackets", "sweater": "sweaters", "skirt": "skirts",
            "boot": "boots", "sandal": "sandals", "coat": "coats", "scarf": "scarves", "hat": "hats", "glove": "gloves",
        },
        ("slim fit", "machine wash", "hand wash", "quick drying", "light weight", "water resistant", "day comfort"),
        {"color": COLORS, "size": SIZES},
    ),
    "beauty": Department(
        "Beauty & Personal Care",
        {
            "shampoo": "shampoos", "lotion": "lotions", "soap": "soaps", "perfume": "perfumes", "balm": "balms",
            "toothpaste": "toothpastes", "sunscreen": "sunscreens", "conditioner": "conditioners", "serum": "serums",
        },
        ("cruelty free", "paraben free", "dry skin", "tea tree", "long lasting", "fine mist", "travel size"),
        {"scent": ("citrus", "coconut", "jasmine", "lavender", "mint", "vanilla"), "size": OUNCES},
    ),
    "electronics": Department(
        "Electronics",
        {
            "headphone": "headphones", "speaker": "speakers", "charger": "chargers", "keyboard": "keyboards",
            "tripod": "tripods", "projector": "projectors", "camera": "cameras", "tablet": "tablets",
            "monitor": "monitors", "printer": "printers",
        },
        ("fast charging", "noise cancelling", "hands free", "easy carry", "high speed", "ultra hd", "heavy duty"),
        {"color": COLORS, "style": ("basic", "classic", "deluxe")},
    ),
    "garden": Department(
        "Home & Kitchen",
        {
            "lamp": "lamps", "rug": "rugs", "chair": "chairs", "table": "tables", "pillow": "pillows",
            "curtain": "curtains", "mirror": "mirrors", "shelf": "shelves", "bench": "benches", "vase": "vases",
        },
        ("solid wood", "easy assemble", "space saving", "memory foam", "mid century", "stainless steel", "easy clean"),
        {"color": COLORS, "size": SIZES},
    ),
    "grocery": Department(
        "Grocery & Gourmet Food",
        {
            "coffee": "coffees", "tea": "teas", "cookie": "cookies", "granola": "granolas", "sauce": "sauces",
            "candy": "candies", "jerky": "jerkies", "honey": "honeys", "pretzel": "pretzels",
        },
        ("gluten free", "sugar free", "non gmo", "low carb", "fat free", "keto friendly", "nut free"),
        {"flavor": ("almond", "cherry", "ginger", "hazelnut", "maple", "pecan"), "size": OUNCES},
    ),
}  # fmt: skip

_BRANDS = """\
Alto Brio Cova Dorna Elva Fenn Garo Hale Iris Juno Kora Lumo Mira Nova Orla Pema Quip Rana Sila Tovo Ulma Vero Wren Yara
Zeno"""
BRANDS = tuple(_BRANDS.split())


class Kind(NamedTuple):
    """A kind of product."""

    department: str
    noun: str
    plural: str


class Pair(NamedTuple):
    """What a goal asks for."""

    noun: str
    attribute: str


class World(NamedTuple):
    """A stocked shop and goals in it."""

    shop: Shop
    goals: list[Goal]


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds of product, those of a department together."""
    return tuple(
        Kind(name, noun, plural)
        for name, department in DEPARTMENTS.items()
        for noun, plural in department.kinds.items()
    )


@cache
def eval_pairs() -> frozenset[Pair]:
    """The pairs that only eval asks for: of each kind two or three of its seven attributes, drawn by hash."""
    return frozenset(
        Pair(kind.noun, attribute)
        for kind in kinds()
        for attribute in sorted(DEPARTMENTS[kind.department].attributes, key=lambda each: _hash(kind.noun, each))[
            : 2 + _hash(kind.noun, "")[0] % 2
        ]
    )


def canonical(text: str) -> str:
    """See `a2rl.task_api.contract.Preparer`: a goal without the values of its options and its price limit."""
    return _PARTICULARS.sub("...", text)


def generate(products: int, goals: int, seed: int | str, split: Split, folder: Path) -> World:
    """Writes a shop into an empty folder, and finds goals in it."""
    catalogue = list(catalogue_of(products, seed, split))
    stock(catalogue, folder)
    shop = Shop(folder)
    return World(shop, goals_in(shop, catalogue, goals, seed, split))


def catalogue_of(count: int, seed: int | str, split: Split) -> Iterator[Product]:
    """Yields families of near-duplicates, for each kind in turn; train and eval have different product ids."""
    rng = random.Random(f"webshop-mini/{split}/{seed}")
    numbers = list(range(0 if split == "train" else 1, CODES, 2))
    rng.shuffle(numbers)
    produced = 0
    for kind in cycle(kinds()):
        for product in _family(kind, rng):
            if produced == count:
                return
            yield replace(product, id=_code(numbers[produced]))
            produced += 1


def _code(number: int) -> str:
    """Returns a product id of syllables, which a small model copies more easily than digits."""
    first, second = divmod(number, len(SYLLABLES))
    return f"{SYLLABLES[first]}-{SYLLABLES[second]}"


def _renumbered(document: str, rng: random.Random) -> str:
    """Returns the document with other ids, so that a model has to read them instead of memorising them."""
    codes: dict[str, str] = {}
    return _CODE.sub(lambda found: codes.setdefault(found[0], _code(rng.randrange(CODES))), document)


def goals_in(shop: Shop, catalogue: Sequence[Product], count: int, seed: int | str, split: Split) -> list[Goal]:
    """Finds different goals for which the expert gets reward 1; consecutive ones are about different kinds.

    Raises:
        ValueError: the shop is too small for so many.
    """
    rng = random.Random(f"webshop-mini/goals/{split}/{seed}")
    by_kind: dict[str, list[Product]] = {}
    for product in catalogue:
        by_kind.setdefault(product.query, []).append(product)
    found: dict[str, Goal] = {}
    while len(found) < count:
        before = len(found)
        for plural in sorted(by_kind):
            distracted = rng.random() < DISTRACTED_SHARE
            for product in rng.sample(by_kind[plural], len(by_kind[plural])):
                asked = _ask(product, f"{split}-{len(found):04d}", rng, split)
                if asked and asked.instruction not in found and _visit_is(distracted, shop, asked):
                    found[asked.instruction] = asked
                    break
        if len(found) == before:
            raise ValueError(f"a shop of {len(catalogue)} products has fewer than {count} goals")
    return list(found.values())[:count]


def pretraining_text(
    seed: int,
    documents: int = PRETRAINING_DOCUMENTS,
    solved_share: float = SOLVED_SHARE,
    notes_share: float = NOTES_SHARE,
) -> Iterator[str]:
    """Yields documents that teach what the words do, but hardly the skill.

    Most visits are random browsing. Notes compare products with a wish and say what is wrong with each, because
    comparing is what a small model takes longest to learn.
    """
    rng = random.Random(f"webshop-mini/pretraining/{seed}")
    with tempfile.TemporaryDirectory() as folder:
        catalogue = list(catalogue_of(PRODUCTS, seed + 1, "train"))
        stock(catalogue, Path(folder))
        shop = Shop(Path(folder))
        while documents:
            asked = _ask(rng.choice(catalogue), "pretraining", rng, "train")
            if asked is None:
                continue
            documents -= 1
            if rng.random() < notes_share:
                yield _renumbered(_notes(asked, catalogue, rng), rng)
            else:
                yield _renumbered(_visit(shop, asked, rng, rng.random() < solved_share), rng)


def _hash(*words: str) -> bytes:
    return hashlib.sha256("/".join(words).encode()).digest()


def _family(kind: Kind, rng: random.Random) -> Iterator[Product]:
    department = DEPARTMENTS[kind.department]
    brand, (one, other, third) = rng.choice(BRANDS), rng.sample(department.attributes, 3)
    price = rng.randint(2 * MIN_PRICE, 2 * MAX_PRICE) / 2
    more_expensive = price + SURCHARGE + rng.randint(0, 10)
    many, few = ({name: _offered(values, rng) for name, values in department.options.items()} for _ in range(2))
    variants = [((one, other), price, many), ((one, third), price, many), ((one, other), more_expensive, many)]
    for attributes, cost, options in [*variants, ((one, other), price, few)]:
        yield Product(
            id="",
            title=f"{brand} {' '.join(attributes)} {kind.noun}",
            price=cost,
            price_tag=f"${cost}",
            category=kind.department,
            query=kind.plural,
            product_category=f"{department.path} {PATH_MARK} {kind.plural.capitalize()}",
            description=f"A {kind.noun} by {brand}.",
            bullets=tuple(attributes),
            options=options,
            attributes=attributes,
            nouns=(brand.lower(), kind.noun),
        )


def _offered(values: Sequence[str], rng: random.Random) -> tuple[str, ...]:
    return tuple(sorted(rng.sample(values, min(VALUES_OFFERED, len(values) - 1)), key=values.index))


def _ask(product: Product, name: str, rng: random.Random, split: Split) -> Goal | None:
    """Returns a goal that asks for this product; None where its attributes belong to the other split."""
    pairs = [Pair(product.nouns[-1], attribute) for attribute in product.attributes]
    wanted = tuple(pair.attribute for pair in pairs if (pair in eval_pairs()) == (split == "eval"))
    limit = next(step for step in PRICE_STEPS if step > product.price)
    if not wanted:
        return None
    wish = Wish(f"Find me {', '.join(wanted)} {product.query}", wanted)
    options = {option: rng.choice(values) for option, values in product.options.items()}
    return replace(goal(product, wish, options, limit), id=name)


def _visit_is(distracted: bool, shop: Shop, asked: Goal) -> bool:
    """Whether the expert gets reward 1, and the first product found is a wrong one exactly if `distracted`."""
    session, expert = Session(shop, asked, "brief"), Expert()
    session.step(expert.act(session.page))
    first = next((part.text for part in session.page.parts() if part.kind == "product"), None)
    opened = expert.act(session.page)
    if (opened != f"click[{first}]") != distracted:
        return False
    session.step(opened)
    play_out(session, expert, LONGEST - 2)
    return session.reward == 1


def _visit(shop: Shop, asked: Goal, rng: random.Random, solved: bool) -> str:
    session = Session(shop, asked, "brief")
    first = session.observation
    return transcript(first, play_out(session, Expert(), LONGEST) if solved else _browse(session, rng))


def _browse(session: Session, rng: random.Random) -> list[tuple[str, Step]]:
    """Browses at random; by chance this may buy what was asked for."""
    turns: list[tuple[str, Step]] = []
    while not session.done and len(turns) < MAX_RANDOM_TURNS:
        action = _random_action(session.page, rng)
        if rng.random() < INVALID_SHARE:
            action = rng.choice(("click[search]", "click[Buy]", f"click[{_code(rng.randrange(CODES))}]"))
        turns.append((action, session.step(action)))
    return turns


def _random_action(page: Page, rng: random.Random) -> str:
    if page.name == "search":
        kind = rng.choice(kinds())
        return f"search[{rng.choice(DEPARTMENTS[kind.department].attributes)} {kind.plural}]"
    parts = [part for part in page.parts() if part.kind != "text" and not part.marked]
    shown = [part for part in parts if part.kind == "product"][:3]
    if page.name == "results" and shown and rng.random() < 0.8:
        return f"click[{rng.choice(shown).text}]"
    buttons = [part.text for part in parts if part.kind in ("button", "option") and part.text != BUY_NOW]
    return f"click[{BUY_NOW if page.name == 'item' and rng.random() < 0.1 else rng.choice(buttons)}]"


def _notes(asked: Goal, catalogue: Sequence[Product], rng: random.Random) -> str:
    """Compares a wish with products of its kind, one after the other, and names the one to look at first."""
    same = [product for product in catalogue if product.query == asked.query]
    lines = [f"Wanted: {', '.join(asked.attributes)} {asked.query} below {asked.price_upper:.2f} dollars."]
    for product in rng.sample(same, min(NOTES, len(same))):
        missing = [attribute for attribute in asked.attributes if attribute not in product.attributes]
        verdict = f"Not {missing[0]}." if missing else "Too dear." if product.price > asked.price_upper else "Yes."
        lines.append(f"[{product.id}] {product.title} {product.price_tag} {verdict}")
    chosen = next((line for line in lines if line.endswith("Yes.")), rng.choice(lines[1:]))
    return "\n".join([*lines, f"> click{chosen.partition(' ')[0]}"])
