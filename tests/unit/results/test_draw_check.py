from pathlib import Path
from typing import Any

import pytest

from a2rl.core.errors import IntegrityError
from a2rl.core.files import write_model
from a2rl.results.verify.run import check_draw
from a2rl.run.directory import RunDir
from a2rl.run.draw import Draw
from a2rl.run.events import DrawRevealed, RunOpened
from a2rl.task_api.data import drawn_digest
from tests.run_maker import spec

DRAW, OTHER = Draw(seed="1" * 64, salt="2" * 64), Draw(seed="1" * 64, salt="3" * 64)
ITEMS = drawn_digest("gsm8k", DRAW.items_seed("gsm8k"))


def opened(folder: Path, data_digest: str = ITEMS, commitment: str = DRAW.commitment, **changes: Any) -> RunDir:
    run = RunDir.create(folder / "runs", spec(**({"draw": DRAW, "split_seed": DRAW.halves_seed} | changes)))
    run.ledger.append(RunOpened(spec_digest="s", model_digest="m", data_digest=data_digest, draw=commitment))
    return run


def test_items_and_halves_that_follow_from_the_draw_are_sound(tmp_path: Path) -> None:
    run = opened(tmp_path)
    check_draw(run)
    run.ledger.append(DrawRevealed(seed=DRAW.seed, salt=DRAW.salt))
    check_draw(run)


def test_a_run_from_before_there_was_a_draw_is_sound(tmp_path: Path) -> None:
    check_draw(opened(tmp_path, commitment="", draw=None, split_seed=7))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"data_digest": "d" * 64}, "items do not follow"),
        ({"split_seed": 7}, "halves do not follow"),
        ({"commitment": OTHER.commitment}, "not the one that the run committed to"),
        ({"draw": None}, "spec.json has none"),
    ],
)
def test_whatever_does_not_follow_from_the_commitment_is_noticed(
    tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    with pytest.raises(IntegrityError, match=problem):
        check_draw(opened(tmp_path, **changes))


def test_another_seed_cannot_be_revealed(tmp_path: Path) -> None:
    run = opened(tmp_path)
    run.ledger.append(DrawRevealed(seed=OTHER.seed, salt=OTHER.salt))
    with pytest.raises(IntegrityError, match="revealed is not the one"):
        check_draw(run)


def test_spec_json_with_another_draw_is_noticed(tmp_path: Path) -> None:
    run = opened(tmp_path)
    write_model(run.root / "spec.json", spec(draw=OTHER, split_seed=OTHER.halves_seed))
    with pytest.raises(IntegrityError, match="not the one that the run committed to"):
        check_draw(RunDir(run.root))
