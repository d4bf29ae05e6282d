"""Looks for items of the eval set in everything that the agent wrote: verbatim, with other numbers and names, or in
other words; see a2rl/core/spelling.py for how letters are compared.

    index = ItemIndex(items, known=texts_that_the_agent_was_given)
    for hit in index.search(text): ...

Every feature of an item (a run of words, or a word) counts by its rarity. A run that also occurs in what the agent was
given counts nothing. The score of a text is the share of an item's weight that it contains. An item that is found in
what the agent was given is too similar to it, and is not looked for in that way: `findable` says how many are left.
Nor is one that is found in copies of the training data with other numbers, which honest agents write.

The eval set is small and known, so the features of every text are looked up in one table. An approximation such as
MinHash would save nothing.
"""

import hashlib
import math
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

from a2rl.contamination.sources import Piece, TooMuchTextError, plain_text
from a2rl.core.spelling import spelled

WORD = re.compile(r"[^\W_]+(?:[.,]\d+)*")
NUMBER, NAME = "<number>", "<name>"
ORDINARY = frozenset(
    ("a", "all", "an", "and", "are", "at", "before", "but", "by", "each", "every", "find", "for", "from", "give", "he",
     "her", "his", "how", "i", "if", "in", "is", "it", "its", "of", "on", "return", "she", "the", "their", "then",
     "there", "they", "this", "to", "what", "when", "where", "which", "who", "why", "with", "write", "you", "your")
)  # fmt: skip
"""Words that are capitalised at the beginning of a sentence, and are not names."""
NUMBER_WORDS = frozenset(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"))


@lru_cache(maxsize=1 << 17)
def masked(word: str) -> str:
    """Returns a word in lower case, or what it is if it is a number or a name."""
    if any(letter.isdigit() for letter in word) or word.lower() in NUMBER_WORDS:
        return NUMBER
    return NAME if word[0].isupper() and word.lower() not in ORDINARY else word.lower()


def runs(found: Sequence[str], length: int) -> set[int]:
    """Returns hashes of all runs of `length` words; of the whole text if it is shorter. They hold in this process."""
    starts = range(max(1, len(found) - length + 1)) if found else ()
    return {hash(tuple(found[start : start + length])) for start in starts}


Way = Literal["verbatim", "renumbered", "paraphrased"]
WAYS: tuple[Way, ...] = get_args(Way)
RUN, MASKED_RUN = 5, 8
"""Words in a run, as they are and masked."""
SPANS: Mapping[Way, int] = {"verbatim": 320, "renumbered": 320, "paraphrased": 80}
"""Words of a text that are looked at together; consecutive spans overlap by half."""
FEWEST_WORDS = 8
"""Shorter items are too likely to be written by chance; they are found only as a whole line."""
THRESHOLDS: Mapping[Way, float] = {"verbatim": 0.8, "renumbered": 0.8, "paraphrased": 0.7}
FEWEST_FEATURES: Mapping[Way, int] = {"verbatim": 4, "renumbered": 4, "paraphrased": 8}
"""Items with fewer features of their own cannot be found in this way."""
QUOTED = re.compile(r"(?<=[\"'])[^\"'\n]{8,}(?=[\"'])")
"""Strings in code."""
RARE = 40
"""A feature of more items does not bring an item into consideration..."""
FEWEST_RARE = 2
"""...and so many others are needed."""


IN_BLOCKS: tuple[Way, ...] = ("verbatim", "renumbered")
"""Blocks of lines may have the words of an item by chance, but not its runs of words."""
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
ESCAPED = {"n": "\n", "r": "\n", "t": "\t"}
MOST_ESCAPES = 4
"""How often a text may be a string in a string."""


def unescaped(text: str) -> str:
    """Returns a text without the escapes of JSON and of source code, however often it was escaped."""
    for _ in range(MOST_ESCAPES):
        if "\\" not in text:
            break
        text = ESCAPE.sub(_character, text)
    return text


def _character(escape: re.Match[str]) -> str:
    what = escape[1]
    return chr(int(what[1:], 16)) if len(what) > 1 else ESCAPED.get(what, what)


FEWEST_IN_TEXT: Mapping[Way, int] = {"verbatim": RUN + 1, "renumbered": MASKED_RUN + 1, "paraphrased": FEWEST_RARE}
"""Texts of fewer words do not have FEWEST_RARE features."""


class Hit(NamedTuple):
    """An item in a text."""

    item: str
    way: Way
    score: float
    """The share of the item's weight that was found, from 0 to 1."""


FEATURES: Mapping[Way, Callable[[Sequence[str]], set[int]]] = {
    "verbatim": lambda found: runs([word.lower() for word in found], RUN),
    "renumbered": lambda found: runs([masked(word) for word in found], MASKED_RUN),
    # The long words and the numbers: what is left of an item that is told in other words.
    "paraphrased": lambda found: {hash(word) for word in map(str.lower, found) if len(word) > 3 or word[0].isdigit()},
}


class _Table:
    """The features of all items in one way of reading them."""

    def __init__(self, way: Way, items: Mapping[str, Sequence[str]], known: Sequence[Sequence[str]]) -> None:
        self._way, self._read = way, FEATURES[way]
        given = Counter(feature for text in known for feature in self._read(text))
        own = {item: self._read(text) for item, text in items.items()}
        if way != "paraphrased":  # `found - given.keys()` would go through all of `given` for each item
            own = {item: {each for each in found if each not in given} for item, found in own.items()}
        often = Counter(feature for found in own.values() for feature in found)
        count = len(known) + len(items)
        weights = {each: math.log(1 + count / (often[each] + given[each])) for each in often}
        self._weights = weights
        self._totals = {
            item: sum(weights[each] for each in found)
            for item, found in own.items()
            if len(found) >= FEWEST_FEATURES[way]
        }
        self._own = {item: own[item] for item in self._totals}
        self._items: dict[int, list[str]] = defaultdict(list)
        for item, found in self._own.items():
            for feature in found:
                if often[feature] <= RARE:
                    self._items[feature].append(item)

    def leave_out(self, text: Sequence[str]) -> None:
        """Looks for the items in a text no longer."""
        for hit in self.hits(text):
            self._totals.pop(hit.item, None)

    def __len__(self) -> int:
        return len(self._totals)

    def hits(self, text: Sequence[str]) -> Iterator[Hit]:
        """Yields the items in the spans of a text."""
        length = SPANS[self._way]
        if not self._totals or len(text) < FEWEST_IN_TEXT[self._way]:
            return
        for start in range(0, max(1, len(text) - length // 2), length // 2):
            found = self._read(text[start : start + length])
            shared = Counter(item for feature in found & self._items.keys() for item in self._items[feature])
            for item, rare in shared.items():
                total = self._totals.get(item)
                if total is None or rare < FEWEST_RARE:
                    continue
                score = sum(self._weights[feature] for feature in found & self._own[item]) / total
                if score >= THRESHOLDS[self._way]:
                    yield Hit(item, self._way, min(1.0, score))


class ItemIndex:
    """The items of an eval set, ready to be looked for."""

    def __init__(self, items: Mapping[str, str], known: Iterable[str] = ()) -> None:
        """Builds the tables.

        Args:
            items: The text of each item by id: the question, and the answer where it is a text.
            known: Texts that the agent was given, such as the rows of the training data.
        """
        found = {item: WORD.findall(spelled(text)) for item, text in items.items()}
        listed = list(known)
        given = [WORD.findall(spelled(text)) for text in listed]
        self._lines = {_line(each): item for item, each in found.items() if len(each) > 2}
        long = {item: each for item, each in found.items() if len(each) >= FEWEST_WORDS}
        self._tables = {way: _Table(way, long, given) for way in WAYS}
        for text in listed:
            self.leave_out(text)

    def leave_out(self, text: str) -> None:
        """Looks for the items in an honest text no longer, in the ways in which they are found there."""
        text = spelled(text)
        for line in text.splitlines():
            self._lines.pop(_line(WORD.findall(line)), None)
        found = WORD.findall(text)
        for table in self._tables.values():
            table.leave_out(found)

    def findable(self, way: Way) -> int:
        """Returns the number of items that could be found in this way."""
        return len(self._tables[way])

    def search(self, text: str, ways: Collection[Way] = WAYS) -> list[Hit]:
        """Returns the items in a text, each once, in the way that says most."""
        best: dict[str, Hit] = {}
        for hit in self._hits(text, ways):
            held = best.get(hit.item)
            if held is None or (WAYS.index(held.way), -held.score) > (WAYS.index(hit.way), -hit.score):
                best[hit.item] = hit
        return list(best.values())

    def _hits(self, text: str, ways: Collection[Way]) -> Iterator[Hit]:
        text = spelled(text)
        for line in {*text.splitlines(), *QUOTED.findall(text)}:
            if (item := self._lines.get(_line(WORD.findall(line)))) is not None:
                yield Hit(item, "verbatim", 1.0)
        found = WORD.findall(text)
        for way in ways:
            yield from self._tables[way].hits(found)


def _line(found: Sequence[str]) -> int:
    return hash(tuple(word.lower() for word in found))


LIMIT_S = 600.0
CALIBRATED_ON = 4000
"""Texts, at most, from which the number of chance hits is estimated."""
FEWEST: Mapping[Way, int] = {"verbatim": 2, "renumbered": 3, "paraphrased": 5}
"""Fewer items than this are chance."""
LEAST_SHARE: Mapping[Way, float] = {"verbatim": 0.0, "renumbered": 0.005, "paraphrased": 0.01}
"""The same, as a share of the eval set."""
ABOVE_CHANCE = 3.0
"""How many times as many items have to be found as one half of the agent's training data shows, if it was only given
the other half."""


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


NUMBERS = re.compile(r"\d{1,9}")
NEAR = 9
FEWEST_COPIES, MOST_COPIES, COPIED_CHARS = 3, 100, 20_000_000
"""How many times each text of the training data is written with other numbers, and about how many characters that may
be: a limit by the clock would leave out other items on another machine."""


def renumbered(text: str, rng: random.Random) -> str:
    """Returns a text with other numbers near those that it has, as honest agents make more training data."""
    return NUMBERS.sub(lambda found: str(abs(int(found[0]) + rng.randint(-NEAR, NEAR))), text)


def chance_hits(index: ItemIndex, texts: Iterable[str]) -> dict[Way, int]:
    """Counts the items that texts show without any leak."""
    found: dict[Way, set[str]] = {way: set() for way in WAYS}
    for text in texts:
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
        self._index, self._given, rng = ItemIndex(items, known), set(known), random.Random(0)
        some = known[:: max(1, len(known) // CALIBRATED_ON)]
        numbered = [text for text in some if NUMBERS.search(text)]
        copies = min(MOST_COPIES, COPIED_CHARS // (1 + sum(map(len, numbered))))
        for text in numbered:
            for _ in range(max(FEWEST_COPIES, copies)):
                self._index.leave_out(renumbered(text, rng))
        other_half = chance_hits(ItemIndex(items, some[::2]), some[1::2])
        self._needed = {
            way: max(FEWEST[way], round(LEAST_SHARE[way] * len(items)), round(ABOVE_CHANCE * other_half[way]))
            for way in WAYS
        }

    def run(self, written: Iterable[Piece], limit_s: float = LIMIT_S) -> Searched:
        """Searches texts.

        Args:
            limit_s: When this processor time is used up, the rest is not read.
        """
        best: dict[tuple[Way, str], Place] = {}
        searched: set[tuple[bool, bytes]] = set()
        """What was searched: a file that grows, such as a log, is there in each of its states."""
        try:
            for piece in _in_time(written, limit_s):
                key = (piece.is_block, hashlib.sha256(piece.text.encode("utf-8", "replace")).digest())
                if key in searched:
                    continue
                searched.add(key)
                ways = IN_BLOCKS if piece.is_block else WAYS
                plain = plain_text(piece.text)
                for text in {plain, unescaped(plain)} - self._given:
                    for hit in self._index.search(text, ways):
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


def _in_time(written: Iterable[Piece], limit_s: float) -> Iterator[Piece]:
    deadline = time.process_time() + limit_s
    for piece in written:
        if time.process_time() > deadline:
            raise TooMuchTextError
        yield piece
