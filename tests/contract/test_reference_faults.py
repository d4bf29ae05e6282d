"""Regression tests for ten faults of the paper's reference code (rdagent/scenarios/rl/autorl_bench).

What the sandbox hides from the agent is tested with the sandbox. The tests here check that the environment is clean,
that data is copied instead of linked, and that the workspace has no hidden data.
"""

import ast
import json
import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from fastapi.testclient import TestClient

from a2rl.agent_systems.definition import Agent
from a2rl.core.errors import InfrastructureError, InvalidSubmissionError
from a2rl.core.files import digest_of
from a2rl.core.processes import child_environment
from a2rl.core.settings import Settings
from a2rl.execution.workspace import agent_environment, build_workspace
from a2rl.grading.answers import RUN_META, run_meta
from a2rl.grading.app import create_app
from a2rl.grading.baseline import StoredBaseline, load_or_grade
from a2rl.grading.dependencies import baseline_key
from a2rl.grading.grades import grade_job
from a2rl.grading.job import GradeJob, GradeResult
from a2rl.grading.pool import GraderPool
from a2rl.grading.service import GradingService
from a2rl.grading.service_process import ServiceProcess
from a2rl.models.base_model import model_digest
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, SubmissionAccepted
from a2rl.sandbox.command import AgentCommand
from a2rl.sandbox.process import AgentProcess
from a2rl.scoring.score import ItemResult, summarise
from a2rl.task_api.contract import Limits
from tasks.gsm8k import grade as gsm8k
from tests.fake_sampler import FakeSampler
from tests.run_maker import (
    FakePool,
    alive,
    grade_result,
    item_results,
    make_hidden,
    right_answers,
    submit_checkpoint,
    wait_for,
    worker_pids,
)
from tests.small_model import edit_json, trained_copy


def service_of(run: RunDir, settings: Settings, pool: FakePool | None = None) -> GradingService:
    return GradingService(run, cast(GraderPool, pool or FakePool()))


def client_of(run: RunDir, settings: Settings, pool: FakePool | None = None) -> TestClient:
    return TestClient(create_app(service_of(run, settings, pool), "gsm8k", []), raise_server_exceptions=False)


@pytest.fixture
def v1(run: RunDir, base_model: Path) -> str:
    trained_copy(base_model, run.workspace / "output" / "v1", seed=1)
    return "output/v1"


# 1


def test_what_the_agent_writes_changes_no_score_or_clock(run: RunDir, settings: Settings, v1: str) -> None:
    """It does not change the baseline either."""
    client = client_of(run, settings)
    forged = {"start_time": time.time() + 1e6, "timeout_s": 1e9, "end_time": 9e9, "baseline_score": 0, "score": 100}
    for name in ("run_meta.json", "scores.json", "grade.json", "clock.json", "spec.json", "output/scores.json"):
        (run.workspace / name).write_text(json.dumps(forged))
    answer = client.post("/submit", json={"model_path": v1}).json()
    assert answer["score"] == 100 * right_answers(run.workspace / v1, 4) / 4
    assert answer["baseline_score"] == 50.0
    assert client.get("/time").json()["remaining"] <= 600


def test_there_is_no_way_to_set_the_baseline(run: RunDir, settings: Settings) -> None:
    assert client_of(run, settings).post("/set_baseline", json={"score": 0.0}).status_code == 404


def test_the_grading_service_listens_on_this_machine_alone(run: RunDir, settings: Settings) -> None:
    with ServiceProcess(run, settings) as server:
        assert server.url.startswith("http://127.0.0.1:")
        port = int(server.url.rpartition(":")[2])
        listening = [line.split() for name in ("tcp", "tcp6") for line in _proc_net(name) if f":{port:04X} " in line]
        assert {fields[1] for fields in listening if fields[3] == "0A"} == {f"0100007F:{port:04X}"}


def _proc_net(name: str) -> list[str]:
    path = Path("/proc/net") / name
    return path.read_text().splitlines()[1:] if path.exists() else []


# 2


def test_the_agent_gets_copies_and_a_clean_environment(
    settings: Settings, base_model: Path, run: RunDir, tmp_path: Path
) -> None:
    """It gets no hidden data."""
    host = replace(settings, environ={**settings.environ, "OPENAI_API_KEY": "sk-secret"})
    visible = make_hidden(tmp_path / "visible", items=2)
    (tmp_path / "description.md").write_text("x")
    for made in (run.workspace, run.given):
        shutil.rmtree(made)
    build_workspace(run, base_model, visible, tmp_path / "description.md")
    agent = Agent(id="a", title="a", start=("true",))
    assert "sk-secret" not in agent_environment(run, agent, "http://x", host).values()
    before = model_digest(base_model)
    for path in [path for folder in (run.workspace, run.given) for path in folder.rglob("*") if path.is_file()]:
        assert not path.is_symlink()
        path.chmod(0o644)
        path.write_bytes(b"spoilt")
    assert model_digest(base_model) == before
    assert "spoilt" not in (visible / "eval.jsonl").read_text()


