"""Splits text into terms as WebShop's search engine does: Anserini's `DefaultEnglishAnalyzer` on Lucene 8.11.

No Python library has this analyzer; the original needs Java.

It finds Unicode's word boundaries (UAX #29), removes possessives, lowers case, drops 33 stop words and stems:
"the Men's 3.5-oz. lotions™" becomes `men`, `3.5`, `oz`, `lotion`, `™`. The stemmer is that of Lucene's
`PorterStemFilter`: Porter (1980), with three later changes by its author (tartarus.org/martin/PorterStemmer). Step 2
maps `bli` to `ble` instead of `abli` to `able`, it maps `logi` to `log`, and words of one or two letters are unchanged.
Snowball's "porter" differs, and NLTK, which has it as well, is too large a dependency for one function that the
agent's workspace needs, too.
"""

import re
from functools import lru_cache

import regex

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


_STEP_2 = {
    "ational": "ate", "tional": "tion", "enci": "ence", "anci": "ance", "izer": "ize", "bli": "ble", "alli": "al",
    "entli": "ent", "eli": "e", "ousli": "ous", "ization": "ize", "ation": "ate", "ator": "ate", "alism": "al",
    "iveness": "ive", "fulness": "ful", "ousness": "ous", "aliti": "al", "iviti": "ive", "biliti": "ble", "logi": "log",
}  # fmt: skip
_STEP_3 = {"icate": "ic", "ative": "", "alize": "al", "iciti": "ic", "ical": "ic", "ful": "", "ness": ""}
_STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip
_LONGEST_FIRST = sorted(_STEP_4, key=len, reverse=True)


@lru_cache(maxsize=1 << 18)
def stem(word: str) -> str:
    """Returns the stem of a lower-case word; characters other than English letters count as consonants."""
    if len(word) < 3:
        return word
    word = _inflection(_plural(word))
    if word[-1] == "y" and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replaced(word, _STEP_2)
    word = _replaced(word, _STEP_3)
    return _final_e(_bare(word))


def _plural(word: str) -> str:
    if not word.endswith("s"):
        return word
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word if word.endswith("ss") else word[:-1]


def _inflection(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) > 0 else word
    if not word.endswith(("ed", "ing")):
        return word
    rest = word[: -3 if word.endswith("ing") else -2]
    if not _has_vowel(rest):
        return word
    word = rest
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _doubled(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _short(word) else word


def _replaced(word: str, endings: dict[str, str]) -> str:
    """Replaces the longest of the endings, if a vowel and then a consonant come before it."""
    if not word.endswith(tuple(endings)):
        return word
    for length in range(min(7, len(word)), 2, -1):
        replacement = endings.get(word[-length:])
        if replacement is not None:
            return word[:-length] + replacement if _measure(word[:-length]) > 0 else word
    return word


def _bare(word: str) -> str:
    if not word.endswith(_STEP_4):
        return word
    ending = next(each for each in _LONGEST_FIRST if word.endswith(each))
    rest = word[: -len(ending)]
    if _measure(rest) < 2 or (ending == "ion" and not rest.endswith(("s", "t"))):
        return word
    return rest


def _final_e(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _short(word[:-1])):
            word = word[:-1]
    if word.endswith("ll") and _measure(word[:-1]) > 1:
        word = word[:-1]
    return word


def _shape(word: str) -> str:
    """'v' or 'c' for each letter; y is a vowel after a consonant."""
    shape = ""
    for letter in word:
        shape += "v" if letter in "aeiou" or (letter == "y" and shape.endswith("c")) else "c"
    return shape


def _measure(word: str) -> int:
    """How many times a vowel is followed by a consonant."""
    return _shape(word).count("vc")


def _has_vowel(word: str) -> bool:
    return "v" in _shape(word)


def _doubled(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _shape(word)[-1] == "c"


def _short(word: str) -> bool:
    """Ends consonant, vowel, consonant, the last none of w, x, y."""
    return _shape(word)[-3:] == "cvc" and word[-1] not in "wxy"
