"""Tests the labels of whole runs: from notes of programs, code states, logs and digests of weights."""

import json
import shutil
import time
from pathlib import Path
from typing import Any, cast

import pytest

from a2rl.cli.results import run_object
from a2rl.core.settings import Settings
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.labels import run_labels
from a2rl.labels.code_walk import Program, spots_in
from a2rl.labels.records import LabelsRecord, SecondRating, in_words, labels_of, write_labels
from a2rl.labels.run_labels import chain_of, label_run, read_phases
from a2rl.recording.code_history import snapshot_code
from a2rl.recording.code_reading import code_at, states
from a2rl.results.suite.run_summary import summary_of
from a2rl.run.directory import RunDir
from a2rl.run.events import SubmissionAccepted
from a2rl.run.records import ExecuteRecord, GradeRecord
from stages.grade import grade
from tests.labels.traced_programs import programs
from tests.run_maker import FakePool, checkout, end_agent, grade_private, make_run, submit_checkpoint
from tests.small_model import build_base_model, trained_copy

SFT = "import trl\ntrl.SFTTrainer('models/base').train()\n"
DPO = """
for pair in pairs:
    -logsigmoid(model(pair) - other(pair)).backward()
    optimizer.step()
"""


class Scene:
    """A run at work, whose agent writes code and submits."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.settings: Settings = checkout(folder)
        self.base = build_base_model(folder / "models" / "small")
        self.run: RunDir = make_run(self.settings, self.base)
        self._service = GradingService(self.run, cast(GraderPool, FakePool()))

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.run.workspace / "code" / f"{name}.py").write_text(text)
        snapshot_code(self.run.workspace / "code", self.run.code, "after 1 s")

    def train(self, trainer: str, process: str, output: str) -> None:
        """Notes what the tracer of a program would."""
        at, of = time.time(), {"process": process}
        notes: list[dict[str, Any]] = [
            {"event": "train", "t": at, **of, "classes": [f"trl.{trainer}"], "file": "/w/code/train.py", "line": 2},
            {"event": "trained", "t": at, **of, "steps": 9},
            {"event": "saved", "t": at, **of, "path": str(self.run.workspace / output)},
        ]
        with self.run.training_log.open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in notes)

    def submit(self, seed: int | None) -> None:
        target = self.run.workspace / "output" / f"v{seed}"
        if seed is None:
            shutil.copytree(self.base, target)
        else:
            trained_copy(self.base, target, seed)
        submit_checkpoint(self._service, f"output/v{seed}")

    def finish(self) -> None:
        end_agent(self.run)
        if self.run.ledger.events(SubmissionAccepted):
            grade_private(self.run)
        grade(self.run, self.settings)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "checkout")


def test_each_submission_is_labelled_with_what_made_it(scene: Scene) -> None:
    """The label names the place that shows it."""
    scene.write(train=SFT)
    scene.train("SFTTrainer", "1", "output/v1")
    scene.submit(1)
    scene.train("GRPOTrainer", "2", "output/v2")
    scene.submit(2)
    scene.finish()
    found = label_run(scene.run)
    assert [in_words(each.chain) for each in found.submissions] == ["SFT", "GRPO"]
    [label] = found.submissions[0].chain
    [evidence] = label.evidence
    first = scene.run.ledger.events(SubmissionAccepted)[0]
    assert (evidence.source, evidence.commit) == ("trace", first.code_revision)
    assert (evidence.file, evidence.line) == ("train.py", 2)
    assert label.confidence > 0.9


def test_the_code_says_what_a_loop_of_ones_own_trains(scene: Scene) -> None:
    scene.write(train=DPO)
    place = {"file": "/w/code/train.py", "line": 4, "function": "<module>", "count": 9}
    note = {"event": "work", "t": time.time(), "process": "1", "steps": [place]}
    scene.run.training_log.write_text(json.dumps(note) + "\n")
    end_agent(scene.run)
    assert in_words(label_run(scene.run).chain) == "DPO"


def test_where_nothing_was_traced_the_code_alone_says_little(scene: Scene) -> None:
    scene.write(train=SFT)
    scene.submit(1)
    scene.finish()
    [label] = label_run(scene.run).chain
    assert (label.route, label.confidence, label.evidence[0].source) == ("SFT", 0.4, "code")


def test_most_programs_have_their_route_by_their_code_alone() -> None:
    """The exceptions choose a trainer by a name, or give it an environment."""
    chains = {each.name: in_words(chain_of(read_phases(spots_in(Program(each.files)), ""))) for each in programs()}
    wrong = {each.name for each in programs() if chains[each.name] != each.route}
    assert wrong == {"kto", "games", "chosen_by_name"}


def test_base_model_weights_are_a_copy_whatever_the_code_says(scene: Scene) -> None:
    scene.train("GRPOTrainer", "1", "output/vNone")
    scene.submit(None)
    scene.finish()
    found = label_run(scene.run)
    [label] = found.chain
    assert (label.route, label.confidence, label.evidence[0].source) == ("copy", 1.0, "weights")
    assert found.training_type == "copy_model"
    assert found.failures[0].kind == "copy_model_fallback"


def test_a_log_shows_why_training_failed(scene: Scene) -> None:
    scene.train("GRPOTrainer", "1", "output/v1")
    lines = [*("{'loss': 0.1, 'reward': 0.0, 'reward_std': 0.0}" for _ in range(6)), "step 7 loss nan"]
    (scene.run.logs / "agent.log").write_text("\n".join(lines))
    end_agent(scene.run)
    grade(scene.run, scene.settings)
    found = label_run(scene.run)
    kinds = {failure.kind: failure.evidence[0].line for failure in found.failures}
    assert kinds == {"training_diverged": 7, "rollout_logic_wrong": 6}


@pytest.mark.parametrize(
    ("text", "flat"),
    [("reward: 0", True), ("'reward': '0.0'", True), ("reward=-0.0e+00", True), ("mean reward .0", True),
     ("reward: 1e-3", False), ("reward: 0.", True), ("reward 0/5", False), ("reward 0 then reward 0.5", False),
     ("rewards: 0.0", True), ("step 10 mean_reward=0.0", True), ("reward_std: 0", False), ("reward_fn 0", False),
     ("rewards/mean: 0", False), ("prereward: 0", False), ("best_reward: 0", False), ("reward: 0.0.1", False)],
)  # fmt: skip
def test_a_reward_is_flat_only_if_each_is_zero(tmp_path: Path, text: str, flat: bool) -> None:
    (tmp_path / "log").write_text(f"{text}\n" * 5)
    assert (run_labels.signs_in(tmp_path / "log").flat_reward is not None) == flat


@pytest.mark.parametrize(
    ("text", "diverged"),
    [("train_loss: nan", True), ("eval_loss=nan", True), ("policy_loss nan", True), ("avg_loss: NaN", True),
     ("mean_reward: nan", True), ("losses: nan", True), ("{'loss': nan}", True), ("train/loss: inf", True),
     ("total_grad_norm = -inf", True), ("train_loss: 0.5", False), ("best_loss: inf", False), ("gloss: nan", False),
     ("loss_fn: nan", False), ("loss: nancy", False)],
)  # fmt: skip
def test_a_loss_or_reward_of_any_name_can_diverge(tmp_path: Path, text: str, diverged: bool) -> None:
    (tmp_path / "log").write_text(f"step 1 {text}\n")
    assert (run_labels.signs_in(tmp_path / "log").diverged is not None) == diverged


def test_lines_of_a_long_log_have_their_numbers_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_labels, "MAX_BYTES", 100)
    monkeypatch.setattr(run_labels, "BLOCK", 64)
    (tmp_path / "log").write_text("fine\n" * 1000 + "ValueError: no\n")
    [error] = run_labels.signs_in(tmp_path / "log").errors
    assert (error.number, error.text) == (1001, "ValueError: no")


@pytest.mark.parametrize("later", [0, 30])
@pytest.mark.parametrize("submissions", [0, 1])
@pytest.mark.parametrize("failed_stage", [None, "grade"])
def test_an_error_in_the_log_is_a_crash_only_at_its_end(
    tmp_path: Path, later: int, submissions: int, failed_stage: Any
) -> None:
    """An agent that went on, or that the judge let down, did not fail because of it."""
    (tmp_path / "log").write_text("ValueError: no\n" + "loss 0.1\n\n" * later)
    graded = GradeRecord.model_construct(verdict="failed", failed_stage=failed_stage)
    executed = ExecuteRecord.model_construct(ended="finished", submissions=submissions)
    found = run_labels.failures_of(graded, executed, (), run_labels.signs_in(tmp_path / "log"))
    is_crash = not (later or submissions or failed_stage)
    assert [each.kind for each in found] == ["code_error_runtime" if is_crash else "unknown"]


def test_an_agent_without_code_or_log_is_unknown(scene: Scene) -> None:
    end_agent(scene.run)
    grade(scene.run, scene.settings)
    found = label_run(scene.run)
    assert in_words(found.chain) == "unknown"
    assert [failure.kind for failure in found.failures] == ["unknown"]


def test_the_record_is_in_the_json_outputs_and_the_summary(scene: Scene) -> None:
    scene.train("SFTTrainer", "1", "output/v1")
    scene.submit(1)
    scene.finish()
    assert run_object(scene.run)["labels"] is None
    record = write_labels(scene.run, scene.settings)
    assert record.reason == ""
    assert labels_of(scene.run) == record
    assert run_object(scene.run)["labels"]["route"] == ["SFT"]
    assert summary_of(scene.run).route == ("SFT",)


def test_a_second_rating_survives_a_new_computation(scene: Scene) -> None:
    end_agent(scene.run)
    second = SecondRating(model="m", routes=("DPO",))
    known = LabelsRecord(seconds=0, chain=(), training_type="unknown", second=second)
    scene.run.write("labels", known)
    assert write_labels(scene.run, scene.settings).second == second


def test_labels_survive_a_run_that_can_no_longer_be_read(scene: Scene) -> None:
    end_agent(scene.run)
    known = write_labels(scene.run, scene.settings)
    scene.run.ledger.path.write_bytes(b"no database")
    assert write_labels(scene.run, scene.settings).reason
    assert labels_of(scene.run) == known


def test_the_code_history_is_read_without_large_or_binary_files(scene: Scene) -> None:
    code = scene.run.workspace / "code"
    (code / "large.py").write_text("#" * 500_000)
    (code / "binary.bin").write_bytes(b"\0\1")
    (code / ".gitattributes").write_text("*.py export-ignore\n")
    scene.write(train=SFT)
    scene.submit(1)
    [state] = states(scene.run.code)
    assert abs(state.at - time.time()) < 60
    assert set(code_at(scene.run.code, state.commit)) == {".gitattributes", "train.py"}
    assert states(scene.run.root / "nothing") == []
