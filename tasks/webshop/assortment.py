"""What a generated shop sells: kinds of product by department, with their attributes and options."""

from collections.abc import Mapping
from typing import NamedTuple


class Department(NamedTuple):
    """A part of the shop. Kinds map a noun to its plural, which customers use."""

    path: str
    kinds: Mapping[str, str]
    attributes: tuple[str, ...]
    options: Mapping[str, tuple[str, ...]]
    """Values differ enough that the reward, which compares loosely, never confuses two of them."""


COLORS = ("black", "blue", "brown", "gray", "green", "pink", "purple", "red", "white", "yellow")
OUNCES = ("3 oz", "8 oz", "16 oz", "32 oz")
SIZES = ("small", "medium", "large")

DEPARTMENTS: Mapping[str, Department] = {
    "fashion": Department(
        "Clothing, Shoes & Jewelry",
        {
            "shirt": "shirts", "dress": "dresses", "jacket": "jackets", "sweater": "sweaters", "skirt": "skirts",
            "boot": "boots", "sandal": "sandals", "coat": "coats", "scarf": "scarves", "hat": "hats", "glove": "gloves",
        },
        ("slim fit", "machine wash", "hand wash", "quick drying", "light weight", "water resistant", "day comfort"),
        {"color": COLORS, "size": SIZES},
    ),
    "beauty": Department(
        "Beauty & Personal Care",
        {
            "shampoo": "shampoos", "lotion": "lotions", "soap": "soaps", "perfume": "perfumes", "balm": "balms",
            "toothpaste": "toothpastes", "sunscreen": "sunscreens", "conditioner": "conditioners", "serum": "serums",
        },
        ("cruelty free", "paraben free", "dry skin", "tea tree", "long lasting", "fine mist", "travel size"),
        {"scent": ("citrus", "coconut", "jasmine", "lavender", "mint", "vanilla"), "size": OUNCES},
    ),
    "electronics": Department(
        "Electronics",
        {
            "headphone": "headphones", "speaker": "speakers", "charger": "chargers", "keyboard": "keyboards",
            "tripod": "tripods", "projector": "projectors", "camera": "cameras", "tablet": "tablets",
            "monitor": "monitors", "printer": "printers",
        },
        ("fast charging", "noise cancelling", "hands free", "easy carry", "high speed", "ultra hd", "heavy duty"),
        {"color": COLORS, "style": ("basic", "classic", "deluxe")},
    ),
    "garden": Department(
        "Home & Kitchen",
        {
            "lamp": "lamps", "rug": "rugs", "chair": "chairs", "table": "tables", "pillow": "pillows",
            "curtain": "curtains", "mirror": "mirrors", "shelf": "shelves", "bench": "benches", "vase": "vases",
        },
        ("solid wood", "easy assemble", "space saving", "memory foam", "mid century", "stainless steel", "easy clean"),
        {"color": COLORS, "size": SIZES},
    ),
    "grocery": Department(
        "Grocery & Gourmet Food",
        {
            "coffee": "coffees", "tea": "teas", "cookie": "cookies", "granola": "granolas", "sauce": "sauces",
            "candy": "candies", "jerky": "jerkies", "honey": "honeys", "pretzel": "pretzels",
        },
        ("gluten free", "sugar free", "non gmo", "low carb", "fat free", "keto friendly", "nut free"),
        {"flavor": ("almond", "cherry", "ginger", "hazelnut", "maple", "pecan"), "size": OUNCES},
    ),
}  # fmt: skip

_BRANDS = """\
Alto Brio Cova Dorna Elva Fenn Garo Hale Iris Juno Kora Lumo Mira Nova Orla Pema Quip Rana Sila Tovo Ulma Vero Wren Yara
Zeno"""
BRANDS = tuple(_BRANDS.split())
