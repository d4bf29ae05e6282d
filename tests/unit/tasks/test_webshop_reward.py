"""Tests WebShop's reward, with cases computed by hand from its definition (web_agent_site/engine/goal.py)."""

from collections.abc import Mapping

import pytest

from tasks.webshop.shop.catalogue import PATH_MARK, Goal, Product
from tasks.webshop.shop.reward import color_or_all, count_attributes, count_options, match_type, reward, token_set_ratio

TEN = tuple("abcdefghij")
TWENTY = tuple(f"noun{number}" for number in range(20))


def path(*steps: str) -> str:
    return f" {PATH_MARK} ".join(steps)


def product(**changes: object) -> Product:
    usual = {
        "id": "B1", "title": "Acme Shirt", "price": 30.0, "price_tag": "$30.0", "category": "fashion",
        "query": "shirts", "product_category": path("Clothing", "Tops", "Shirts"), "nouns": ("acme", "shirt"),
    }  # fmt: skip
    return Product(**usual | changes)  # type: ignore[arg-type]


def goal(**changes: object) -> Goal:
    usual = {
        "id": "g", "product_id": "B1", "instruction": "find me shirts", "attributes": ("slim fit",), "options": {},
        "price_upper": 40.0, "query": "shirts", "product_category": path("Clothing", "Tops", "Shirts"),
        "nouns": ("acme", "shirt"),
    }  # fmt: skip
    return Goal(**usual | changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("query", "category", "had", "wanted", "expected"),
    [
        # the same query, two common steps of the path, or more than a fifth of the nouns: the right kind
        ("shirts", path("Clothing", "Tops", "Shirts"), ("acme", "shirt"), ("acme", "shirt"), 1.0),
        ("shirts", path("Garden", "Tools"), ("acme", "shirt"), ("acme", "shirt"), 1.0),
        ("hoes", path("Shirts", "Clothing", "Tops"), ("acme", "shirt"), ("acme", "shirt"), 1.0),
        ("hoes", path("Clothing", "Hoes", "Tops"), ("a",), TEN, 1.0),
        ("hoes", path("Clothing", "Clothing", "Hoes"), ("a", "b", "c"), TEN, 1.0),
        ("hoes", path("Clothing", "Hoes"), ("a", "b"), TEN, 0.5),
        ("hoes", path("Garden"), ("a",), TEN, 0.5),
        ("hoes", path("Garden"), ("a", "b", "c"), TEN, 1.0),
        # the nouns can reduce the whole reward
        ("shirts", path("Clothing", "Tops"), ("noun0",), TWENTY, 0.1),
        ("hoes", path("Garden"), ("noun0",), TWENTY, 0.1),
        ("shirts", path("Clothing", "Tops"), ("x",), TEN, 0.0),
        ("hoes", path("Garden"), ("x",), TEN, 0.0),
        ("shirts", path("Clothing", "Tops"), (), TEN, 0.0),
        # no nouns wanted: counts as a fifth, which is not more than a fifth
        ("hoes", path("Garden"), ("acme",), (), 0.5),
        ("shirts", path("Garden"), ("acme",), (), 1.0),
        ("hoes", path("Clothing", "Tops"), (), (), 1.0),
        # a repeated noun counts once in the product, but each time in the goal
        ("hoes", path("Garden"), ("a",), ("a", "a", "a", "a"), 1.0),
        ("hoes", path("Garden"), ("a", "a", "a"), ("a", "b", "c", "d", "e"), 0.5),
        # steps are trimmed; one step in common is not enough; an empty path has one step
        ("hoes", f"Clothing{PATH_MARK}Tops  ", ("a",), TEN, 1.0),
        ("hoes", "", ("a",), TEN, 0.5),
    ],
)
def test_the_kind_of_thing(
    query: str, category: str, had: tuple[str, ...], wanted: tuple[str, ...], expected: float
) -> None:
    bought = product(query=query, product_category=category, nouns=had)
    assert match_type(bought, goal(nouns=wanted)) == expected


@pytest.mark.parametrize(
    ("wanted", "had", "texts", "expected"),
    [
        (("tea tree", "dry skin"), ("tea tree", "dry skin"), {}, 2),
        (("essential oils",), ("essential oil",), {}, 1),  # 13 of 14 letters
        (("tea tree",), ("tree tea",), {}, 1),  # in any order
        (("tea tree",), ("pure tea tree oil",), {}, 1),  # all wanted words, among others
        (("pure tea tree oil",), ("tea tree",), {}, 1),  # or the other way round
        (("tea tree",), ("tea bag",), {}, 0),  # 'tea' against 'tea tree': 55
        (("Tea-Tree!",), ("tea tree",), {}, 1),  # punctuation and case do not count in the list
        (("tea tree",), (), {}, 0),
        (("tea tree",), (), {"title": "Soap with Tea Tree"}, 1),
        (("tea tree",), (), {"bullets": ("cleans", "made of TEA TREE oil")}, 1),
        (("tea tree",), (), {"description": "from a tea tree."}, 1),
        (("tea tree",), (), {"bullets": ("tea", "tree")}, 1),  # features are joined by a space
        (("tea tree",), (), {"title": "tea", "description": "tree"}, 0),
        (("tea tree",), (), {"title": "Soap with tea-tree"}, 0),  # in a text, only exact matches count
        (("Tea Tree",), (), {"title": "Soap with Tea Tree"}, 0),  # and only the text is lowercased
        (("oil",), (), {"title": "Foil"}, 1),  # as part of a word
        (("tea tree", "dry skin"), ("tea tree",), {"title": "For Dry Skin"}, 2),
        (("tea tree", "tea tree"), ("tea tree",), {}, 2),
    ],
)
def test_attributes(wanted: tuple[str, ...], had: tuple[str, ...], texts: dict[str, object], expected: int) -> None:
    assert count_attributes(product(attributes=had, **texts), wanted) == expected


