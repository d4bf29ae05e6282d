"""Splits text into terms as WebShop's search engine does: Anserini's `DefaultEnglishAnalyzer` on Lucene 8.11.

No Python library has this analyzer; the original needs Java.

It finds Unicode's word boundaries (UAX #29), removes possessives, lowers case, drops 33 stop words and stems (Porter):
"the Men's 3.5-oz. lotions™" becomes `men`, `3.5`, `oz`, `lotion`, `™`.
"""

import re

import regex

from .porter import stem

MAX_TOKEN = 255
"""Lucene cuts a longer word into pieces."""

_STOP_WORDS = """\
a an and are as at be but by for if in into is it no not of on or such that the their then there these they this to was
will with"""
STOP_WORDS = frozenset(_STOP_WORDS.split())


_ASCII = re.compile(
    # Words, numbers and mixtures: one of .' or : joins letters, one of .',; joins digits, _ joins anything.
    r"(?<!_)_*+[A-Za-z0-9]\w*(?:(?<=[A-Za-z])[.':](?=[A-Za-z])\w+|(?<=[0-9])[.',;](?=[0-9])\w+)*",
    re.ASCII,
)

_PICTOGRAPHS = (
    r"\u00A9\u00AE\u203C\u2049\u2122\u2139\u2194-\u2199\u21A9\u21AA\u231A\u231B\u2328\u2388\u23CF\u23E9-\u23F3\u23F8-\u23FA"
    r"\u24C2\u25AA\u25AB\u25B6\u25C0\u25FB-\u25FE\u2600-\u2605\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716"
    r"\u271D\u2721\u2728\u2733\u2734\u2744\u2747\u274C\u274E\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27A1\u27B0\u27BF"
    r"\u2934\u2935\u2B05-\u2B07\u2B1B\u2B1C\u2B50\u2B55\u3030\u303D\u3297\u3299\U0001F000-\U0001F0FF\U0001F10D-\U0001F10F"
    r"\U0001F12F\U0001F16C-\U0001F171\U0001F17E\U0001F17F\U0001F18E\U0001F191-\U0001F19A\U0001F1AD-\U0001F1E5"
    r"\U0001F201-\U0001F20F\U0001F21A\U0001F22F\U0001F232-\U0001F23A\U0001F23C-\U0001F23F\U0001F249-\U0001F3FA"
    r"\U0001F400-\U0001F53D\U0001F546-\U0001F64F\U0001F680-\U0001F6FF\U0001F774-\U0001F77F\U0001F7D5-\U0001F7FF"
    r"\U0001F80C-\U0001F80F\U0001F848-\U0001F84F\U0001F85A-\U0001F85F\U0001F888-\U0001F88F\U0001F8AE-\U0001F8FF"
    r"\U0001F90C-\U0001F93A\U0001F93C-\U0001F945\U0001F947-\U0001FFFD"
)
"""Unicode's Extended_Pictographic as Lucene 8.11 knows it; later editions of Unicode have fewer of them."""


def _unicode_words() -> "regex.Pattern[str]":
    """Returns the same pattern for all of Unicode; marks and format characters belong to the preceding character."""
    tail = r"[\p{WB=Format}\p{WB=Extend}\p{WB=ZWJ}]*"
    letter = rf"(?:[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}--\p{{Lb=SA}}]{tail})"
    digit = rf"(?:[\p{{WB=Numeric}}\uFF10-\uFF19]{tail})"
    underscore = rf"(?:\p{{WB=ExtendNumLet}}{tail})"
    katakana = rf"(?:\p{{WB=Katakana}}{tail})"
    in_word, in_number = (
        rf"(?:[{extra}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{tail})"
        for extra in (r"\p{WB=MidLetter}", r"\p{WB=MidNum}")
    )
    letters = rf"{letter}(?:{in_word}?{letter})*"
    digits = rf"{digit}(?:{in_number}?{digit})*"
    run = rf"(?:{letters}|{digits})+"
    pictograph = rf"[{_PICTOGRAPHS}][\p{{EMod}}\uFE0F]*"
    return regex.compile(
        rf"(?<!{underscore}){underscore}*+(?:{run}|{katakana}+)(?:{underscore}+(?:{run}|{katakana}+))*{underscore}*"
        rf"|[\p{{Lb=SA}}&&\p{{L}}][\p{{Lb=SA}}\p{{WB=Extend}}\p{{WB=Format}}]*"
        rf"|[\p{{Han}}\p{{Hiragana}}]{tail}"
        rf"|\p{{RI}}\p{{RI}}|[0-9#*]\uFE0F?\u20E3"
        rf"|{pictograph}(?:\u200D{pictograph})*",
        regex.V1,
    )


_UNICODE = _unicode_words()
_POSSESSIVES = tuple(mark + letter for mark in "'\u2019\uff07" for letter in "sS")


def words(text: str) -> list[str]:
    """Returns the words of a text, unchanged."""
    found = _ASCII.findall(text) if text.isascii() else _UNICODE.findall(text)
    if len(text) <= MAX_TOKEN:
        return found
    return [word[start : start + MAX_TOKEN] for word in found for start in range(0, len(word), MAX_TOKEN)]


def term(word: str) -> str:
    """Returns the term that a word is indexed as; empty for a stop word."""
    if word.endswith(_POSSESSIVES):
        word = word[:-2]
    word = word.lower()
    return "" if word in STOP_WORDS else stem(word)


def terms(text: str) -> list[str]:
    """Returns the terms of a text, in order."""
    return [found for word in words(text) if (found := term(word))]
