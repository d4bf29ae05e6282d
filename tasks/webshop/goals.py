"""What customers want: goals made from a catalogue, frozen by one seed.

The original draws price limits before it sets its seed, so two starts of it differ in half of the instructions. Here
prices (release.py) and limits are drawn with SEED, and the goals are shuffled with the same seed as in the original:
session 0 is about the same product and options in both.
"""

import itertools
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from a2rl.core.files import digest_of
from tasks.webshop.release import SEED, Listing, Wish
from tasks.webshop.shop.product import Goal, Product

PRICE_STEPS = tuple(10.0 * step for step in range(1, 100))
NO_LIMIT = 1_000_000.0


def synthetic(listings: Sequence[Listing]) -> list[Goal]:
    """Returns, for each product with a synthetic wish, one goal per combination of its options, as the reference does.

    All goals of a product have one price limit.
    """
    rng = random.Random(f"webshop/limits/synthetic/{SEED}")
    return _shuffled(
        goal for each in listings if each.synthetic for goal in _synthetic(each.product, each.synthetic, rng)
    )


def human(listings: Sequence[Listing]) -> list[Goal]:
    """Returns the goals that people wrote, except those without attributes."""
    rng = random.Random(f"webshop/limits/human/{SEED}")
    return _shuffled(
        goal(each.product, wish, wish.options, _limit(each.product, rng))
        for each in listings
        for wish in each.human
        if wish.attributes
    )


def goal(product: Product, wish: Wish, options: Mapping[str, str] | tuple[str, ...], limit: float) -> Goal:
    """Returns a goal that this product fulfils, without an id. Wishes that people wrote already name the options."""
    wanted = (
        ", and ".join(f"{name}: {value}" for name, value in options.items()) if isinstance(options, Mapping) else ""
    )
    text = wish.text.strip(".") if not isinstance(options, Mapping) else wish.text
    text += f" with {wanted}" if wanted else ""
    return Goal(
        id="",
        product_id=product.id,
        instruction=text + (f", and price lower than {limit:.2f} dollars" if limit < NO_LIMIT else ""),
        attributes=wish.attributes,
        options=options,
        price_upper=limit,
        query=product.query,
        product_category=product.product_category,
        nouns=product.nouns,
    )


def split(goals: Sequence[Goal], held_out: int) -> tuple[list[Goal], list[Goal]]:
    """Returns the eval set (the first goals), and for training the others about products that it does not use."""
    evaluation = list(goals[:held_out])
    taken = {goal.product_id for goal in evaluation}
    return evaluation, [goal for goal in goals[held_out:] if goal.product_id not in taken]


def digest(goals: Sequence[Goal]) -> str:
    """SHA-256 (hex) over all that the goals say, in order."""
    return digest_of([goal.to_json() for goal in goals])


def _synthetic(product: Product, wish: Wish, rng: random.Random) -> Iterator[Goal]:
    limit = _limit(product, rng)
    names = sorted(product.options)
    for values in itertools.product(*(product.options[name] for name in names)):
        yield goal(product, wish, dict(zip(names, values, strict=True)), limit)


def _limit(product: Product, rng: random.Random) -> float:
    """Returns one of the next multiples of ten above the price, never the nearest; NO_LIMIT above all of them."""
    above = [step for step in PRICE_STEPS if step > product.price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def _shuffled(goals: Iterator[Goal]) -> list[Goal]:
    """Returns the goals in their final order, with ids: the product's id and the number of the goal for it."""
    numbers = Counter[str]()
    named = []
    for goal in goals:
        numbers[goal.product_id] += 1
        named.append(replace(goal, id=f"{goal.product_id}-{numbers[goal.product_id]:03d}"))
    random.Random(SEED).shuffle(named)
    return named
