"""Word problems of many kinds, for tests that look for some of them among the others."""

import random

PEOPLE = [
    "Ada",
    "Bruno",
    "Chloe",
    "Dario",
    "Elif",
    "Farid",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Katya",
    "Luis",
    "Mara",
    "Nils",
    "Olga",
    "Pavel",
    "Rosa",
    "Sven",
    "Tilda",
    "Uwe",
]
PLACES = [
    "bakery",
    "library",
    "harbour",
    "workshop",
    "orchard",
    "stadium",
    "pharmacy",
    "theatre",
    "museum",
    "factory",
    "garden",
    "station",
]
THINGS = [
    "loaves",
    "novels",
    "crates",
    "hinges",
    "pears",
    "tickets",
    "bandages",
    "costumes",
    "paintings",
    "engines",
    "tulips",
    "trains",
    "kettles",
    "maps",
]
DEEDS = [
    "carries",
    "stacks",
    "sells",
    "repairs",
    "counts",
    "borrows",
    "packs",
    "paints",
    "delivers",
    "washes",
    "labels",
    "weighs",
]
WHEN = [
    "on Monday",
    "before noon",
    "after the storm",
    "during the festival",
    "in early spring",
    "at midnight",
    "twice a week",
]
HOW = [
    "carefully",
    "with a rusty cart",
    "for a cousin",
    "without any help",
    "under a red awning",
    "by the river",
    "in a hurry",
]


def stories(count: int, seed: int) -> list[str]:
    """Returns different problems; those of different seeds have no sentence in common, except by chance."""
    rng = random.Random(f"stories/{seed}")
    return [_story(rng) for _ in range(count)]


def _story(rng: random.Random) -> str:
    person, place, thing = rng.choice(PEOPLE), rng.choice(PLACES), rng.choice(THINGS)
    sentences = [
        f"{person} {rng.choice(DEEDS)} {rng.randint(2, 95)} {rng.choice(THINGS)} at the {rng.choice(PLACES)} "
        f"{rng.choice(WHEN)} {rng.choice(HOW)}"
        for _ in range(rng.randint(3, 4))
    ]
    return f"{'. '.join(sentences)}. How many {thing} are left at the {place} {rng.choice(WHEN)}?"
