"""Tests the checks of weights and texts on whole run directories."""

from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from a2rl.contamination import check, sources
from a2rl.contamination.check import length_gaming, text_hits, twins_gap
from a2rl.core.errors import MissingInputError
from a2rl.core.files import read_model, write_model
from a2rl.grading.job import GradeResult
from a2rl.models.base_model import model_digest
from a2rl.provenance.check import provenance, tries
from a2rl.run.directory import RunDir
from a2rl.run.ranking import best_submission
from a2rl.run.records import GradeRecord
from a2rl.scoring.score import summarise
from a2rl.task_api.catalog import task_folder
from a2rl.validity.checks import RunEvidence
from a2rl.validity.record import Finding, Validity
from tests.run_maker import Finished, copy_of, finished_run, grade_result
from tests.small_model import random_weights, read_weights, write_safetensors


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished_run(tmp_path_factory.mktemp("original") / "checkout")


@pytest.fixture
def finished(original: Finished, tmp_path: Path) -> Finished:
    """A copy of the run, for a test to change."""
    return copy_of(original, tmp_path)


def evidence(finished: Finished) -> RunEvidence:
    return RunEvidence(finished.run, finished.settings)


def kept(run: RunDir) -> Path:
    best = best_submission(run.ledger)
    assert best is not None
    return run.checkpoint(best.submission.weights_digest)


def kinds(found: list[Finding]) -> dict[str, str]:
    return {each.kind: each.level for each in found}


def test_a_trained_checkpoint_is_noted_as_one(finished: Finished) -> None:
    found = list(provenance(evidence(finished)))
    assert kinds(found) == {"provenance-descendant": "note"}
    assert Validity.of(found).word == "valid"


def test_a_foreign_checkpoint_voids_the_result(finished: Finished) -> None:
    folder = kept(finished.run)
    rows = read_weights(folder)["model.embed_tokens.weight"].shape[0]
    write_safetensors(folder / "model.safetensors", random_weights(rows, seed=99), {"format": "pt"})
    found = list(provenance(evidence(finished)))
    assert kinds(found) == {"provenance-foreign": "void"}
    assert Validity.of(found).word == "void"
    assert any(each.what == "a foreign tensor" for each in found[0].evidence)


def test_a_foreign_matrix_flags_the_result_and_is_named(finished: Finished) -> None:
    folder = kept(finished.run)
    weights = read_weights(folder)
    name = "model.layers.0.mlp.up_proj.weight"
    other = random_weights(weights["model.embed_tokens.weight"].shape[0], seed=99)[name]
    write_safetensors(folder / "model.safetensors", weights | {name: other}, {"format": "pt"})
    found = list(provenance(evidence(finished)))
    assert kinds(found) == {"provenance-part-foreign": "flag"}
    assert name in [each.value for each in found[0].evidence]


def test_noise_is_flagged_unless_the_score_improved(finished: Finished) -> None:
    """Noise cannot improve it."""
    rng = np.random.default_rng(0)
    noisy = {}
    for name, weight in read_weights(finished.settings.root / "models" / "small").items():
        values = np.frombuffer(weight.data, np.float32)
        noise = 0.05 * values.std() * rng.standard_normal(values.shape)
        noisy[name] = weight._replace(data=(values + noise).astype(np.float32).tobytes())
    write_safetensors(kept(finished.run) / "model.safetensors", noisy, {"format": "pt"})
    record = finished.run.need("grade", GradeRecord)
    write_model(finished.run.record_path("grade"), record.model_copy(update={"verdict": "inconclusive"}))
    assert kinds(list(provenance(evidence(finished)))) == {"provenance-near-copy": "flag"}
    write_model(finished.run.record_path("grade"), record.model_copy(update={"verdict": "improved"}))
    assert kinds(list(provenance(evidence(finished)))) == {"provenance-descendant": "note"}


def test_weights_that_were_removed_are_not_called_clean(finished: Finished) -> None:
    folder = kept(finished.run)
    folder.rename(folder.with_name("elsewhere"))
    found = list(provenance(evidence(finished)))
    assert kinds(found) == {"not-checked": "note"}


