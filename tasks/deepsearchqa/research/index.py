"""A search engine over a folder of pages: BM25 (Robertson and Zaragoza 2009), with the best sentence of each page.

Why no library: the agent gets this module for its workspace, and its rollouts must rank as the grader does, whatever is
installed there; BM25 takes thirty lines of numpy.

    index = Index(read_pages(Path("pages")))
    index.search("seat of Balco", count=3)    # [Hit("Balco", "The seat of Balco is Dorton."), ...]
"""

import io
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from a2rl.core.model_text import encodable

K1, B = 0.9, 0.4
_WORD = re.compile(r"\w+")
STOP_WORDS = frozenset(
    _WORD.findall("a an and are as at be by for from in is it of on or that the to was were what when where who with")
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")


class Page(NamedTuple):
    """A page that can be searched."""

    title: str
    text: str


class Hit(NamedTuple):
    """A search result."""

    title: str
    snippet: str
    url: str = ""
    """Empty for a page of a folder."""


def read_pages(folder: Path) -> Iterator[Page]:
    """Reads the pages of a folder, in the order of paths: each *.txt or *.md file, and each line of a *.jsonl file.

    Lines have `title` and `text`; the title of other files is their name.

    Raises:
        ValueError: a line is not a page; the message names it.
    """
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".txt", ".md"):
            yield Page(path.stem, path.read_text(encoding="utf-8"))
        elif path.suffix == ".jsonl":
            for number, line in enumerate(io.StringIO(path.read_text(encoding="utf-8")), start=1):
                try:
                    row = json.loads(line)
                    yield Page(encodable(str(row["title"])), encodable(str(row["text"])))
                except (ValueError, KeyError, TypeError) as error:
                    raise ValueError(f"{path}, line {number}: no page with a title and a text") from error


def words(text: str) -> list[str]:
    """Returns the words of a text or of a query that count."""
    return [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]


class Index:
    """Pages that can be searched. Equal scores keep the order of the pages."""

    def __init__(self, pages: Iterator[Page] | Sequence[Page]) -> None:
        self.pages = list(pages)
        counts = [Counter(words(f"{page.title} {page.text}")) for page in self.pages]
        self._weights = _bm25(counts)
        self._rarity = {word: _rarity(len(places), len(counts)) for word, (places, _) in self._weights.items()}

    def search(self, query: str, count: int = 3) -> list[Hit]:
        """Returns the best pages that have a word of the query."""
        wanted = set(words(query)) & self._weights.keys()
        score = np.zeros(len(self.pages), dtype=np.float32)
        for word in sorted(wanted):  # a fixed order, because float sums depend on it
            places, weights = self._weights[word]
            score[places] += weights
        found = np.flatnonzero(score)
        best = found[np.argsort(-score[found], kind="stable")][:count]
        return [Hit(self.pages[place].title, self._snippet(self.pages[place], wanted)) for place in best]

    def _snippet(self, page: Page, wanted: set[str]) -> str:
        sentences = [sentence.strip() for sentence in _SENTENCE.split(page.text) if sentence.strip()]

        def fit(sentence: str) -> float:
            return sum(self._rarity[word] for word in sorted(wanted.intersection(words(sentence))))

        return max(sentences, key=fit, default=page.title)


def _rarity(pages_with_it: int, pages: int) -> float:
    return math.log(1 + (pages - pages_with_it + 0.5) / (pages_with_it + 0.5))


def _bm25(counts: Sequence[Counter[str]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Returns, for each word, the pages that have it, and what it adds to their scores."""
    postings: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for page, count in enumerate(counts):
        for word, number in count.items():
            postings[word].append((page, number))
    length = np.array([count.total() for count in counts], dtype=np.float32)
    norm = K1 * (1 - B + B * length / max(1.0, float(length.mean()) if counts else 1.0))
    weighted = {}
    for word, found in postings.items():
        places, times = (np.array(side) for side in zip(*found, strict=True))
        weights = _rarity(len(found), len(counts)) * times / (times + norm[places])
        weighted[word] = (places, weights.astype(np.float32))
    return weighted
