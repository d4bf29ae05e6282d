"""Tests `a2rl rehearse` on the real command line, with a run of the scripted agent."""

import json
from pathlib import Path

import pytest

from tests.flow.checkout import Checkout

pytestmark = pytest.mark.slow


def test_a_rehearsal_makes_a_run_and_finds_nothing_wrong(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout", {"gsm8k": ""})
    report = checkout.json("rehearse", "--model", "tiny", "--only", "grades", "--only", "run")
    rows = {row["link"]: row for row in report["links"]}
    assert [name for name, row in rows.items() if row["result"] == "fail"] == []
    passed = [name for name, row in rows.items() if row["result"] == "pass"]
    trained = ["training and grade: SFT", "training and grade: GRPO", "verify, with MLflow"]
    assert passed == ["transformers", "runs, under Prefect", *trained, *(f"{each}, LoRA" for each in trained)]
    assert json.loads(Path(report["folder"], "rehearsal.json").read_text()) == report
