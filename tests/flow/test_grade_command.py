"""Tests `a2rl grade` and `a2rl score` together, on the real command line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from a2rl.core.files import read_jsonl
from tests.flow.checkout import EVAL_ITEMS, Checkout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Checkout:
    return Checkout(tmp_path_factory.mktemp("grading") / "checkout", {"graded": ""})


@pytest.mark.heavy
def test_what_a_model_said_is_written_and_gets_the_same_score(checkout: Checkout, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs.jsonl"
    graded = checkout.json("grade", "--task", "graded", "--model", "tiny", "--outputs", str(outputs))
    rows = read_jsonl(outputs)
    assert len({row["id"] for row in rows}) == len(rows) == graded["total"] == EVAL_ITEMS
    assert [row["completion"] for row in rows] == [row["turns"][-1]["answer"] for row in rows]
    assert sum(row["verdict"] == "truncated" for row in rows) == graded["truncated"]
    assert sum(turn["tokens"] for row in rows for turn in row["turns"]) == graded["tokens"] > 0
    scored = checkout.json("score", "--task", "graded", "--outputs", str(outputs))
    assert (scored["score"], scored["correct"], scored["total"]) == (graded["score"], graded["correct"], EVAL_ITEMS)


@pytest.mark.heavy
def test_an_unwritable_file_is_refused_before_the_work(checkout: Checkout, tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "missing" / "outputs.jsonl"):
        done = checkout.run("grade", "--task", "graded", "--model", "tiny", "--outputs", str(place))
        assert done.returncode == 2
        assert "cannot be written" in done.stderr
        assert "score" not in done.stdout


@pytest.mark.heavy
def test_outputs_that_cannot_be_written_do_not_cost_the_score(checkout: Checkout, tmp_path: Path) -> None:
    file = tmp_path / ("x" * 250)  # the name of the temporary file would be too long
    done = checkout.run("grade", "--task", "graded", "--model", "tiny", "--outputs", str(file))
    assert done.returncode != 0
    assert "score" in done.stdout
    assert "the outputs could not be written" in done.stderr


def test_a_checkpoint_that_can_only_fail_gets_no_score(checkout: Checkout, tmp_path: Path) -> None:
    diverged, short = tmp_path / "diverged", tmp_path / "short"
    for folder in (diverged, short):
        shutil.copytree(checkout.root / "models" / "tiny", folder)
    weights = load_file(diverged / "model.safetensors")
    weights["model.norm.weight"][0] = np.nan
    save_file(weights, diverged / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((short / "config.json").read_text())
    (short / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 60}))
    for folder, said in ((diverged, "model.norm.weight has numbers that are not finite"), (short, "has 60 tokens")):
        done = checkout.run("grade", "--task", "graded", "--model", str(folder))
        assert done.returncode != 0
        assert said in done.stderr
        assert "score" not in done.stdout
