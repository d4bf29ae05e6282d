"""Tests that a checkpoint that lacks weights is recognised without reading a weight."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file

from a2rl.core.errors import InvalidSubmissionError
from a2rl.core.settings import Settings
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
    require_complete(model, settings)
    with pytest.raises(InvalidSubmissionError, match=f"lacks weights: {FUSED}"):
        require_complete(without_a_weight(model), settings)


@pytest.mark.heavy
def test_a_model_that_only_vllm_knows_passes(model: Path, settings: Settings) -> None:
    config = json.loads((without_a_weight(model) / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"model_type": "of-tomorrow", "architectures": ["New"]}))
    require_complete(model, settings)
