"""The engines of the tasks: games, shops and searches."""

from functools import partial
from importlib.util import find_spec
from pathlib import Path

from a2rl.core.settings import Settings
from a2rl.grading.devices import devices_of
from a2rl.grading.job import GradeJob
from a2rl.grading.pool import grade_now
from a2rl.linux.gpus import usable_gpus
from a2rl.models.base_model import resolve_model
from a2rl.task_api.catalog import load_grader, load_task
from a2rl.task_api.data import ensure_data
from tests.alfworld.verify import verify
from tests.bench.measured import Row

EPISODES = 60


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


def _episodes(task: str, settings: Settings, folder: Path) -> list[Row]:
    """Compares all episodes at once with one at a time, with and without `exact`."""
    hidden = ensure_data(task, "mini", None, settings) / "hidden"
    scores = {}
    for exact in (False, True):
        work = GradeJob(
            root=settings.root, task=task, variant="mini", hidden=hidden, model=resolve_model("tiny", settings),
            split="all", split_seed=0, limit=EPISODES, exact=exact, options=load_task(task, settings.root).choose({}),
            result=folder / f"{task}-{exact}.json", log=folder / "log",
        )  # fmt: skip
        scores[exact] = grade_now(work, settings, devices_of(usable_gpus(settings).gpus)[:1])
    batched, single = scores[False], scores[True]
    different = sum(one != other for one, other in zip(batched.items, single.items, strict=True))
    return [
        Row(
            f"{task}: {EPISODES} episodes, one at a time (exact) / all at once",
            f"{single.score.seconds / batched.score.seconds:.1f}x, {different} items differ",
        )
    ]


webshop_episodes = partial(_episodes, "webshop")
search_episodes = partial(_episodes, "deepsearchqa")
