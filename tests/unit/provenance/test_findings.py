"""Tests what the checks of weights find in whole run directories."""

from pathlib import Path

import numpy as np
import pytest

from a2rl.core.files import write_model
from a2rl.provenance.check import provenance, tries
from a2rl.run.ranking import best_submission
from a2rl.run.records import GradeRecord
from a2rl.validity.checks import RunEvidence
from a2rl.validity.record import Finding
from tests.run_maker import Finished, copy_of, finished_run, grade_result, item_results
from tests.small_model import Weight, random_weights, read_weights, write_safetensors


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished_run(tmp_path_factory.mktemp("original") / "checkout")


@pytest.fixture
def evidence(original: Finished, tmp_path: Path) -> RunEvidence:
    """Of a copy of the run, for a test to change."""
    return RunEvidence(*copy_of(original, tmp_path))


def result(evidence: RunEvidence) -> Path:
    best = best_submission(evidence.run.ledger)
    assert best is not None
    return evidence.run.checkpoint(best.submission.weights_digest)


def kinds(found: list[Finding]) -> dict[str, str]:
    return {each.kind: each.level for each in found}


def submit_noise(evidence: RunEvidence, folder: Path, size: float, seed: int = 0) -> None:
    """Makes a submission the base model with noise of this size."""
    rng, noisy = np.random.default_rng(seed), {}
    for name, weight in read_weights(evidence.base_model).items():
        values = np.frombuffer(weight.data, np.float32)
        noise = size * values.std() * rng.standard_normal(values.shape)
        noisy[name] = weight._replace(data=(values + noise).astype(np.float32).tobytes())
    write_safetensors(folder / "model.safetensors", noisy, {"format": "pt"})


def decide(evidence: RunEvidence, verdict: str) -> RunEvidence:
    record = evidence.run.need("grade", GradeRecord)
    write_model(evidence.run.record_path("grade"), record.model_copy(update={"verdict": verdict}))
    return RunEvidence(evidence.run, evidence.settings)


def changed(weight: Weight, column: float, factor: float) -> Weight:
    """Returns a matrix with one number in its first column, and another factor; a vector as it is."""
    if len(weight.shape) < 2:
        return weight
    values = np.frombuffer(weight.data, np.float32).reshape(weight.shape) * np.float32(factor)
    values[:, 0] = column
    return weight._replace(data=values.tobytes())


@pytest.mark.parametrize(("column", "factor"), [(1e20, 1.0), (3e38, 1.0), (0.0, 1e-15), (0.0, 1e-30)])
def test_weights_of_any_size_hide_no_foreign_model(evidence: RunEvidence, column: float, factor: float) -> None:
    """A norm can undo them: with a zero for a column, and with the inverse of a factor."""
    folder = result(evidence)
    rows = read_weights(folder)["model.embed_tokens.weight"].shape[0]
    weights = {name: changed(each, column, factor) for name, each in random_weights(rows, seed=99).items()}
    write_safetensors(folder / "model.safetensors", weights, {"format": "pt"})
    assert kinds(list(provenance(evidence))) == {"provenance-foreign": "void"}


def test_a_small_change_is_flagged_unless_it_improved_the_score(evidence: RunEvidence) -> None:
    submit_noise(evidence, result(evidence), 2e-4)
    assert kinds(list(provenance(decide(evidence, "inconclusive")))) == {"provenance-base": "flag"}
    (improved,) = provenance(decide(evidence, "improved"))
    assert (improved.kind, improved.level) == ("provenance-descendant", "note")
    assert "hardly differs" in improved.text


def test_no_change_is_flagged_whatever_the_score(evidence: RunEvidence) -> None:
    submit_noise(evidence, result(evidence), 0.0)
    assert kinds(list(provenance(decide(evidence, "improved")))) == {"provenance-base": "flag"}


def test_trained_factors_are_flagged_unless_the_score_rose(evidence: RunEvidence) -> None:
    """(IA)^3 trains a factor for each row of two matrices."""
    weights = read_weights(evidence.base_model)
    for name, weight in weights.items():
        if "k_proj" in name or "v_proj" in name:
            values = np.frombuffer(weight.data, np.float32).reshape(weight.shape)
            factors = np.linspace(0.7, 1.4, len(values), dtype=np.float32)[:, None]
            weights[name] = weight._replace(data=(values * factors).tobytes())
    write_safetensors(result(evidence) / "model.safetensors", weights, {"format": "pt"})
    assert kinds(list(provenance(decide(evidence, "inconclusive")))) == {"provenance-near-copy": "flag"}
    assert kinds(list(provenance(decide(evidence, "improved")))) == {"provenance-descendant": "note"}


@pytest.mark.parametrize(("gain", "found"), [(8, {}), (0, {"many-near-copies": "flag"})])
def test_copies_are_tries_if_the_paired_test_says_better(
    evidence: RunEvidence, gain: int, found: dict[str, str]
) -> None:
    """Of 40 items, 20 and 28 have intervals that overlap, although eight were gained and none was lost."""
    ids = [f"{place}" for place in range(40)]
    write_model(evidence.run.baseline_items, grade_result(item_results(ids, 20), 1.0))
    for place, each in enumerate(evidence.accepted):
        submit_noise(evidence, evidence.run.checkpoint(each.weights_digest), 0.05, place)
        items = evidence.run.items(each.weights_digest, "public")
        write_model(items, grade_result(item_results(ids, 20 + gain), 1.0))
    assert kinds(list(tries(evidence))) == found
