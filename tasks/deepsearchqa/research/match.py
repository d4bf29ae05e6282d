"""Compares answers by rule: the judge of the mini variant, and additional measures in the full one.

compare("Salt, the Glass", "glass, salt", "Set Answer")     # Match(exact=True, precision=1.0, recall=1.0, f1=1.0)
compare("salt", "glass, salt", "Set Answer")                # exact=False, precision 1.0, recall 0.5
compare("1,240", "1240", "Single Answer").exact             # True
"""

import re
import unicodedata
from typing import NamedTuple

SET_ANSWER = "Set Answer"
_ITEM_END = re.compile(r",(?!\d{3}\b)|[;\n]")
"""The end of an item, outside of brackets; commas in numbers do not count."""
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")


class Match(NamedTuple):
    """The result of a comparison. Precision, recall and F1 are over items; a Single answer is one item."""

    exact: bool
    precision: float
    recall: float
    f1: float


def compare(answer: str, gold: str, answer_type: str) -> Match:
    """Compares an answer with the right one; an empty answer matches nothing."""
    said, right = (items(text) if answer_type == SET_ANSWER else {normal(text)} - {""} for text in (answer, gold))
    common = len(said & right)
    precision, recall = common / max(len(said), 1), common / max(len(right), 1)
    f1 = 2 * precision * recall / (precision + recall) if common else 0.0
    return Match(bool(said) and said == right, precision, recall, f1)


def items(text: str) -> set[str]:
    """Returns the items of a Set answer."""
    return {item for part in _parts(text) if (item := normal(part.strip().removeprefix("and ")))}


def _parts(text: str) -> list[str]:
    """Splits a text at the ends of items. What is followed by a closing bracket, before any other one, is not split."""
    pieces = re.split(r"([()])", text.replace("\0", " "))
    ended = [*pieces[1::2], ""]
    split = [piece if end == ")" else _ITEM_END.sub("\0", piece) for piece, end in zip(pieces[::2], ended, strict=True)]
    return "".join(map("".join, zip(split, ended, strict=True))).split("\0")


def normal(text: str) -> str:
    """Normalises case, Unicode, articles, punctuation and the commas of numbers."""
    text = re.sub(r"(?<=\d),(?=\d{3}\b)", "", unicodedata.normalize("NFKC", text).casefold())
    text = re.sub(r"[^\w\s.]|\.(?!\d)", " ", text)
    return " ".join(_ARTICLES.sub(" ", text).split())
