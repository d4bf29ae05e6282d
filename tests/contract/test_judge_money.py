"""Tests `--max-judge-usd` of a run: its submissions, its final grade and its report."""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest
from fastapi.testclient import TestClient

from a2rl.cli.results import run_object, show_run
from a2rl.core.errors import A2rlError
from a2rl.core.files import write_model
from a2rl.core.settings import Settings
from a2rl.grading.app import create_app
from a2rl.grading.grades import grade_job
from a2rl.grading.job import GradeJob, GradeResult, ids_of_job, run_job
from a2rl.grading.pool import GraderPool, GradingError
from a2rl.grading.run_judge import is_judge_unpaid, judge_allowance_usd
from a2rl.grading.service import GradingService
from a2rl.judge.account import Account, SpendLimitError
from a2rl.judge.client import DOLLARS
from a2rl.judge.params import JudgeParams
from a2rl.results.figures import result_metrics
from a2rl.results.mlflow.tracking import Tracker
from a2rl.results.report.page import write_report
from a2rl.results.verify import verify_run
from a2rl.run.directory import RunDir
from a2rl.run.events import Graded, GradingFailed
from a2rl.run.records import BaselineRecord, ExecuteRecord
from a2rl.scoring.score import ItemResult
from stages.grade import grade
from tests.run_maker import FakePool, end_agent, finished_run, grade_private, grade_result, make_run
from tests.small_model import trained_copy

JUDGE = JudgeParams(name="dear", model="m", annotator="weighted_alpaca_eval_gpt4_turbo", decoding={})
PRICE = 1.0
"""Of one grade, in dollars."""


class PaidPool(FakePool):
    """A pool whose grades cost a dollar, and fail without money, as those of a real one."""

    def submit(self, job: GradeJob, on: Iterable[str] = ()) -> "Future[GradeResult]":
        assert job.account is not None
        account = Account(job.account, job.judge_usd)
        try:
            account.require_money()
        except SpendLimitError as error:
            failed: Future[GradeResult] = Future()
            failed.set_exception(GradingError(str(error), 0.1))
            return failed
        account.add("judgement", job.judged_for, 1000, 10, PRICE)
        return super().submit(job, on)


@pytest.fixture
def new_run(settings: Settings, base_model: Path) -> Callable[..., RunDir]:
    return lambda **changes: make_run(settings, base_model, **{"judge": JUDGE, **changes})


def submit(run: RunDir, settings: Settings, base_model: Path, count: int) -> list[Any]:
    service = GradingService(run, cast(GraderPool, PaidPool()))
    client = TestClient(create_app(service, "gsm8k", []))
    for number in range(count):
        trained_copy(base_model, run.workspace / "output" / f"v{number}", number + 1)
    return [client.post("/submit", json={"model_path": f"output/v{number}"}) for number in range(count)]


class LastDollarPool(FakePool):
    """A pool whose judge fails after the run's last dollar was spent."""

    def grade_all(self) -> None:
        while self._waiting:
            job, future = self._waiting.pop()
            assert job.account is not None
            Account(job.account).add("judgement", job.judged_for, dollars=9.0)
            items = [ItemResult(id=each, verdict="errored", reason="HTTP 503") for each in ids_of_job(job)]
            result = grade_result(items, 0.5)
            write_model(job.result, result)
            future.set_result(result)


