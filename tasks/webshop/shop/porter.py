"""The stemmer of Lucene's `PorterStemFilter`: Porter (1980), with three later changes by its author.

NLTK has it as well, but is too large a dependency for one function that the agent's workspace needs, too.

The changes: step 2 maps `bli` to `ble` instead of `abli` to `able`, it maps `logi` to `log`, and words of one or two
letters are unchanged. Snowball's "porter" differs. Source: tartarus.org/martin/PorterStemmer.
"""

from functools import lru_cache

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
