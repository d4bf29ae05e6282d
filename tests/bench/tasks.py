"""The engine of ALFWorld."""

from importlib.util import find_spec
from pathlib import Path

from a2rl.core.settings import Settings
from a2rl.task_api.catalog import load_grader
from a2rl.task_api.data import ensure_data
from tests.alfworld.verify import verify
from tests.bench.measured import Row


def alfworld(settings: Settings, folder: Path) -> list[Row]:
    """Compares our engine with the original."""
    if find_spec("textworld") is None:
        return [Row("alfworld: TextWorld is not installed, so there is nothing to compare with", "-")]
    hidden = ensure_data("alfworld", "mini", None, settings) / "hidden"
    files = [hidden / "games" / name / "game.tw-pddl" for name in load_grader("alfworld").item_ids(hidden)[::40]]
    report, differences = verify(files, steps=20, seed=0, fast=False)
    assert not differences
    return [
        Row("alfworld: a step with its admissible commands, original / ours", f"{report.speed_ratio:.0f}x"),
        Row("alfworld: loading and starting a game, original / ours", f"{report.load_ratio:.0f}x"),
    ]
