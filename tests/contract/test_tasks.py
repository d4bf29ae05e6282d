"""Tests the contract of every task folder."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest

from a2rl.core.files import folder_digest
from a2rl.core.settings import Settings
from a2rl.grading.job import score_items, selected_ids
from a2rl.results.mlflow.tracking import Tracker
from a2rl.run.records import BaselineRecord
from a2rl.scoring.paired import compare, mean_difference
from a2rl.scoring.score import ItemResult, summarise
from a2rl.task_api.catalog import load_grader, load_preparer, load_task, task_ids
from a2rl.task_api.contract import Grader, HeadlineGrader, KindsGrader, Task
from a2rl.task_api.split import split_ids
from tests.mini_data import prepare_mini
from tests.run_maker import make_run, prepare_mlflow

REPOSITORY = Path(__file__).resolve().parents[2]
SHORTEST_TEXT = 25
"""Texts below this length (a number, a name) may well be in both halves of the data."""


class Prepared(NamedTuple):
    """A task and its mini data."""

    task: Task
    grader: Grader
    visible: Path
    hidden: Path


@pytest.fixture(scope="module", params=task_ids(REPOSITORY))
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp(request.param)
    return Prepared(
        load_task(request.param, REPOSITORY), load_grader(request.param), *prepare_mini(request.param, folder)
    )


@pytest.fixture(scope="module")
def gold(prepared: Prepared) -> dict[str, str]:
    return prepared.grader.gold_outputs(prepared.hidden)


def judged(prepared: Prepared, outputs: dict[str, str]) -> list[ItemResult]:
    return prepared.grader.score_outputs(outputs, prepared.hidden, prepared.grader.item_ids(prepared.hidden))


def questions(folder: Path) -> set[str]:
    """Returns the questions in a folder's data; all texts of rows without a question; for games, the rooms."""
    found = {json.loads(path.read_text())["pddl_problem"] for path in folder.rglob("*.tw-pddl")}
    for path in folder.rglob("*.jsonl"):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            asked = [row[key] for key in ("question", "prompt", "problem", "instruction", "goal") if key in row]
            found |= {text for text in asked or row.values() if isinstance(text, str) and len(text) >= SHORTEST_TEXT}
    return found


def test_the_eval_set_has_the_size_that_the_task_says(prepared: Prepared) -> None:
    assert len(prepared.grader.item_ids(prepared.hidden)) == prepared.task.mini.eval_items


def test_item_ids_are_unique_texts(prepared: Prepared) -> None:
    ids = prepared.grader.item_ids(prepared.hidden)
    assert len(set(ids)) == len(ids)
    assert all(isinstance(each, str) and each for each in ids)


def test_the_agent_sees_no_question_of_the_eval_set(prepared: Prepared) -> None:
    hidden, visible = questions(prepared.hidden), questions(prepared.visible)
    assert hidden
    assert visible
    assert not hidden & visible


def test_no_hidden_file_is_given_to_the_agent(prepared: Prepared) -> None:
    hidden = {path.read_bytes() for path in prepared.hidden.rglob("*") if path.is_file() and path.stat().st_size > 2}
    assert not any(path.read_bytes() in hidden for path in prepared.visible.rglob("*") if path.is_file())
    assert not any(path.is_symlink() for path in prepared.visible.rglob("*"))


def test_preparing_twice_gives_the_same_files(prepared: Prepared, tmp_path: Path) -> None:
    visible, hidden = prepare_mini(prepared.task.id, tmp_path / "again")
    assert folder_digest(visible) == folder_digest(prepared.visible)
    assert folder_digest(hidden) == folder_digest(prepared.hidden)


def test_a_perfect_model_scores_100(prepared: Prepared, gold: dict[str, str]) -> None:
    score = summarise(judged(prepared, gold))
    assert score.score == 100
    assert score.correct == score.total == prepared.task.mini.eval_items


def test_empty_answers_score_0(prepared: Prepared, gold: dict[str, str]) -> None:
    score = summarise(judged(prepared, dict.fromkeys(gold, "")))
    assert score.score == 0
    assert score.errored == 0


def test_answers_that_are_missing_are_errored_and_leave_no_score(prepared: Prepared) -> None:
    items = judged(prepared, {})
    assert {item.verdict for item in items} == {"errored"}
    assert all(item.reason for item in items)
    assert summarise(items).score is None


def test_another_items_answer_is_no_way_to_100(prepared: Prepared, gold: dict[str, str]) -> None:
    ids = list(gold)
    shifted = dict(zip(ids, [*list(gold.values())[1:], gold[ids[0]]], strict=True))
    score = summarise(judged(prepared, shifted)).score
    assert score is not None
    assert score < 50


def test_judging_twice_gives_the_same_results(prepared: Prepared, gold: dict[str, str]) -> None:
    outputs = {each: text if place % 3 else "" for place, (each, text) in enumerate(gold.items())}
    assert judged(prepared, outputs) == judged(prepared, outputs)


