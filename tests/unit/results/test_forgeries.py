"""Tests forgeries by an operator: what notices those that fit together. `python -m tests.forgery_table` makes all."""

from pathlib import Path

import pytest

from tests.forgeries import (
    FORGERIES,
    LEVELS,
    UNDRAWN,
    Forgery,
    Level,
    Original,
    better_private_score,
    cut_off,
    deleted_submission,
    edited_log,
    edited_result,
    invented_gain,
    invented_interval,
    invented_measure,
    moved_times,
    new_chain,
    other_baseline,
    other_time,
    removed_refusal,
    removed_signatures,
    replaced_report,
    replaced_signatures,
    replayed_signatures,
    result_of_no_submission,
    result_without_score,
    score_without_items,
    swapped_checkpoint_and_digest,
    unsigned_end,
)
from tests.forgery_table import Noticed, forge, noticed


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    return Original.make(tmp_path_factory.mktemp("forgeries"))


def look(original: Original, forgery: Forgery, level: Level, folder: Path, *, with_mlflow: bool = False) -> Noticed:
    scene = original.copy(folder / "copy")
    forge(forgery, level, scene)
    return noticed(scene, level, with_mlflow=with_mlflow)


def test_nothing_is_noticed_of_an_honest_run(original: Original, tmp_path: Path) -> None:
    assert noticed(original.copy(tmp_path / "copy")) == Noticed((), False, False, False)


def test_at_least_twenty_forgeries_each_say_what_they_are() -> None:
    assert len(FORGERIES) >= 20
    assert all(each.__doc__ for each in FORGERIES)
    assert set(FORGERIES) >= UNDRAWN


CONSISTENT = (
    new_chain, moved_times, cut_off, better_private_score, other_baseline, swapped_checkpoint_and_digest,
    removed_refusal, deleted_submission, edited_log, removed_signatures, replaced_signatures, replayed_signatures,
    unsigned_end,
)  # fmt: skip


@pytest.mark.parametrize("forgery", CONSISTENT, ids=[each.__name__ for each in CONSISTENT])
def test_no_forgery_without_the_key_passes_the_signatures(original: Original, forgery: Forgery, tmp_path: Path) -> None:
    assert look(original, forgery, "consistent", tmp_path).signature


@pytest.mark.parametrize("forgery", [edited_result, result_without_score, other_time], ids=lambda each: each.__name__)
def test_a_record_has_nothing_that_the_ledger_does_not(original: Original, forgery: Forgery, tmp_path: Path) -> None:
    assert look(original, forgery, "consistent", tmp_path).verify == ("the records follow from the ledger",)


@pytest.mark.parametrize("level", LEVELS)
def test_a_replaced_report_is_noticed_at_every_level(original: Original, level: Level, tmp_path: Path) -> None:
    assert "the report is that of the run" in look(original, replaced_report, level, tmp_path).verify


INVENTED = (invented_interval, invented_measure, invented_gain, score_without_items, result_of_no_submission)


@pytest.mark.parametrize("forgery", INVENTED, ids=[each.__name__ for each in INVENTED])
def test_every_figure_must_follow_from_the_items(original: Original, forgery: Forgery, tmp_path: Path) -> None:
    assert look(original, forgery, "with the key", tmp_path).verify


FOR_THE_KEY = (new_chain, moved_times, cut_off, better_private_score, deleted_submission)


@pytest.mark.parametrize("forgery", FOR_THE_KEY, ids=[each.__name__ for each in FOR_THE_KEY])
def test_no_forgery_with_the_key_passes_the_published_heads(
    original: Original, forgery: Forgery, tmp_path: Path
) -> None:
    assert look(original, forgery, "with the key", tmp_path).published


SCORES = (better_private_score, other_baseline, swapped_checkpoint_and_digest)


@pytest.mark.parametrize("forgery", SCORES, ids=[each.__name__ for each in SCORES])
def test_no_forged_score_passes_grading_anew_even_with_the_key(
    original: Original, forgery: Forgery, tmp_path: Path
) -> None:
    assert look(original, forgery, "with the key", tmp_path).regrade


@pytest.mark.parametrize("forgery", [new_chain, better_private_score, replaced_report], ids=lambda each: each.__name__)
def test_a_report_after_a_forgery_does_not_make_it_pass(original: Original, forgery: Forgery, tmp_path: Path) -> None:
    assert look(original, forgery, "naive", tmp_path, with_mlflow=True).verify
