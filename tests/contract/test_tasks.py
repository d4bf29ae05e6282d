"""Tests the contract of every task folder."""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import pytest

from a2rl.core.settings import Settings
from a2rl.grading.job import score_items, selected_ids
from a2rl.results.mlflow.tracking import Tracker
from a2rl.run.records import BaselineRecord
from a2rl.scoring.paired import compare, mean_difference
from a2rl.scoring.score import summarise
from a2rl.task_api.catalog import load_grader, load_preparer, task_ids
from a2rl.task_api.check import CHECKS, TaskCheck, questions
from a2rl.task_api.contract import CanonicalPreparer, HeadlineGrader, KindsGrader, PretrainingPreparer
from tests.run_maker import make_run, prepare_mlflow

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module", params=task_ids(REPOSITORY))
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TaskCheck:
    return TaskCheck(request.param, REPOSITORY, "mini", None, tmp_path_factory.mktemp(request.param))


class Texts(CanonicalPreparer, PretrainingPreparer, Protocol):
    """What the preparer of a built-in task has besides."""


def texts_of(prepared: TaskCheck) -> Texts:
    return cast(Texts, prepared.preparer)


@pytest.mark.parametrize("claim", CHECKS)
def test_the_task_keeps_its_contract(prepared: TaskCheck, claim: str) -> None:
    assert CHECKS[claim](prepared) == ""


def test_both_halves_of_the_eval_set_have_as_many_of_each_kind(prepared: TaskCheck) -> None:
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


@pytest.mark.heavy
def test_the_improvement_is_of_the_figure_that_is_scored(prepared: TaskCheck) -> None:
    ids, grader, gold = prepared.ids, prepared.grader, prepared.gold
    before, after = (
        prepared.results({each: gold[each] if place % share == 0 else "no idea" for place, each in enumerate(ids)})
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


def test_the_pretraining_data_holds_no_question_of_the_eval_set(prepared: TaskCheck) -> None:
    asked = questions(prepared.hidden)
    documents = list(texts_of(prepared).pretraining_text(0))
    assert documents
    text = "\n".join(documents)
    assert not [question for question in asked if question in text]


def test_no_eval_item_is_in_training_under_other_names(prepared: TaskCheck) -> None:
    """The same holds for pretraining."""
    preparer = texts_of(prepared)
    asked = {preparer.canonical(text).strip() for text in questions(prepared.hidden)}
    trained = {preparer.canonical(text).strip() for text in questions(prepared.visible)}
    assert not asked & trained
    read = preparer.canonical("\n".join(preparer.pretraining_text(0)))
    assert not [text for text in asked if text in read]


def test_the_canonical_form_forgets_names_and_keeps_items_apart(prepared: TaskCheck) -> None:
    asked = questions(prepared.hidden)
    told = {texts_of(prepared).canonical(text).strip() for text in asked}
    assert len(told) > 0.4 * len(asked)
    assert {texts_of(prepared).canonical(text).strip() for text in told} == told


@pytest.mark.heavy
def test_whatever_the_task_measures_is_mirrored_in_mlflow(
    prepared: TaskCheck, settings: Settings, base_model: Path
) -> None:
    total = summarise(prepared.results(prepared.gold))
    run = make_run(settings, base_model)
    run.write("baseline", run.need("baseline", BaselineRecord).model_copy(update={"total": total}))
    prepare_mlflow(settings)
    Tracker(settings).sync(run)
    shown = Tracker(settings).mirrored(run)["baseline"].metrics
    assert shown["score"] == 100
    assert sum(name.startswith("by_kind.") for name in shown) == len(total.groups)
    assert sum(name.startswith("measure.") for name in shown) == len(total.measures)


def test_the_task_has_a_description_and_pinned_data(prepared: TaskCheck) -> None:
    description = (REPOSITORY / "tasks" / prepared.task.id / "description.md").read_text()
    assert len(description) > 200
    assert len(prepared.task.source.revision) == 40 or prepared.task.source.host == "github"
    assert prepared.task.source.files
    assert prepared.task.source.licence
    assert prepared.task.variant("full").eval_items > 0


def _all_functions() -> Iterator[tuple[Callable[[str], object], str]]:
    for name in ("prepare", "pretraining_text", "canonical"):
        yield load_preparer, name
    for name in ("item_ids", "grade", "score_outputs", "gold_outputs"):
        yield load_grader, name


@pytest.mark.parametrize(("load", "name"), list(_all_functions()))
def test_the_functions_of_the_contract_are_there(prepared: TaskCheck, load: Callable[[str], object], name: str) -> None:
    assert callable(getattr(load(prepared.task.id), name))
