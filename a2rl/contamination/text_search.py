"""Looks for the eval set in everything that the agent wrote."""

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from a2rl.contamination.index import WAYS, Hit, ItemIndex, Way
from a2rl.contamination.items import plain_text
from a2rl.contamination.sources import Piece, TooMuchTextError

LIMIT_S = 120.0
CALIBRATED_ON = 4000
"""Texts, at most, from which the number of chance hits is estimated."""
FEWEST: Mapping[Way, int] = {"verbatim": 2, "renumbered": 3, "paraphrased": 5}
"""Fewer items than this are chance."""
LEAST_SHARE: Mapping[Way, float] = {"verbatim": 0.0, "renumbered": 0.005, "paraphrased": 0.01}
"""The same, as a share of the eval set."""
ABOVE_CHANCE = 3.0
"""How many times as many items as in the agent's training data have to be found."""


class Place(NamedTuple):
    """Where an item was found."""

    hit: Hit
    piece: Piece


class Searched(NamedTuple):
    """The outcome of a search."""

    found: Mapping[Way, Sequence[Place]]
    """The best place for each item, by the way in which it was found."""
    needed: Mapping[Way, int]
    """How many items are more than chance."""
    findable: Mapping[Way, int]
    is_complete: bool
    """Whether everything was searched: there was not too much of it, and there was time."""

    def suspicious(self) -> list[Way]:
        """Returns the ways in which more items were found than chance explains."""
        return [way for way in WAYS if len(self.found[way]) >= self.needed[way]]


def chance_hits(items: Mapping[str, str], known: Sequence[str]) -> dict[Way, int]:
    """Counts the items that one half of the agent's training data would show, if it were only given the other half.

    So many items are found in texts of the same kind without any leak.
    """
    some = known[:: max(1, len(known) // CALIBRATED_ON)]
    index = ItemIndex(items, some[::2])
    found: dict[Way, set[str]] = {way: set() for way in WAYS}
    for text in some[1::2]:
        for hit in index.search(text):
            found[hit.way].add(hit.item)
    return {way: len(each) for way, each in found.items()}


class TextSearch:
    """Looks for the items of an eval set in texts."""

    def __init__(self, items: Mapping[str, str], known: Sequence[str]) -> None:
        """Makes the tables.

        Args:
            items: The text of each item by id.
            known: The texts that the agent was given.
        """
        self._index, chance = ItemIndex(items, known), chance_hits(items, known)
        self._given = set(known)
        self._needed = {way: _needed(way, len(items), chance[way]) for way in WAYS}

    def run(self, written: Iterable[Piece], limit_s: float = LIMIT_S) -> Searched:
        """Searches texts.

        Args:
            written: What the agent wrote.
            limit_s: When this time is over, the rest is not read.
        """
        best: dict[tuple[Way, str], Place] = {}
        try:
            for piece in _in_time(written, limit_s):
                for hit in self._hits(piece):
                    held = best.get((hit.way, hit.item))
                    if held is None or hit.score > held.hit.score:
                        best[hit.way, hit.item] = Place(hit, piece)
            is_complete = True
        except TooMuchTextError:
            is_complete = False
        found: dict[Way, list[Place]] = defaultdict(list)
        for (way, _), place in best.items():
            found[way].append(place)
        return Searched(
            found={way: sorted(found[way], key=lambda each: -each.hit.score) for way in WAYS},
            needed=self._needed,
            findable={way: self._index.findable(way) for way in WAYS},
            is_complete=is_complete,
        )

    def _hits(self, piece: Piece) -> list[Hit]:
        text = plain_text(piece.text)
        return [] if text in self._given else self._index.search(text)


def _in_time(written: Iterable[Piece], limit_s: float) -> Iterator[Piece]:
    deadline = time.monotonic() + limit_s
    for piece in written:
        if time.monotonic() > deadline:
            raise TooMuchTextError
        yield piece


def _needed(way: Way, items: int, by_chance: int) -> int:
    return max(FEWEST[way], round(LEAST_SHARE[way] * items), round(ABOVE_CHANCE * by_chance))
