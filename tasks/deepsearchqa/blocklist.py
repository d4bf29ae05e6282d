"""Detects search results that may contain the answers: the data set's pages, its copies, and quotes of a question.

A list of mirrors would soon be outdated, so a result is blocked if its URL or text names the data set, or if it quotes
the question. Pages that reveal answers otherwise are not detected; the recording shows them.
"""

import re
from collections.abc import Iterable

from tasks.deepsearchqa.research import Hit

NAMES = re.compile(r"deep[\W_]?search[\W_]?qa|\bdsqa\b|2601\.20975|ryanduy/demacia", re.IGNORECASE)
"""The data set (google/deepsearchqa on the hub, and its leaderboard), its file, its paper, and its copies on the hub,
of which one has another name."""
QUOTED_WORDS = 10
"""A result with this many consecutive words of the question quotes it."""
_WORD = re.compile(r"\w+")


class Quotes:
    """Finds quotes of any of many questions in a text: so many consecutive words, whatever stands between them.

    A question with fewer words is quoted if all of them occur in a row.
    """

    def __init__(self, questions: Iterable[str], quoted_words: int = QUOTED_WORDS) -> None:
        self._runs: dict[int, set[str]] = {}
        """Runs of words, by their number."""
        for words in map(_words, questions):
            length = min(quoted_words, len(words))
            self._runs.setdefault(length, set()).update(_runs_of(words, length))

    def occur_in(self, text: str) -> bool:
        """Whether the text quotes one of the questions."""
        words = _words(text)
        return any(run in runs for length, runs in self._runs.items() if length for run in _runs_of(words, length))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _runs_of(words: list[str], length: int) -> Iterable[str]:
    return (" ".join(words[start : start + length]) for start in range(len(words) - length + 1))


def is_leak(hit: Hit, question: str) -> bool:
    """Whether a result must not be shown to the model that answers this question."""
    if any(NAMES.search(text) for text in hit):
        return True
    asked, said = _WORD.findall(question.lower()), " ".join(_WORD.findall(f"{hit.title} {hit.snippet}".lower()))
    runs = (asked[start : start + QUOTED_WORDS] for start in range(max(1, len(asked) - QUOTED_WORDS + 1)))
    return any(" ".join(run) in said for run in runs if run)
