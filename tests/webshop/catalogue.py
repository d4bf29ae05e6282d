"""Generates catalogues of any size that look like WebShop's to a search engine, about 20,000 products a second.

The lengths of texts, the frequencies of words, and how many words of a text are new or repeated are fitted to WebShop's
1,000 released products. Each product is of a kind, whose own words fill much of its text, most of all its title. So the
words of a query occur together in many products, like those of "women's wide leg pants", and the search must
distinguish many near matches.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from tasks.webshop.shop import Product

WORDS = 3_000_000
"""Different words at most."""
HEAD, TAIL = 60, 1.35
"""The word of rank r is (r + HEAD) ** -TAIL as frequent as the first (Mandelbrot's law)."""
MEDIAN, SPREAD, SHORTEST = 76, 0.8, 20
"""Words of a product's text: their median, the spread of their logarithm, and the least."""
TITLE = 12
KINDS, KIND_WORDS = 1000, 60
OF_KIND, OF_KIND_IN_TITLE, AGAIN, COMMA = 0.25, 0.5, 0.25, 0.1
"""Shares of words: the kind's own (in a title), those that the text had before, and those with a comma behind."""
BLOCK = 1000
LETTERS = np.frombuffer(b"aeioubcdfghjklmnprstvwxyz", np.uint8)


def products(count: int, seed: int = 0) -> Iterator[Product]:
    """Yields products. A larger catalogue begins with the products of a smaller one."""
    rng = np.random.default_rng(seed)
    kinds = _ranks(rng, KINDS * KIND_WORDS).reshape(KINDS, KIND_WORDS)
    for first in range(0, count, BLOCK):
        lengths = np.maximum(SHORTEST, rng.lognormal(np.log(MEDIAN), SPREAD, BLOCK)).astype(int)
        starts = np.cumsum(lengths) - lengths
        text, ends = _text(_words(rng, starts, lengths, kinds), rng)
        rows = zip(range(first, min(first + BLOCK, count)), starts.tolist(), lengths.tolist(), strict=False)
        for number, start, length in rows:
            yield _product(f"B{number:09d}", text, ends[start : start + length + 1])


def _words(
    rng: np.random.Generator, starts: NDArray[np.int64], lengths: NDArray[np.int64], kinds: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Returns the rank of each word of several texts, one text after the other."""
    count = int(lengths.sum())
    place = np.arange(count) - np.repeat(starts, lengths)
    ranks = _ranks(rng, count)
    of_kind = rng.random(count) < np.where(place < TITLE, OF_KIND_IN_TITLE, OF_KIND)
    kind = np.repeat(rng.integers(len(kinds), size=len(lengths)), lengths)[of_kind]
    # Squared, so that a kind has words that nearly all of its products share, and words that few of them share.
    ranks[of_kind] = kinds[kind, (rng.random(len(kind)) ** 2 * KIND_WORDS).astype(int)]
    again = np.flatnonzero((rng.random(count) < AGAIN) & (place >= TITLE))
    ranks[again] = ranks[again - 1 - (rng.random(len(again)) * place[again]).astype(int)]
    return ranks


def _ranks(rng: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Draws ranks by Mandelbrot's law, starting at 0."""
    first, last = HEAD ** (1 - TAIL), (WORDS + HEAD) ** (1 - TAIL)
    ranks: NDArray[np.float64] = (first - (first - last) * rng.random(count)) ** (1 / (1 - TAIL)) - HEAD
    return ranks.astype(np.int64)


def _text(ranks: NDArray[np.int64], rng: np.random.Generator) -> tuple[str, list[int]]:
    """Returns the words, separated by spaces, and their starts. Words encode ranks, so frequent ones are short."""
    digits = [
        np.where(ranks + 1 >= len(LETTERS) ** place, (ranks + 1) // len(LETTERS) ** place, -1) for place in range(5)
    ]
    columns = [np.where(digit < 0, 0, LETTERS[digit % len(LETTERS)]) for digit in digits]
    comma = np.where(rng.random(len(ranks)) < COMMA, ord(","), 0)
    letters = np.stack([*columns, comma, np.full(len(ranks), ord(" "))], axis=1).astype(np.uint8)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum((letters > 0).sum(axis=1))])
    return letters[letters > 0].tobytes().decode(), ends.tolist()


def _product(name: str, text: str, at: Sequence[int]) -> Product:
    def part(first: int, last: int) -> str:
        return text[at[first] : at[last] - 1]

    length = len(at) - 1
    title, options = part(0, TITLE), part(length - 4, length).replace(",", "")
    return Product(
        id=name, title=title, price=10.0, price_tag="$10.0", category="garden", query=part(0, 2),
        product_category="Home", description=part(TITLE, length - 8), bullets=(part(length - 8, length - 4),),
        options={"color": tuple(options.split(" "))}, attributes=(part(1, 2),), nouns=tuple(title.split(" ")[:6]),
    )  # fmt: skip