def test_a_judge_that_fails_without_money_left_gives_a_reason(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    """Another try could not be paid for."""
    run = new_run(max_judge_usd=1.0)
    trained_copy(base_model, run.workspace / "output" / "v1", 1)
    client = TestClient(create_app(GradingService(run, cast(GraderPool, LastDollarPool())), "gsm8k", []))
    answer = client.post("/submit", json={"model_path": "output/v1"})
    assert answer.status_code == 503
    assert "HTTP 503" in answer.json()["detail"]
    [graded] = run.ledger.events(Graded)
    assert graded.result.score is None
    assert "HTTP 503" in graded.result.reason


@pytest.mark.heavy
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_submissions_beyond_the_money_have_no_score(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path, protocol: str
) -> None:
    """The agent is told why."""
    run = new_run(max_judge_usd=2.5, protocol=protocol)
    answers = submit(run, settings, base_model, 4)
    paid = 2 if protocol == "strict" else 3  # under the strict protocol, the price of the final grade is kept
    assert [answer.status_code for answer in answers] == [200] * paid + [503] * (4 - paid)
    assert "the run's money for its judge is used up" in answers[-1].json()["detail"]
    assert "--max-judge-usd" in answers[-1].json()["detail"]
    grades = run.ledger.events(Graded)
    assert [grade.result.score is None for grade in grades] == [False] * paid + [True] * (4 - paid)
    assert "used up" in grades[-1].result.reason
    assert not run.ledger.events(GradingFailed)  # it will not succeed later
    assert Account(run.account).use().dollars == paid * PRICE


def test_the_final_grade_has_what_the_submissions_left(
    new_run: Callable[..., RunDir], settings: Settings, base_model: Path
) -> None:
    run = new_run(max_judge_usd=2.5)
    assert judge_allowance_usd(run, "public") == judge_allowance_usd(run, "private") == 2.5
    submit(run, settings, base_model, 3)
    assert (judge_allowance_usd(run, "public"), judge_allowance_usd(run, "private")) == (1.5, 2.5)
    assert is_judge_unpaid(run, "public")
    assert not is_judge_unpaid(run, "private")
    end_agent(run)
    grade_private(run)
    record = grade(run, settings)
    assert record.final is not None
    assert record.judge is not None
    assert (record.judge.use.requests, record.judge.use.dollars, record.judge.limit_usd) == (2, 2.0, 2.5)


def test_the_base_models_price_is_reserved_first(new_run: Callable[..., RunDir]) -> None:
    """It is kept before the first submission."""
    run = new_run(max_judge_usd=10.0)
    base = run.need("baseline", BaselineRecord)
    priced = base.private.model_copy(update={"measures": {DOLLARS: 0.5}})
    run.write("baseline", base.model_copy(update={"private": priced}))
    assert judge_allowance_usd(RunDir(run.root), "public") == 10.0 - 0.5 * base.private.total


def test_runs_without_a_limit_or_a_judge_have_no_allowance(settings: Settings, base_model: Path) -> None:
    assert judge_allowance_usd(make_run(settings, base_model, run_id="a", judge=JUDGE), "public") is None
    run = make_run(settings, base_model, run_id="b", max_judge_usd=1.0)
    assert judge_allowance_usd(run, "public") is None
    assert grade_job(run, base_model, "public", run.grades / "x.json").account is None


def test_a_grade_without_money_fails_before_the_model_is_loaded(
    new_run: Callable[..., RunDir], settings: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = new_run(max_judge_usd=1.0, judge=JUDGE.model_copy(update={"api_key_env": None}))
    Account(run.account).add("judgement", "x-public", dollars=1.0)
    job = grade_job(run, tmp_path / "no-model", "public", run.grades / "x.json")
    monkeypatch.setattr(Settings, "load", lambda: settings)
    with pytest.raises(A2rlError, match="used up"):
        run_job(job)
    assert not job.result.exists()


@pytest.mark.heavy
def test_what_the_judge_cost_is_shown_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, settings = finished_run(tmp_path / "checkout", judge=JUDGE, max_judge_usd=9.0)
    Account(run.account).add("judgement", "x-private", 500, 20, 1.25)
    run.record_path("grade").unlink()
    record = grade(RunDir(run.root), settings)
    metrics = result_metrics(run, record, run.read("execute", ExecuteRecord))
    assert (metrics["judge_usd"], metrics["judge_requests"]) == (1.25, 1)
    assert run_object(run)["judge"]["use"]["dollars"] == 1.25
    assert problem_of_account(run, settings) == ""
    write_report(run, settings)
    page = run.report.read_text()
    assert "The judge" in page
    assert "$1.2500" in page
    show_run(run, as_json=False)
    printed = " ".join(capsys.readouterr().out.split())
    assert "judge dear (weighted_alpaca_eval_gpt4_turbo): 1 requests, $1.25 of $9.00" in printed


def problem_of_account(run: RunDir, settings: Settings) -> str:
    [problem] = [check.problem for check in verify_run(run, Tracker(settings)) if "the judge" in check.what]
    return problem


@pytest.mark.heavy
def test_a_record_that_hides_what_was_paid_is_found(tmp_path: Path) -> None:
    run, settings = finished_run(tmp_path / "checkout", judge=JUDGE)
    assert problem_of_account(run, settings) == ""
    Account(run.account).add("judgement", "x-public", 1, 1, 5.0)
    assert "account.db says something else" in problem_of_account(run, settings)
