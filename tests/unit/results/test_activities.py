"""Tests the time line of activities on a run's page."""

import json
from pathlib import Path
from typing import Any

import pytest

from a2rl.labels.run_labels import label_run
from a2rl.results.report.work import ACTIVITIES, Steps, TimeLine, time_line
from a2rl.run.directory import RunDir
from tests.run_maker import checkout
from tests.simulated_runs import simulate_run
from tests.written_ledger import BEGAN_AT

STARTED_AT = BEGAN_AT + 2
"""When the agent of a simulated run was started; its budget is 600 s."""


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return simulate_run(checkout(tmp_path), 1)


def log(run: RunDir, name: str, *rows: dict[str, Any]) -> None:
    (run.logs / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def training(process: str, start_s: float, end_s: float, trainer: str) -> list[dict[str, Any]]:
    begun = {"event": "train", "t": STARTED_AT + start_s, "process": process, "classes": [f"trl.{trainer}"]}
    return [begun, {"event": "trained", "t": STARTED_AT + end_s, "process": process, "steps": 5}]


def line_of(run: RunDir, steps: Steps | None = None) -> TimeLine:
    run.write("labels", label_run(run))
    found = time_line(run, run.ledger.entries(), steps)
    assert found is not None
    return found


def rounded(found: TimeLine) -> list[tuple[str, float, float]]:
    return [(name, round(start_s, -1), round(end_s, -1)) for name, start_s, end_s in found.spans]


def test_without_records_all_of_the_time_is_unknown(run: RunDir) -> None:
    assert line_of(run).shares == (("unknown", 1.0),)


def test_each_record_shows_its_activity(run: RunDir) -> None:
    log(run, "training.jsonl", *training("7", 100, 200, "SFTTrainer"), *training("8", 200, 300, "GRPOTrainer"))
    log(run, "llm.jsonl", {"t": STARTED_AT + 50, "path": "/", "status": 200, "seconds": 30})
    log(run, "telemetry.jsonl", {"elapsed_s": 300, "cpu_s": 10.0}, {"elapsed_s": 400, "cpu_s": 10.1})
    assert rounded(line_of(run)) == [
        ("unknown", 0, 20), ("thinking", 20, 50), ("unknown", 50, 100), ("SFT", 100, 200), ("RL", 200, 300),
        ("idle", 300, 400), ("unknown", 400, 600),
    ]  # fmt: skip


def test_training_counts_before_thinking_and_shares_add_to_one(run: RunDir) -> None:
    log(run, "training.jsonl", *training("7", 0, 300, "DPOTrainer"))
    log(run, "llm.jsonl", {"t": STARTED_AT + 450, "path": "/", "status": 200, "seconds": 300})
    found = line_of(run)
    assert rounded(found) == [("SFT", 0, 300), ("thinking", 300, 450), ("unknown", 450, 600)]
    assert sum(share for _, share in found.shares) == pytest.approx(1.0)
    assert [name for name, _ in found.shares] == sorted(dict(found.shares), key=ACTIVITIES.index)


def test_the_time_after_a_step_with_calls_of_tools_is_coding(run: RunDir) -> None:
    assert rounded(line_of(run, Steps((), 0, "", coding=((60.0, 240.0),)))) == [
        ("unknown", 0, 60),
        ("coding", 60, 240),
        ("unknown", 240, 600),
    ]


def test_notes_of_programs_say_when_one_method_follows_another(run: RunDir) -> None:
    play = {"event": "work", "since": STARTED_AT + 400, "t": STARTED_AT + 500, "process": "1", "generations": 9}
    log(run, "training.jsonl", *training("1", 100, 200, "SFTTrainer"), *training("1", 300, 400, "GRPOTrainer"), play)
    assert rounded(line_of(run)) == [
        ("unknown", 0, 100), ("SFT", 100, 200), ("unknown", 200, 300), ("RL", 300, 400), ("rollout", 400, 500),
        ("unknown", 500, 600),
    ]  # fmt: skip


def test_damaged_records_explain_nothing(run: RunDir) -> None:
    log(run, "training.jsonl", {"event": "train", "t": "x"}, {"event": "trained"})
    (run.logs / "telemetry.jsonl").write_text("{")
    assert line_of(run).shares == (("unknown", 1.0),)
