"""Tests the log of a run for Inspect: what it has and what it must not have, and that Inspect reads it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from a2rl.agent_systems.transcripts.atif import Agent, Observation, ObservationResult, Step, ToolCall, Trajectory
from a2rl.cli.commands import app
from a2rl.core.files import read_model, write_atomically, write_model
from a2rl.export.inspect_log import inspect_log_name, write_inspect_log
from a2rl.grading.job import GradeResult
from a2rl.grading.outputs import Output, Turn, outputs_path
from a2rl.run.events import SubmissionAccepted
from a2rl.sampling import Message
from tests.run_maker import Finished, finished_run, write_outputs

READ = """
import sys
from inspect_ai.log import list_eval_logs, read_eval_log
[info] = list_eval_logs(sys.argv[1])
read_eval_log(info, header_only=True)
log = read_eval_log(info)
agent, first, *_ = log.samples
score = log.results.scores[0].metrics["score"].value
print(len(log.samples), score, first.scores["submission"].value, agent.messages[1].tool_calls)
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A run whose second submission has outputs, and whose agent left a transcript."""
    found = finished_run(tmp_path_factory.mktemp("log") / "checkout")
    digest = found.run.ledger.events(SubmissionAccepted)[1].weights_digest
    write_outputs(found.run.items(digest, "public"), "It is 2. \ud800".encode("utf-8", "replace").decode())
    call = ToolCall(tool_call_id="c", function_name="bash", arguments={"command": "train"})
    seen = Observation(results=(ObservationResult(source_call_id="c", content="\x1b[2Jdone"),))
    acting = Step(step_id=2, source="agent", message="", reasoning_content="hm", tool_calls=(call,), observation=seen)
    steps = (Step(step_id=1, source="user", message="Go."), acting)
    write_atomically(found.run.trajectory, Trajectory(agent=Agent(name="a", version="1"), steps=steps).to_json())
    return found


def log_of(finished: Finished, folder: Path) -> dict[str, Any]:
    target = folder / inspect_log_name(finished.run, 2)
    write_inspect_log(finished.run, target, 2)
    return dict(json.loads(target.read_text()))


def test_items_have_the_scores_of_both_models(finished: Finished, tmp_path: Path) -> None:
    digest = finished.run.ledger.events(SubmissionAccepted)[1].weights_digest
    graded = read_model(finished.run.items(digest, "public"), GradeResult)
    log = log_of(finished, tmp_path)
    agent, *items = log["samples"]
    assert [(each["id"], each["scores"]["submission"]["value"]) for each in items] == [
        (item.id, item.value) for item in graded.items
    ]
    assert [each["scores"]["base model"]["value"] for each in items] == [1.0, 1.0, 0.0, 0.0]
    assert items[0]["messages"][0] == {"role": "user", "content": "1 + 1?"}
    assert [score["metrics"]["score"]["value"] for score in log["results"]["scores"]] == [graded.score.score, 50.0]
    assert log["eval"]["metadata"]["verdict"]
    assert agent["scores"] == {}


def test_the_agents_steps_are_messages(finished: Finished, tmp_path: Path) -> None:
    asked, acted, seen = log_of(finished, tmp_path)["samples"][0]["messages"]
    assert asked == {"role": "user", "content": "Go."}
    assert acted["content"][0] == {"type": "reasoning", "reasoning": "hm"}
    assert acted["tool_calls"] == [{"id": "c", "function": "bash", "arguments": {"command": "train"}}]
    assert (seen["role"], seen["tool_call_id"], seen["function"]) == ("tool", "c", "bash")


def test_steps_that_break_the_formats_rules_are_messages(finished: Finished, tmp_path: Path) -> None:
    """The run may be a stranger's."""
    kept = finished.run.trajectory.read_text()
    whole = json.loads(kept)
    whole["steps"][0] |= {"step_id": 2, "tool_calls": whole["steps"][1].pop("tool_calls")}
    finished.run.trajectory.write_text(json.dumps(whole))
    messages = log_of(finished, tmp_path)["samples"][0]["messages"]
    finished.run.trajectory.write_text(kept)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert "tool_call_id" not in messages[2]


