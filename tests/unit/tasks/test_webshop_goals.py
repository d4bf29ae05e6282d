"""Tests the real catalogue and the goals made from it, from any folder."""

import json
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import IntegrityError, UsageError
from a2rl.core.files import file_digest
from a2rl.scoring.score import summarise
from tasks.webshop import grade, prepare, release
from tasks.webshop.release import Listing, Wish, nouns, read_listings
from tasks.webshop.shop import Product, Shop
from tasks.webshop.task import TASK

RAW: dict[str, Any] = {
    "asin": "B1", "name": "Acme Shirt", "full_description": "A shirt.", "small_description": ["red", "slim"],
    "pricing": "$10.50", "customization_options": {"Color": [{"value": " Red/Blue "}, {"value": "TAN"}], "Fit": None},
    "category": "fashion", "query": " Shirts ", "product_category": "Tops",
}  # fmt: skip


def mirror_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *items: dict[str, Any]) -> Path:
    """Makes a mirror with these products; their digests are not checked."""
    (folder / release.ITEMS).write_text(json.dumps(items))
    (folder / release.INSTRUCTIONS).write_text(
        json.dumps(
            {"B1": {"attributes": ["slim"], "instruction": "Find me slim shirts", "instruction_attributes": ["slim"]}}
        )
    )
    wish = {"instruction": "i want it.", "instruction_attributes": ["slim"], "instruction_options": ["tan"]}
    (folder / release.HUMAN).write_text(json.dumps({"B1": [wish, wish | {"instruction_attributes": []}]}))
    monkeypatch.setattr(release, "DIGESTS", {path.name: file_digest(path) for path in folder.iterdir()})
    return folder


def test_a_released_product_is_read_as_the_original_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirror_of(tmp_path, monkeypatch, RAW, RAW, RAW | {"asin": "nan"}, RAW | {"asin": "B1234567890"})
    [listing] = read_listings(mirror)
    assert listing.product == Product(
        id="B1", title="Acme Shirt", price=10.5, price_tag="$10.5", category="fashion", query="shirts",
        product_category="Tops", description="A shirt.", bullets=("red", "slim"),
        options={"color": ("red | blue", "tan")}, attributes=("slim",), nouns=("acme", "shirt"),
    )  # fmt: skip
    assert listing.product.text == "acme shirt a shirt. red color: red | blue, tan"
    assert listing.synthetic == Wish("Find me slim shirts", ("slim",))
    assert len(listing.human) == 2


@pytest.mark.parametrize(
    ("pricing", "tag"),
    [("", "$100.0"), (None, "$100.0"), ("$1,234.50", "$1234.5"), ("$5.00 - $7.50", "$5.0 to $7.5")],
)
def test_price_tags(pricing: str | None, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirror_of(tmp_path, monkeypatch, RAW | {"pricing": pricing})
    [listing] = read_listings(mirror)
    assert listing.product.price_tag == tag
    low, *_, high = [float(price.removeprefix("$")) for price in tag.split(" to ") * 2]
    assert low <= listing.product.price <= high


def test_a_mirror_that_lacks_a_file_or_holds_another_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="a mirror of WebShop holds"):
        read_listings(tmp_path)
    mirror = mirror_of(tmp_path, monkeypatch, RAW)
    (mirror / release.INSTRUCTIONS).write_text("{}")
    with pytest.raises(IntegrityError, match="not the released file"):
        read_listings(mirror)


def test_a_mirror_with_something_else_in_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mirror = mirror_of(tmp_path, monkeypatch, {"asin": "B1", "name": "no price"})
    with pytest.raises(IntegrityError, match="not WebShop's"):
        read_listings(mirror)


def listing(number: int, price: float = 12.0) -> Listing:
    product = Product(
        id=f"B{number}", title="Shirt", price=price, price_tag=f"${price}", category="fashion", query="shirts",
        product_category="Tops", options={"size": ("s", "m"), "color": ("red", "blue", "tan")}, nouns=("shirt",),
    )  # fmt: skip
    written = Wish("i want a shirt.", ("slim",), ("red",))
    return Listing(product, Wish("Find me slim shirts", ("slim",)), (written, written._replace(attributes=())))


def test_each_combination_of_options_makes_a_synthetic_goal() -> None:
    made = release.synthetic_goals([listing(1)])
    assert sorted(goal.id for goal in made) == [f"B1-{number:03d}" for number in range(1, 7)]
    assert {tuple(goal.options.items()) for goal in made if isinstance(goal.options, dict)} == {
        (("color", color), ("size", size)) for color in ("red", "blue", "tan") for size in ("s", "m")
    }
    limit = made[0].price_upper
    assert limit in (30, 40, 50)  # the larger of two of 20, 30, 40, 50
    assert {goal.price_upper for goal in made} == {limit}
    first = next(goal for goal in made if goal.id == "B1-001")
    assert first.instruction == (
        f"Find me slim shirts with color: red, and size: s, and price lower than {limit:.2f} dollars"
    )


def test_a_goal_that_people_wrote_says_its_options_itself() -> None:
    [goal] = release.human_goals([listing(1)])
    assert goal.instruction.startswith("i want a shirt, and price lower than ")
    assert (goal.options, goal.attributes) == (("red",), ("slim",))


def test_what_is_dearer_than_all_limits_has_none() -> None:
    [goal, *_] = release.synthetic_goals([listing(1, price=985.0)])
    assert (goal.price_upper, goal.instruction.count("price")) == (release.NO_LIMIT, 0)


def test_goals_are_frozen() -> None:
    listings = [listing(number) for number in range(9)]
    assert release.synthetic_goals(listings) == release.synthetic_goals(listings)


def test_training_goals_are_about_other_products() -> None:
    made = release.synthetic_goals([listing(number) for number in range(9)])
    evaluation, train = release.split_goals(made, 10)
    assert evaluation == made[:10]
    assert not {goal.product_id for goal in evaluation} & {goal.product_id for goal in train}
    assert train


def test_nouns_are_the_words_that_are_on_no_list() -> None:
    found = nouns("Set of 2 Men's Slim-Fit Shirts for the Gym, 12oz S10")
    assert found == ("set", "men", "slim", "fit", "shirts", "gym", "12oz", "s10")


def test_the_real_catalogue_has_as_many_goals_as_the_original(shared_data: Path) -> None:
    listings = read_listings(shared_data / "webshop")
    assert (len(listings), len(release.synthetic_goals(listings)), len(release.human_goals(listings))) == (
        1000,
        6910,
        13,
    )


def test_the_full_variant_is_prepared_from_a_mirror(shared_data: Path, tmp_path: Path) -> None:
    visible, hidden = tmp_path / "visible", tmp_path / "hidden"
    visible.mkdir()
    hidden.mkdir()
    prepare.prepare("full", shared_data / "webshop", visible, hidden)
    evaluation, train = (set(grade.item_ids(folder)) for folder in (hidden, visible))
    assert (len(evaluation), len(train & evaluation)) == (100, 0)
    assert len(train) > 2000
    asked_for = {name.partition("-")[0] for name in evaluation}
    shops = [Shop(folder / "catalogue") for folder in (hidden, visible)]
    sold = [{shop.product(number).id for number in range(len(shop))} for shop in shops]
    assert sold[0] - sold[1] == asked_for
    score = summarise(
        grade.score_outputs(grade.gold_outputs(hidden), hidden, grade.item_ids(hidden), TASK.variant("full").limits)
    )
    assert score.score == 100
    # By the reward's definition, some values do not match even their own product: "fashion" is "ash".
    assert score.measures["mean reward"] > 0.99
