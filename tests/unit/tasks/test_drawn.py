"""The eval sets that are drawn from a secret seed, task by task."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a2rl.core.files import folder_digest
from a2rl.task_api.catalog import load_grader, load_preparer, task_ids
from a2rl.task_api.contract import CanonicalPreparer, DrawingPreparer, KindsGrader
from a2rl.task_api.data import SOURCE_NOTE, can_draw, drawn_digest, ensure_drawn, hidden_digest
from tests.mini_data import prepare_mini
from tests.run_maker import REPOSITORY

SEEDS = ("a" * 64, "b" * 64)
TASKS = task_ids(REPOSITORY)


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    folder = tmp_path_factory.mktemp("drawn")
    return {
        (task, seed): ensure_drawn(task, seed, folder / seed[:1] / task) / "hidden" for task in TASKS for seed in SEEDS
    }


@pytest.fixture(scope="module")
def editions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The hidden part of the public edition of each task."""
    folder = tmp_path_factory.mktemp("public")
    return {task: prepare_mini(task, folder / task)[1] for task in TASKS}


def items(task: str, hidden: Path) -> dict[str, str]:
    """Returns each item with its gold answer by id, so that equal items have equal texts."""
    gold = load_grader(task).gold_outputs(hidden)
    if (hidden / "games").exists():
        return {each: next((hidden / "games").glob(f"{each}/**/*.tw-pddl")).read_text() for each in gold}
    if not (hidden / "eval.jsonl").exists():
        return gold
    rows = [json.loads(line) for line in (hidden / "eval.jsonl").read_text().splitlines()]
    names = ("question", "prompt", "instruction", "problem")
    asked = [next(row[name] for name in names if name in row) for row in rows]
    return {each: f"{text} -> {gold[each]}" for each, text in zip(gold, asked, strict=True)}


@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_draw_its_mini_variant_and_only_that(task: str) -> None:
    assert can_draw(task, "mini")
    assert not can_draw(task, "full")


@pytest.mark.parametrize("task", TASKS)
def test_a_draw_has_the_files_number_and_kinds_of_the_public_set(
    task: str, drawn: dict[tuple[str, str], Path], editions: dict[str, Path]
) -> None:
    grader, public = load_grader(task), editions[task]
    for seed in SEEDS:
        hidden = drawn[task, seed]
        assert {each.name for each in hidden.iterdir()} == {SOURCE_NOTE, *(each.name for each in public.iterdir())}
        assert len(grader.item_ids(hidden)) == len(grader.item_ids(public))
        if isinstance(grader, KindsGrader):
            assert set(grader.item_kinds(hidden).values()) == set(grader.item_kinds(public).values())


@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_gives_the_same_bytes_and_another_others(
    task: str, drawn: dict[tuple[str, str], Path], tmp_path: Path
) -> None:
    one, other = (drawn[task, seed] for seed in SEEDS)
    again = ensure_drawn(task, SEEDS[0], tmp_path / task) / "hidden"
    assert folder_digest(again) == folder_digest(one) != folder_digest(other)
    assert drawn_digest(task, SEEDS[0]) == hidden_digest(one.parent)
    shared = set(items(task, one).values()) & set(items(task, other).values())
    assert len(shared) < 0.7 * len(items(task, one))  # the generators' pools are small


@pytest.mark.parametrize("task", ["gsm8k", "humaneval", "alpacaeval"])
def test_no_item_of_a_draw_is_public_under_other_names(
    task: str, drawn: dict[tuple[str, str], Path], editions: dict[str, Path]
) -> None:
    key = {"gsm8k": "question", "humaneval": "prompt", "alpacaeval": "instruction"}[task]
    preparer = load_preparer(task)
    assert isinstance(preparer, CanonicalPreparer)
    canonical = preparer.canonical

    def texts(hidden: Path) -> set[str]:
        return {canonical(json.loads(line)[key]) for line in (hidden / "eval.jsonl").read_text().splitlines()}

    for seed in SEEDS:
        assert texts(drawn[task, seed]).isdisjoint(texts(editions[task]))


@pytest.mark.parametrize("task", ["alfworld", "webshop", "deepsearchqa"])
def test_hardly_any_item_of_a_draw_is_in_the_public_edition(
    task: str, drawn: dict[tuple[str, str], Path], editions: dict[str, Path]
) -> None:
    public = items(task, editions[task])
    for seed in SEEDS:
        own = items(task, drawn[task, seed])
        assert len(set(own.values()) & set(public.values())) <= 0.02 * len(own)


@pytest.mark.parametrize("task", TASKS)
def test_no_file_of_a_draw_has_its_seed(task: str, drawn: dict[tuple[str, str], Path]) -> None:
    for seed in SEEDS:
        for file in drawn[task, seed].rglob("*"):
            assert not file.is_file() or seed.encode() not in file.read_bytes(), file


def test_several_runs_at_once_make_one_eval_set(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: ensure_drawn("gsm8k", SEEDS[0], tmp_path / "gsm8k"), range(4)))
    assert len({folder_digest(each) for each in made}) == 1
    assert (tmp_path / "gsm8k" / "hidden" / SOURCE_NOTE).read_text() == "drawn from a secret seed\n"
    assert not list(tmp_path.glob(".gsm8k-*"))


def test_a_preparer_without_draws_keeps_its_public_items() -> None:
    class Plain:
        def prepare(self, variant: str, source: Path | None, visible: Path, hidden: Path) -> None: ...
        def pretraining_text(self, seed: int) -> list[str]:
            return []

        def canonical(self, text: str) -> str:
            return text

    assert not isinstance(Plain(), DrawingPreparer)
