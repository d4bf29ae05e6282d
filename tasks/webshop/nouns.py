"""The nouns of a product's title, which decide whether a purchase is the right kind of thing.

WebShop uses spaCy's model en_core_web_sm, and so do we where it is installed. Elsewhere every word of a title counts
as a noun that has a letter in it and is not on a short list of exceptions. This is close to the model's verdict, which
takes most words of titles for names. The tagger is chosen when data is prepared, and named with each score.

Measured on the edition with 1,000 products and en_core_web_sm 3.8.0: of the 76,010 purchases that the command below
tries, 11 for each of the 6,910 goals, 2.9% get another reward, but never
the purchase of the product that was asked for.

    python -m tasks.webshop.nouns MIRROR        # how much the choice matters: the share of goals whose reward differs
"""

import argparse
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from rich.console import Console

from a2rl.core.errors import A2rlError, UsageError

MODEL = "en_core_web_sm"
BOUGHT = 10
"""Number of search results that are bought for each goal."""

_WORD = re.compile(r"[^\W_]+")
_OTHERS = """\
a all an and any are as at be but by can each etc for from full i if in into is it its made make more my no non not of
off on only or our out over per s so than that the their these this through to two under up used via we when with
without x you your based comfortable compatible designed fully included includes large true"""
_NO_NOUNS = frozenset(_OTHERS.split())


class Tagger(Protocol):
    """Finds nouns in titles."""

    @property
    def name(self) -> str:
        """The name that is shown with scores."""
        ...

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """Yields the nouns of each title in lower case, as often as the title has them."""
        ...


class ByWord:
    """The fallback: all words but a list of exceptions."""

    name = "words but for a list of others"

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """See `Tagger`."""
        for title in titles:
            words = (word.lower() for word in _WORD.findall(title))
            yield tuple(word for word in words if word not in _NO_NOUNS and any(map(str.isalpha, word)))


class BySpacy:
    """The original's tagger. `model` is the name of an installed model, or its folder."""

    def __init__(self, model: str = MODEL) -> None:
        import spacy

        try:
            self._nlp: Any = spacy.load(model, disable=["parser", "ner", "lemmatizer"])
        except OSError as error:
            raise UsageError(f"spaCy has no model {model}: `python -m spacy download {MODEL}`") from error
        self.name = f"spaCy {self._nlp.meta['lang']}_{self._nlp.meta['name']} {self._nlp.meta['version']}"

    def nouns(self, titles: Iterable[str]) -> Iterator[tuple[str, ...]]:
        """See `Tagger`."""
        for title in self._nlp.pipe(titles):
            yield tuple(token.text.lower() for token in title if token.pos_ in ("NOUN", "PROPN"))


def best_tagger() -> Tagger:
    """Returns spaCy's tagger where its model is installed, else the fallback."""
    return BySpacy() if find_spec("spacy") and find_spec(MODEL) else ByWord()


class Comparison(NamedTuple):
    """Two taggers over the goals of a catalogue."""

    goals: int
    changed: int
    """Goals for which some purchase has different rewards."""
    own_changed: int
    """Goals for which the purchase of the product asked for has different rewards."""
    purchases: int
    purchases_changed: int


def compare(mirror: Path, one: Tagger, other: Tagger, limit: int | None = None) -> Comparison:
    """Buys, for each synthetic goal, the product it was made from and the best that a search for it finds."""
    from tasks.webshop.goals import synthetic
    from tasks.webshop.release import read_listings
    from tasks.webshop.shop.index import Index
    from tasks.webshop.shop.indexing import build
    from tasks.webshop.shop.reward import match_type

    listings = [read_listings(mirror, tagger) for tagger in (one, other)]
    products = [[listing.product for listing in each] for each in listings]
    numbers = {product.id: number for number, product in enumerate(products[0])}
    with tempfile.TemporaryDirectory() as folder:
        build(((product.id, product.text) for product in products[0]), Path(folder))
        index = Index.open(Path(folder))
        goals = [synthetic(each)[:limit] for each in listings]
        changed = own_changed = purchases = purchases_changed = 0
        for pair in zip(*goals, strict=True):
            bought = [numbers[pair[0].product_id], *(hit.number for hit in index.search(pair[0].instruction, BOUGHT))]
            # Everything else is equal, so the reward can only differ where the type does.
            differs = [match_type(products[0][n], pair[0])[0] != match_type(products[1][n], pair[1])[0] for n in bought]
            changed += any(differs)
            own_changed += differs[0]
            purchases += len(bought)
            purchases_changed += sum(differs)
    return Comparison(len(goals[0]), changed, own_changed, purchases, purchases_changed)


def main() -> None:
    """Exits with code 0, or with 2 if the call is invalid or spaCy is not installed."""
    parser = argparse.ArgumentParser(
        prog="python -m tasks.webshop.nouns", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("mirror", type=Path, metavar="MIRROR", help="a folder with WebShop's files")
    parser.add_argument("--model", default=MODEL, help=f"spaCy's model, or its folder (default: {MODEL})")
    parser.add_argument("--goals", type=int, help="how many (default: all)")
    arguments = parser.parse_args()
    out, err = Console(), Console(stderr=True)
    try:
        if find_spec("spacy") is None:
            raise UsageError(f"spaCy is not installed: `pip install spacy`, then `python -m spacy download {MODEL}`")
        spacy, words = BySpacy(arguments.model), ByWord()
        found = compare(arguments.mirror, spacy, words, arguments.goals)
    except A2rlError as error:
        err.print(f"error: {error}", markup=False)
        sys.exit(error.exit_code)
    title = f"{spacy.name} against {words.name}, {found.goals:,} goals, {found.purchases:,} purchases"
    out.print(title, soft_wrap=True)
    for label, number, total in (
        ("goals where some purchase has another reward", found.changed, found.goals),
        ("goals where the product asked for has", found.own_changed, found.goals),
        ("purchases with another reward", found.purchases_changed, found.purchases),
    ):
        out.print(f"{label:<52} {number:>7,} {100 * number / max(1, total):6.2f}%")


if __name__ == "__main__":
    main()
