"""Tests that a checkpoint that lacks weights is recognised without reading a weight."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.settings import Settings
from a2rl.grading import model_process
from a2rl.grading.model_process import require_complete

FUSED = "model.layers.0.mlp.up_proj.weight"
"""vLLM stores it with another matrix as one."""


@pytest.fixture
def model(tmp_path: Path, base_model: Path) -> Path:
    return Path(shutil.copytree(base_model, tmp_path / "model"))


def without_a_weight(model: Path) -> Path:
    weights = load_file(model / "model.safetensors")
    del weights[FUSED]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.mark.heavy
def test_a_checkpoint_that_lacks_a_weight_is_refused_by_its_name(model: Path, settings: Settings) -> None:
    with pytest.raises(InvalidSubmissionError, match=f"lacks weights: {FUSED}"):
        require_complete(without_a_weight(model), settings)


def test_a_whole_checkpoint_lacks_no_weights(model: Path, tmp_path: Path) -> None:
    model_process.main(model, tmp_path / "missing")
    assert json.loads((tmp_path / "missing").read_text()) == []


def test_a_model_that_only_vllm_knows_passes(
    model: Path, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = json.loads((without_a_weight(model) / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "of-tomorrow", "architectures": ["New"]}))
    with pytest.raises(ValueError, match="of-tomorrow"):
        model_process.main(model, tmp_path / "missing")
    monkeypatch.setattr(model_process, "run_model_process", lambda *_: "its process ended with exit code 1")
    require_complete(model, settings)
