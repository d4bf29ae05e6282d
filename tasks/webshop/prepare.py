"""WebShop's data. The agent gets a shop, goals to train on, and the shop's code as a package; the grader gets the
goals of the eval set and their shop.

    visible/  catalogue/   goals.jsonl   shop/ (the package)
              model_text.py, episodes.py, rollout_workers.py, decoder/
    hidden/   catalogue/   goals.jsonl   about.json

full: the released edition with 1,000 products, from the hub or from a local mirror (see release.py). The eval set is
the first 100 synthetic goals, as in the reference; the agent's shop lacks the products that they ask for, and it gets
the goals of all others, those that people wrote included. mini: a generated shop for each (see mini.py).
"""

import json
from collections.abc import Iterable
from pathlib import Path

from a2rl.core.files import digest_of
from a2rl.core.hub import download
from a2rl.handout import hand_out
from a2rl.task_api.contract import Variant
from tasks.webshop import mini
from tasks.webshop.release import SEED, human_goals, read_listings, split_goals, synthetic_goals
from tasks.webshop.shop import Goal, stock
from tasks.webshop.task import TASK

HERE = Path(__file__).parent
NOUNS = "words but for a list of others"
MINI_SEED, MINI_PRODUCTS, MINI_TRAIN = 2604, 1800, 1200
pretraining_text, canonical = mini.pretraining_text, mini.canonical


def prepare(variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
    """See `a2rl.task_api.contract.Preparer`."""
    about = _prepare_mini(visible, hidden) if variant == "mini" else _prepare_full(source, visible, hidden)
    (hidden / "about.json").write_text(json.dumps(about), encoding="utf-8")
    hand_out(visible, HERE / "shop")


def _prepare_mini(visible: Path, hidden: Path) -> dict[str, str]:
    train = mini.generate(MINI_PRODUCTS, MINI_TRAIN, MINI_SEED, "train", visible / "catalogue")
    _write_goals(train.goals, visible)
    return _write_shop(MINI_SEED, f"seed {MINI_SEED}", hidden)


def draw(seed: str, hidden: Path) -> None:
    """See `a2rl.task_api.contract.DrawingPreparer`. A new shop has new products, ids and prices."""
    about = _write_shop(seed, "drawn", hidden)
    (hidden / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _write_shop(seed: int | str, seed_in_words: str, hidden: Path) -> dict[str, str]:
    evaluation = mini.generate(mini.PRODUCTS, TASK.variant("mini").eval_items, seed, "eval", hidden / "catalogue")
    _write_goals(evaluation.goals, hidden)
    described = _described(evaluation.goals, seed_in_words)
    return {"prompt": "whole", "goals": described, "nouns": "given by the generator"}


def _prepare_full(source: Path | None, visible: Path, hidden: Path) -> dict[str, str]:
    mirror = source or _downloaded()
    listings = read_listings(mirror)
    evaluation, train = split_goals(synthetic_goals(listings), TASK.variant("full").eval_items)
    asked_for = {goal.product_id for goal in evaluation}
    written = [goal for goal in human_goals(listings) if goal.product_id not in asked_for]
    products = [listing.product for listing in listings]
    stock(products, hidden / "catalogue")
    stock((product for product in products if product.id not in asked_for), visible / "catalogue")
    _write_goals(evaluation, hidden)
    _write_goals([*train, *written], visible)
    return {"prompt": "window", "goals": _described(evaluation, f"seed {SEED}"), "nouns": NOUNS}


def _downloaded() -> Path:
    """Downloads the files, and returns their folder."""
    *_, last = (download(TASK.source, name) for name in TASK.source.files)
    return last.parent


def _write_goals(rows: Iterable[Goal], folder: Path) -> None:
    (folder / "goals.jsonl").write_text("".join(goal.to_json() + "\n" for goal in rows), encoding="utf-8")


def _described(evaluation: list[Goal], seed_in_words: str) -> str:
    return f"{len(evaluation)}, {seed_in_words}, sha256 {digest_of([goal.to_json() for goal in evaluation])[:16]}"
