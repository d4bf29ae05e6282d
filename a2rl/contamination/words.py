"""Texts as the search for eval items sees them: words, and runs of words.

Numbers and capitalised words can be masked, so that an item is found with other numbers and names, too.
"""

import re
from collections.abc import Iterator

WORD = re.compile(r"[^\W_]+(?:[.,]\d+)*")
NUMBER, NAME = "<number>", "<name>"
ORDINARY = frozenset(
    ("a", "all", "an", "and", "are", "at", "before", "but", "by", "each", "every", "find", "for", "from", "give", "he",
     "her", "his", "how", "i", "if", "in", "is", "it", "its", "of", "on", "return", "she", "the", "their", "then",
     "there", "they", "this", "to", "what", "when", "where", "which", "who", "why", "with", "write", "you", "your")
)  # fmt: skip
"""Words that are capitalised at the beginning of a sentence, and are not names."""
NUMBER_WORDS = frozenset(("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"))


def words(text: str) -> list[str]:
    """Returns the words of a text as they are written."""
    return WORD.findall(text)


def plain(found: list[str]) -> list[str]:
    """Returns words in lower case."""
    return [word.lower() for word in found]


def masked(found: list[str]) -> list[str]:
    """Returns words in lower case, with numbers and names replaced by what they are."""
    return [_mask(word) for word in found]


def _mask(word: str) -> str:
    if any(letter.isdigit() for letter in word) or word.lower() in NUMBER_WORDS:
        return NUMBER
    return NAME if word[0].isupper() and word.lower() not in ORDINARY else word.lower()


def runs(found: list[str], length: int) -> Iterator[int]:
    """Yields hashes of all runs of `length` words; of the whole text if it is shorter. They hold in this process."""
    if found:
        for start in range(max(1, len(found) - length + 1)):
            yield hash(tuple(found[start : start + length]))