def test_grading_writes_only_the_time_into_the_workspace(run: RunDir, settings: Settings, v1: str) -> None:
    """That is the time of the submission."""

    def found() -> dict[Path, int]:
        below = run.workspace.rglob("*")
        return {path: path.stat().st_mtime_ns for path in below if path != run.workspace / RUN_META}

    before = found()
    assert client_of(run, settings).post("/submit", json={"model_path": v1}).status_code == 200
    assert found() == before
    assert not run.grades.is_relative_to(run.workspace)


# 3


def test_no_code_of_a_submission_is_ever_run(run: RunDir, settings: Settings, v1: str) -> None:
    folder = run.workspace / v1
    (folder / "modeling_mine.py").write_text("raise SystemExit('remote code ran')")
    (folder / "chat_template.jinja").write_text("The answer is 42.")
    accepted = submit_checkpoint(service_of(run, settings), v1).outcome.result(60).accepted
    names = {path.name for path in run.checkpoint(accepted.weights_digest).iterdir()}
    assert not {name for name in names if name.endswith((".py", ".jinja", ".bin", ".pkl"))}
    edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_mine.Model"})
    with pytest.raises(InvalidSubmissionError, match="the grader never runs"):
        submit_checkpoint(service_of(run, settings), v1).outcome.result(60)


def test_remote_code_and_pickles_are_switched_on_nowhere(repository: Path) -> None:
    for path in [*(repository / "a2rl").rglob("*.py"), *(repository / "tasks").rglob("*.py")]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
                assert isinstance(node.value, ast.Constant), path
                assert node.value.value is False, path
            assert not (isinstance(node, ast.Import) and any(each.name == "pickle" for each in node.names)), path
            assert not (isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load"), path


# 4


def test_a_grader_that_fails_gives_no_score_and_not_a_zero(run: RunDir, settings: Settings, v1: str) -> None:
    answer = client_of(run, settings, FakePool(failure="out of memory")).post("/submit", json={"model_path": v1})
    assert answer.status_code == 503
    assert "score" not in answer.json()
    assert run.ledger.events(Graded) == []


def test_a_failed_baseline_is_no_baseline_and_is_not_kept(run: RunDir, settings: Settings, base_model: Path) -> None:
    job = grade_job(run, base_model, "all", run.grades / "baseline-graded.json")

    def fail(_: GradeJob) -> GradeResult:
        return grade_result([ItemResult(id="0", verdict="errored", reason="the judge is down")], 1.0)

    def work(_: GradeJob) -> GradeResult:
        return grade_result(item_results(["0", "1"], 1), 1.0)

    with pytest.raises(InfrastructureError, match="the judge is down"):
        load_or_grade(job, {"model": "m"}, settings, fail)
    assert not list(settings.baselines.rglob("*.json"))
    stored = load_or_grade(job, {"model": "m"}, settings, work)
    assert (summarise(stored.items).score, stored.reused) == (50.0, False)


def test_an_empty_answer_is_wrong_and_an_unjudged_one_is_not(tmp_path: Path) -> None:
    hidden = make_hidden(tmp_path / "hidden", items=3)
    items = gsm8k.score_outputs({"0": "", "1": "   "}, hidden, ["0", "1", "2"], Limits(max_new_tokens=4))
    assert [item.verdict for item in items] == ["wrong", "wrong", "errored"]
    assert summarise(items).score is None


# 5


def test_one_clock_is_told_to_the_agent_enforced_and_served(run: RunDir, settings: Settings, v1: str) -> None:
    client = client_of(run, settings)
    left = run.clock.remaining_s()
    told = json.loads(run_meta(run, {}))["end_time"]
    answered = client.get("/time").json()
    assert abs(answered["remaining"] - left) < 1
    assert abs(answered["end_time"] - told) <= 2
    state = run.clock.read_state()
    run.clock.path.write_text(state.model_copy(update={"consumed_s": run.spec.budget_s - 5}).model_dump_json())
    assert client.get("/time").json()["remaining"] <= 5
    assert client.post("/submit", json={"model_path": v1}).status_code == 200
    run.clock.path.write_text(state.model_copy(update={"consumed_s": run.spec.budget_s + 60}).model_dump_json())
    assert client.post("/submit", json={"model_path": v1}).status_code == 403


def test_a_submission_that_is_graded_at_the_deadline_counts(run: RunDir, settings: Settings, v1: str) -> None:
    pool = FakePool(at_once=False)
    submit_checkpoint(service_of(run, settings, pool), v1)
    run.clock.stop()
    pool.grade_all()
    assert run.ledger.events(Graded)[0].result.score is not None


# 6


def test_the_exit_status_is_the_agents_own(settings: Settings, tmp_path: Path) -> None:
    """It is not that of whatever keeps its log."""
    command = AgentCommand(["sh", "-c", "echo working; exit 3"], str(tmp_path), dict(os.environ), str(tmp_path / "log"))
    with AgentProcess(command, settings) as process:
        ended = wait_for(lambda: process.wait(1))
    assert ended.exit_code == 3
    assert (tmp_path / "log").read_text() == "working\n"


# 7


def test_concurrent_submissions_lose_nothing_and_share_no_id(run: RunDir, settings: Settings, v1: str) -> None:
    client = client_of(run, settings)
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: client.post("/submit", json={"model_path": v1}).json(), range(8)))
    assert sorted(answer["submission_id"] for answer in answers) == list(range(1, 9))
    assert len(run.ledger.events(SubmissionAccepted)) == 8
    assert len(run.ledger.events(Graded)) == 1