def test_few_different_submissions_are_no_finding(finished: Finished) -> None:
    assert list(tries(evidence(finished))) == []


def test_items_in_the_agents_files_are_flagged_with_their_places(finished: Finished) -> None:
    (finished.run.workspace / "code" / "cheat.py").write_text('DATA = [\n  "What is 3 + 3?",\n  "What is 4 + 4?",\n]\n')
    found = list(text_hits(evidence(finished)))
    assert kinds(found) == {"eval-items-in-texts": "flag"}
    places = {(each.file, each.line, each.items) for each in found[0].evidence if each.items}
    assert places == {("workspace/code/cheat.py", 2, ("3",)), ("workspace/code/cheat.py", 3, ("4",))}


def test_more_text_than_is_searched_flags_the_result(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_BYTES", 10)
    (finished.run.workspace / "code" / "train.py").write_text("print('What is the loss?')\n")
    assert kinds(list(text_hits(evidence(finished)))) == {"not-checked": "flag"}


def test_a_workspace_that_is_gone_flags_the_result(finished: Finished) -> None:
    rmtree(finished.run.workspace)
    assert kinds(list(text_hits(evidence(finished)))) == {"not-checked": "flag"}


def test_texts_wait_for_what_the_agent_was_given(finished: Finished) -> None:
    """Training data that it printed would be taken for eval items."""
    rmtree(finished.run.given)
    with pytest.raises(MissingInputError, match=f"a2rl resume {finished.run.id}"):
        list(text_hits(evidence(finished)))


def test_clean_files_are_no_finding(finished: Finished) -> None:
    (finished.run.workspace / "code" / "train.py").write_text("print('What is the loss?')\n")
    assert list(text_hits(evidence(finished))) == []


def test_an_item_that_the_description_shows_is_no_finding(finished: Finished, monkeypatch: pytest.MonkeyPatch) -> None:
    """A secret draw may contain what the description has as its example, which any agent reads and logs."""
    description = task_folder(finished.run.spec.task, finished.settings.root) / "description.md"
    examples = sorted(description.read_text().splitlines(), key=len)[-2:]
    monkeypatch.setattr(check, "item_texts", lambda _: dict(zip("12", examples, strict=True)))
    (finished.run.workspace / "read.txt").write_text("\n".join(examples))
    assert list(text_hits(evidence(finished))) == []


def test_a_result_that_is_no_improvement_costs_no_further_grade(finished: Finished) -> None:
    assert evidence(finished).grade.verdict != "improved"
    assert list(twins_gap(evidence(finished))) == []


def _lengths(path: Path, chars: Callable[[float], int]) -> None:
    items = [
        item.model_copy(update={"measures": {"length, characters": float(chars(item.value) + place % 7)}})
        for place, item in enumerate(read_model(path, GradeResult).items)
    ]
    write_model(path, GradeResult(score=summarise(items), items=tuple(items)))


@pytest.mark.heavy
def test_answers_that_are_long_where_they_lose_flag_the_result(tmp_path: Path) -> None:
    finished = finished_run(tmp_path / "checkout", items=60)
    best = best_submission(finished.run.ledger)
    assert best is not None
    final = finished.run.items(best.submission.weights_digest, "private")
    items = read_model(final, GradeResult).items
    half = [item.model_copy(update={"value": float(place % 2)}) for place, item in enumerate(items)]
    write_model(final, grade_result(half, 0.1))
    _lengths(finished.run.baseline_items, lambda value: 200)
    _lengths(final, lambda value: 150 if value else 900)
    assert kinds(list(length_gaming(evidence(finished)))) == {"length-gaming": "flag"}
    _lengths(final, lambda value: 200)
    assert list(length_gaming(evidence(finished))) == []
    one = [item.model_copy(update={"value": 1.0, "answer": "The answer that always wins."}) for item in items]
    write_model(final, grade_result(one, 0.1))
    _lengths(final, lambda value: 200)
    assert kinds(list(length_gaming(evidence(finished)))) == {"identical-answers": "flag"}


def test_no_check_changes_the_base_model(finished: Finished) -> None:
    base = finished.settings.root / "models" / "small"
    before = model_digest(base)
    list(provenance(evidence(finished)))
    assert model_digest(base) == before
