"""ALFWorld's data. The agent gets the training games, our engine as a package, and modules for rollouts; the grader
gets the games of the eval set and the examples for its prompts.

    visible/  train/<type>/<trial>/game.tw-pddl   alfred/ (the package)   prompts.json (full)
              model_text.py, episodes.py, rollout_workers.py, decoder/
    hidden/   games/<type>/<trial>/game.tw-pddl   prompts.json   about.json

full: the released games (alfworld 0.4.2: json_2.1.2), from GitHub or from a local mirror (see release.py). The eval set
is valid_unseen; with a mirror that lacks it, it is valid_seen, which every score states. mini: generated households
(see mini.py).
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from a2rl.core.errors import IntegrityError
from a2rl.core.files import folder_digest
from a2rl.core.hub import download
from a2rl.handout import hand_out
from a2rl.task_api.contract import Variant
from tasks.alfworld import mini
from tasks.alfworld.alfred import Game
from tasks.alfworld.alfred.transcript import Examples
from tasks.alfworld.household import Household
from tasks.alfworld.prompts import faithful, repaired
from tasks.alfworld.release import GAME, copy_split, has_split
from tasks.alfworld.task import TASK

HERE = Path(__file__).parent
MINI_TRAIN, MINI_SEED = 3000, 2604
pretraining_text, canonical = mini.pretraining_text, mini.canonical
GAMES = {"train": 3553, "valid_seen": 140, "valid_unseen": 134}
DIGESTS = {
    "train": "9995e544b3707205bae9739135c90136cb59407c2d1e7cb278be884435f6d4f2",
    "valid_seen": "15d9e96a7a15e74889893f945354e77f2230d29fd2035688b171314ee9d005d6",
}
"""Digests of the games of a split. There is none for valid_unseen, but each game must have the released rules."""


def prepare(variant: Variant, source: Path | None, visible: Path, hidden: Path) -> None:
    """See `a2rl.task_api.contract.Preparer`."""
    if variant == "mini":
        for number, household in enumerate(mini.generate(MINI_TRAIN, MINI_SEED, "train")):
            mini.write(household, visible / "train" / f"{household.kind}-{number:03d}")
        about = _write_games(_public_edition(), hidden)
        prompts: dict[str, Examples] = {"repaired": {}, "faithful": {}}
    else:
        about = _prepare_full(source, visible, hidden)
        prompts = _prompts(source, visible / "train")
        _write_prompts(prompts, visible)
    _write_prompts(prompts, hidden)
    (hidden / "about.json").write_text(json.dumps(about), encoding="utf-8")
    hand_out(visible, HERE / "alfred")


def draw(seed: str, hidden: Path) -> None:
    """See `a2rl.task_api.contract.DrawingPreparer`."""
    known = frozenset(_public_edition())
    about = _write_games(mini.generate(TASK.variant("mini").eval_items, seed, "eval", but=known), hidden)
    _write_prompts({"repaired": {}, "faithful": {}}, hidden)
    (hidden / "about.json").write_text(json.dumps(about), encoding="utf-8")


def _public_edition() -> Iterator[Household]:
    return mini.generate(TASK.variant("mini").eval_items, MINI_SEED, "eval")


def _write_games(households: Iterable[Household], hidden: Path) -> dict[str, str]:
    for number, household in enumerate(households):
        mini.write(household, hidden / "games" / f"{household.kind}-{number:03d}")
    return {"games": "generated households"}


def _prepare_full(source: Path | None, visible: Path, hidden: Path) -> dict[str, str]:
    mirror = source or download(TASK.source, TASK.source.files[0]).parent
    split = "valid_unseen" if has_split(mirror, "valid_unseen") else "valid_seen"
    for name, folder in (("train", visible / "train"), (split, hidden / "games")):
        copy_split(mirror, name, folder)
        _check(name, folder)
    return {"games": split if split == "valid_unseen" else f"{split}: this mirror has no valid_unseen"}


def _check(split: str, folder: Path) -> None:
    count = sum(1 for _ in folder.glob(f"*/*/{GAME}"))
    if count != GAMES[split] or DIGESTS.get(split, digest := folder_digest(folder)) != digest:
        raise IntegrityError(f"the {count} games of {split} are not the {GAMES[split]} released ones: get a clean copy")


def _write_prompts(prompts: dict[str, Examples], folder: Path) -> None:
    (folder / "prompts.json").write_text(json.dumps(prompts, indent=1), encoding="utf-8")


def _prompts(source: Path | None, train: Path) -> dict[str, Examples]:
    games = (Game.load(path) for path in sorted(train.glob(f"*/*/{GAME}")))
    prompts = {"repaired": repaired(games)}
    if (published := faithful(source)) is not None:
        prompts["faithful"] = published
    return prompts