def test_the_device_of_a_worker_is_in_no_other_environment(settings: Settings) -> None:
    before = dict(os.environ)
    with GraderPool(settings, ["0", "1"]) as pool:
        pids = worker_pids(pool)
        devices = {_environ(pid)["CUDA_VISIBLE_DEVICES"] for pid in pids}
    assert devices == {"0", "1"}
    assert dict(os.environ) == before
    assert child_environment(settings)["CUDA_VISIBLE_DEVICES"] == ""
    assert not any(alive(pid) for pid in pids)


def _environ(pid: int) -> dict[str, str]:
    raw = wait_for(lambda: Path(f"/proc/{pid}/environ").read_bytes()).decode()
    return dict(entry.split("=", 1) for entry in raw.split("\0") if "=" in entry)


# 8


def test_all_items_are_generated_in_one_batch(tmp_path: Path) -> None:
    hidden, sampler = make_hidden(tmp_path / "hidden", items=50), FakeSampler(lambda prompt: "#### 1")
    gsm8k.grade(sampler, hidden, gsm8k.item_ids(hidden), Limits(max_new_tokens=4), {})
    assert sampler.calls == [50]


# 9


def test_the_grader_writes_the_diary_of_a_run(run: RunDir, settings: Settings, v1: str) -> None:
    """It has the code, tokens, seed and intervals."""
    (run.workspace / "code" / "train.py").write_text("print('training')")
    submit_checkpoint(service_of(run, settings), v1)
    [accepted], [graded] = run.ledger.events(SubmissionAccepted), run.ledger.events(Graded)
    assert accepted.code_revision
    assert (run.code / "train.py").read_text() == "print('training')"
    assert graded.result.ci is not None
    assert "tokens" in type(graded.result).model_fields
    assert run.spec.seed == 0
    for path in (run.ledger.path, run.code, run.grades, run.checkpoints, run.clock.path):
        assert path.exists()
        assert not path.is_relative_to(run.workspace)


# 10


def test_a_baseline_is_kept_by_content_and_not_by_name(
    run: RunDir, settings: Settings, base_model: Path, tmp_path: Path
) -> None:
    renamed = shutil.copytree(base_model, tmp_path / "renamed")
    same_name = trained_copy(base_model, tmp_path / "other" / base_model.name, seed=3)
    job = grade_job(run, base_model, "all", run.grades / "baseline-graded.json")

    def key(model: Path, data: str = "data", **changes: object) -> str:
        return digest_of(baseline_key(job.model_copy(update=changes), model_digest(model), data, settings))

    assert key(base_model) == key(renamed)
    assert len({key(base_model), key(same_name), key(base_model, "other data"), key(base_model, exact=True)}) == 4
    edit_json(renamed / "tokenizer_config.json", chat_template="another")
    assert key(renamed) != key(base_model)


def test_a_baseline_whose_items_contradict_its_score_is_not_used(run: RunDir, settings: Settings) -> None:
    job = grade_job(run, run.root, "all", run.grades / "baseline-graded.json")
    asked: list[GradeJob] = []

    def work(job: GradeJob) -> GradeResult:
        asked.append(job)
        return grade_result(item_results([str(each) for each in range(4)], 1), 1.0)

    def load() -> StoredBaseline:
        return load_or_grade(job, {"model": "m"}, settings, work)

    assert [load().reused, load().reused] == [False, True]
    edit_json(next(settings.baselines.rglob("score.json")), score=0.0)
    again = load()
    assert not again.reused
    assert summarise(again.items).score == 25.0
    assert len(asked) == 2