@pytest.mark.parametrize(
    ("chosen", "wanted", "expected"),
    [
        # goals written by people: only values
        (["xl", "pack of 12"], ("xl", "pack of 12"), 2),
        (["pack of 12", "xl"], ("xl",), 1),
        (["blue", "xl"], ("grey", "xl"), 1),
        (["powder snow"], ("cool powder snow",), 1),
        ([], ("xl",), 0),
        (["xl"], (), 0),
        (["navy blue"], ("light blue",), 1),  # both are blue, which comes before light and navy
        (["dark red"], ("dark blue",), 0),  # dark and blue
        (["teal blue"], ("sky blue",), 1),  # blue and blue
        (["pack of 3"], ("pack of 6",), 1),  # 'of pack 3' against 'of pack 6': 89
        (["8 oz"], ("3 oz",), 0),
        (["standard"], ("tan",), 1),  # s-tan-dard
        (["rectangular"], ("standard",), 1),  # both tan
        # synthetic goals: pairs, and a colour matches only as a whole
        (["red"], {"color": "red"}, 1),
        (["dark red"], {"color": "red"}, 0),  # dark and red
        (["navy blue"], {"color": "navy blue"}, 1),  # 'blue' is a word of ('color', 'navy blue')
        (["light blue"], {"color": "navy blue"}, 1),  # so is this 'blue'
        (["fashion black woman"], {"color": "fashion black woman"}, 0),  # f-ash-ion, which is not one of the words
        (["r.brown2070"], {"color": "r.brown2070"}, 0),  # brown, which is not one of the words
        (["small"], {"size": "small"}, 1),
        (["size"], {"size": "small"}, 1),  # the option's name counts like any other word
        (["large"], {"size": "x-large"}, 1),
        (["x-large"], {"size": "large"}, 0),  # 'large x' against 'large size': 82
        (["red", "small"], {"color": "red", "size": "small"}, 2),
        (["red"], {"color": "red", "size": "small"}, 1),
        (["anything"], {"red": "blue"}, 0),
    ],
)
def test_options(chosen: list[str], wanted: Mapping[str, str] | tuple[str, ...], expected: int) -> None:
    assert count_options(chosen, wanted) == expected


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("red", "red", 100),
        ("red", "Red!", 100),
        ("a b", "b a", 100),
        ("a b c", "b", 100),
        ("abcd", "abcx", 75),
        ("ab", "cd", 0),
        ("", "", 0),
        ("!!", "!!", 0),
        ("red", "", 0),
        ("essential oils", "essential oil", 96),  # 2 * 13 of 27 letters
        ("caf\u00e9", "caf", 100),  # non-ASCII characters of Latin-1 are dropped
        ("\u7ea2 a", "a", 100),  # those beyond Latin-1 are kept
        ("new york mets", "new york yankees", 76),  # 'new york' with 'new york mets': 2 * 8 of 21
    ],
)
def test_how_alike_texts_are(left: str, right: str, expected: int) -> None:
    assert token_set_ratio(left, right) == token_set_ratio(right, left) == expected


@pytest.mark.parametrize(
    ("bought", "wanted", "chosen", "expected"),
    [
        ({"attributes": ("slim fit",)}, {}, {}, 1.0),  # 1 attribute, the price: 2 of 2
        ({}, {}, {}, 1 / 2),
        ({"attributes": ("slim fit",), "price": 40.0}, {}, {}, 1.0),  # the limit itself is allowed
        ({"attributes": ("slim fit",), "price": 40.01}, {}, {}, 1 / 2),
        ({"price": 50.0}, {}, {}, 0.0),
        ({"attributes": ("slim fit",)}, {"options": {"color": "red", "size": "small"}}, {}, 2 / 4),
        ({"attributes": ("slim fit",)}, {"options": {"color": "red", "size": "small"}}, {"color": "red"}, 3 / 4),
        ({"attributes": ("slim fit",)}, {"options": ("red",)}, {"color": "red"}, 1.0),
        ({"attributes": ("slim fit",)}, {"options": ("red",)}, {"any name": "red"}, 1.0),
        ({"attributes": ("slim fit",), "nouns": ("hoe",)}, {}, {}, 0.0),  # a completely different kind of product
        ({"attributes": ("slim fit",), "nouns": ("noun0",)}, {"nouns": TWENTY}, {}, 0.1),
        (
            {"attributes": ("slim fit",), "nouns": ("a",), "query": "hoes", "product_category": "Garden"},
            {"nouns": TEN},
            {},
            0.5,
        ),
        ({"attributes": ("slim fit",)}, {"attributes": ("slim fit", "dry skin")}, {}, 2 / 3),
    ],
)
def test_the_whole_reward(
    bought: dict[str, object], wanted: dict[str, object], chosen: dict[str, str], expected: float
) -> None:
    assert reward(product(**bought), goal(**wanted), chosen) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("option", "expected"),
    [("red", "red"), ("bright red", "red"), ("dark red", "dark"), ("covered", "red"), ("xl", "xl"), ("", "")],
)
def test_an_options_colour_is_the_alphabets_first_inside_it(option: str, expected: str) -> None:
    assert color_or_all(option) == expected