def test_there_is_one_result_for_each_id_and_the_counts_add_up(prepared: Prepared, gold: dict[str, str]) -> None:
    ids = split_ids(prepared.grader.item_ids(prepared.hidden), "private", seed=1)
    outputs = {each: gold[each] if place % 2 else "no idea" for place, each in enumerate(ids) if place % 5}
    items = prepared.grader.score_outputs(outputs, prepared.hidden, ids)
    assert [item.id for item in items] == ids
    score = summarise(items)
    assert score.correct + score.wrong + score.truncated + score.errored == score.total == len(ids)
    assert all(0 <= item.value <= 1 for item in items)


def test_both_halves_of_the_eval_set_have_as_many_of_each_kind(prepared: Prepared) -> None:
    grader = prepared.grader
    assert isinstance(grader, KindsGrader)
    kinds = grader.item_kinds(prepared.hidden)
    assert kinds.keys() == set(grader.item_ids(prepared.hidden))
    assert len(set(kinds.values())) > 1
    public, private = (
        Counter(kinds[each] for each in selected_ids(prepared.task.id, prepared.hidden, half, 20260412))
        for half in ("public", "private")
    )
    assert all(abs(public[kind] - private[kind]) <= 1 for kind in set(kinds.values()))
    assert abs(public.total() - private.total()) <= 1


def test_the_improvement_is_of_the_figure_that_is_scored(prepared: Prepared, gold: dict[str, str]) -> None:
    ids, grader = prepared.grader.item_ids(prepared.hidden), prepared.grader
    before, after = (
        judged(prepared, {each: gold[each] if place % share == 0 else "no idea" for place, each in enumerate(ids)})
        for share in (5, 2)
    )
    scores = [score_items(prepared.task.id, prepared.hidden, items).score for items in (before, after)]
    assert scores[0] is not None
    assert scores[1] is not None
    own = partial(grader.improvement, hidden=prepared.hidden) if isinstance(grader, HeadlineGrader) else mean_difference
    found = compare(before, after, difference=own)
    assert found is not None
    assert found.points == pytest.approx(scores[1] - scores[0])
    assert 0 < found.ci.low < found.points < found.ci.high


def test_gold_answers_are_judged_by_item_and_not_by_place(prepared: Prepared, gold: dict[str, str]) -> None:
    ids = prepared.grader.item_ids(prepared.hidden)[::-1][:10]
    assert summarise(prepared.grader.score_outputs(gold, prepared.hidden, ids)).score == 100


def test_the_pretraining_data_holds_no_question_of_the_eval_set(prepared: Prepared) -> None:
    asked = questions(prepared.hidden)
    documents = list(load_preparer(prepared.task.id).pretraining_text(0))
    assert documents
    text = "\n".join(documents)
    assert not [question for question in asked if question in text]


def test_no_eval_item_is_in_training_under_other_names(prepared: Prepared) -> None:
    """The same holds for pretraining."""
    preparer = load_preparer(prepared.task.id)
    asked = {preparer.canonical(text).strip() for text in questions(prepared.hidden)}
    trained = {preparer.canonical(text).strip() for text in questions(prepared.visible)}
    assert not asked & trained
    read = preparer.canonical("\n".join(preparer.pretraining_text(0)))
    assert not [text for text in asked if text in read]


def test_the_canonical_form_forgets_names_and_keeps_items_apart(prepared: Prepared) -> None:
    asked = questions(prepared.hidden)
    told = {load_preparer(prepared.task.id).canonical(text).strip() for text in asked}
    assert len(told) > 0.4 * len(asked)
    assert {load_preparer(prepared.task.id).canonical(text).strip() for text in told} == told


def test_whatever_the_task_measures_is_mirrored_in_mlflow(
    prepared: Prepared, gold: dict[str, str], settings: Settings, base_model: Path
) -> None:
    total = summarise(judged(prepared, gold))
    run = make_run(settings, base_model)
    run.write("baseline", run.need("baseline", BaselineRecord).model_copy(update={"total": total}))
    prepare_mlflow(settings)
    Tracker(settings).sync(run)
    shown = Tracker(settings).mirrored(run)["baseline"].metrics
    assert shown["score"] == 100
    assert sum(name.startswith("by_kind.") for name in shown) == len(total.groups)
    assert sum(name.startswith("measure.") for name in shown) == len(total.measures)


def test_the_task_has_a_description_and_pinned_data(prepared: Prepared) -> None:
    description = (REPOSITORY / "tasks" / prepared.task.id / "description.md").read_text()
    assert len(description) > 200
    assert len(prepared.task.source.revision) == 40 or prepared.task.source.host == "github"
    assert prepared.task.source.files
    assert prepared.task.source.licence
    assert prepared.task.full.eval_items > 0


def _all_functions() -> Iterator[tuple[Callable[[str], object], str]]:
    for name in ("prepare", "pretraining_text", "canonical"):
        yield load_preparer, name
    for name in ("item_ids", "grade", "score_outputs", "gold_outputs"):
        yield load_grader, name


@pytest.mark.parametrize(("load", "name"), list(_all_functions()))
def test_the_functions_of_the_contract_are_there(prepared: Prepared, load: Callable[[str], object], name: str) -> None:
    assert callable(getattr(load(prepared.task.id), name))
