"""Tests what the checks of weights find in whole run directories."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from a2rl.provenance.check import provenance
from a2rl.run.directory import RunDir
from a2rl.run.ranking import best_submission
from a2rl.validity.checks import RunEvidence
from a2rl.validity.record import Finding
from tests.run_maker import Finished, finished_run
from tests.small_model import Weight, random_weights, read_weights, write_safetensors


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return finished_run(tmp_path_factory.mktemp("original") / "checkout")


@pytest.fixture
def evidence(original: Finished, tmp_path: Path) -> RunEvidence:
    """Of a copy of the run, for a test to change."""
    root = shutil.copytree(original.run.root, tmp_path / "runs" / original.run.id, symlinks=True)
    return RunEvidence(RunDir(root), original.settings)


def result(evidence: RunEvidence) -> Path:
    best = best_submission(evidence.run.ledger)
    assert best is not None
    return evidence.run.checkpoint(best.submission.weights_digest)


def kinds(found: list[Finding]) -> dict[str, str]:
    return {each.kind: each.level for each in found}


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