def test_the_log_has_no_gold_answers_and_asks_for_plain_text(finished: Finished, tmp_path: Path) -> None:
    log = log_of(finished, tmp_path)
    assert {each["target"] for each in log["samples"]} == {""}
    assert log["eval"]["viewer"]["trust_content"] is False
    assert "####" not in json.dumps([each["messages"] for each in log["samples"]])


def test_an_errored_item_has_an_error_and_no_score(finished: Finished, tmp_path: Path) -> None:
    path = finished.run.items(finished.run.ledger.events(SubmissionAccepted)[1].weights_digest, "public")
    kept = path.read_bytes()
    graded = read_model(path, GradeResult)
    first = graded.items[0].model_copy(update={"verdict": "errored"})
    write_model(path, graded.model_copy(update={"items": (first, *graded.items[1:])}))
    sample = log_of(finished, tmp_path)["samples"][1]
    path.write_bytes(kept)
    assert list(sample["scores"]) == ["base model"]
    assert sample["error"]["message"]


def test_an_episode_has_each_turn_once(finished: Finished, tmp_path: Path) -> None:
    path = finished.run.items(finished.run.ledger.events(SubmissionAccepted)[1].weights_digest, "public")
    outputs, kept = outputs_path(path), outputs_path(path).read_bytes()

    def turn(prompt: str | tuple[Message, ...], answer: str, is_whole: bool) -> Turn:
        return Turn(prompt=prompt, is_whole=is_whole, answer=answer, finish="stop", prompt_tokens=1, tokens=1)

    said = (Message("assistant", "go"), Message("user", "going north: wall"))
    chat = (turn((Message("system", "play"),), "go", True), turn(said, "stop", False))
    text = (turn("play:", "go", True), turn("go\nwall:", "stop", False))
    shortened = (turn((Message("system", "play"),), "<think>hm</think>go", True), turn(said, "go", False))
    found = [Output(item="", turns=turns) for turns in (chat, text, shortened)]
    outputs.write_bytes(gzip.compress("".join(each.model_dump_json() + "\n" for each in found).encode()))
    _, *samples = log_of(finished, tmp_path)["samples"]
    outputs.write_bytes(kept)
    assert [each["id"] for each in samples] == ["conversation 1", "conversation 2", "conversation 3"]
    assert [[message["content"] for message in each["messages"]] for each in samples] == [
        ["play", "go", "going north: wall", "stop"],
        ["play:", "go", "\nwall:", "stop"],
        ["play", "<think>hm</think>go", "going north: wall", "go"],
    ]


def test_the_command_names_the_log_so_that_the_viewer_lists_it(
    finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A2RL_ROOT", str(finished.settings.root))
    monkeypatch.chdir(tmp_path)
    for more in ([], ["-o", "logs"]):
        assert CliRunner().invoke(app, ["export", "inspect", finished.run.id, "2", *more]).exit_code == 0
    written = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.json")]
    assert sorted(map(str, written)) == [
        f"{place}2026-04-12T09-30-15_gsm8k_gsm8k-test-1-submission-2.json" for place in ("", "logs/")
    ]


def test_each_log_of_a_run_has_a_name_and_ids_of_its_own(finished: Finished, tmp_path: Path) -> None:
    assert len({inspect_log_name(finished.run, number) for number in (None, 1, 2)}) == 3
    log = log_of(finished, tmp_path)["eval"]
    assert (log["run_id"], log["eval_id"], log["task_id"]) == ("gsm8k-test-1", *["gsm8k-test-1-submission-2"] * 2)


@pytest.mark.network
@pytest.mark.timeout(1800)
def test_inspect_reads_the_log(finished: Finished, tmp_path: Path) -> None:
    venv, logs = tmp_path / "venv", tmp_path / "logs"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "pip", "install", "-q", "inspect_ai==0.3.285"], check=True)
    log_of(finished, logs)
    read = subprocess.run([venv / "bin" / "python", "-c", READ, logs], check=True, capture_output=True, text=True)
    assert read.stdout.startswith("5 ")
    assert "function='bash'" in read.stdout
