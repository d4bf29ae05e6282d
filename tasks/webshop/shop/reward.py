"""The reward of a purchase, 0 to 1, as WebShop defines it (web_agent_site/engine/goal.py at 64fa2a5).

    reward = r_type * (attributes had + options had + (price <= limit)) / (attributes + options + 1)

`r_type` compares the kinds of product. It is 1, or 0.5 where neither the query nor two steps of the category path nor a
fifth of the title's nouns agree; at most 0.1 where less than a tenth of the nouns do, and 0 where none does. Two
peculiarities are part of the definition. Of a chosen option only the first colour *inside* it counts, alphabetically
("dark red" is `dark`, "standard" is `tan`), while an option of a synthetic goal is a colour only as a whole. And a goal
without nouns has a title score of 0.2.

Texts are compared by `token_set_ratio` of thefuzz 0.19 on difflib, as in the original. Later releases of thefuzz
compute other ratios, and a reward must not change with a release. With python-Levenshtein installed, thefuzz rounds
some ratios differently; none of 20,000 decisions "above 85" did.
"""

import re
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from functools import lru_cache

from .catalogue import PATH_MARK, Goal, Product

ALIKE = 85
"""Texts with a similarity above this, of 100, count as equal."""
_COLORS = """\
alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo caramel
champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal dark denim
eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo ivory ivy khaki
lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor mushroom mustard
natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand sapphire seashell silver
skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut wheat white wine yellow"""
COLORS = tuple(_COLORS.split())
"""WebShop's list in its order; the first match counts."""


def reward(product: Product, goal: Goal, chosen: Mapping[str, str]) -> float:
    """Returns the reward of buying a product for a goal; `chosen` has the value of each option by name."""
    attributes = count_attributes(product, goal.attributes)
    options = count_options(list(chosen.values()), goal.options)
    price = product.price <= goal.price_upper
    had, wanted = attributes + options + price, len(goal.attributes) + len(goal.options) + 1
    return had / wanted * match_type(product, goal)


def match_type(product: Product, goal: Goal) -> float:
    """Returns `r_type`: how well the kind of a product fits a goal."""
    query_match = product.query == goal.query
    category_match = len(_steps(product.product_category) & _steps(goal.product_category)) >= 2
    shared = len(set(product.nouns) & set(goal.nouns))
    title_score = shared / len(goal.nouns) if goal.nouns else 0.2
    if title_score < 0.1:
        return 0.1 if title_score else 0.0
    return 1.0 if query_match or category_match or title_score > 0.2 else 0.5


def count_attributes(product: Product, wanted: Sequence[str]) -> int:
    """Returns how many of the attributes the product has, in its list of attributes or in its texts."""
    texts = [text.lower() for text in (product.title, " ".join(product.bullets), product.description)]
    return sum(
        any(token_set_ratio(had, each) > ALIKE for had in product.attributes) or any(each in text for text in texts)
        for each in wanted
    )


def count_options(chosen: Sequence[str], wanted: Mapping[str, str] | Sequence[str]) -> int:
    """Returns how many of the wanted options are among those chosen."""
    plain = [color_or_all(option) for option in chosen]
    names = [_named(*pair) for pair in wanted.items()] if isinstance(wanted, Mapping) else map(color_or_all, wanted)
    return sum(any(token_set_ratio(option, name) > ALIKE for option in plain) for name in names)


def color_or_all(option: str) -> str:
    """Returns the first colour of the list that the text contains, else the text."""
    return next((color for color in COLORS if color in option), option)


def _named(name: str, value: str) -> str:
    """Returns an option as the original compares it: a colour if name or value is one, else the pair as text."""
    return next((color for color in COLORS if color in (name, value)), str((name, value)))


def _steps(path: str) -> set[str]:
    return {step.strip() for step in path.split(PATH_MARK)}


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
