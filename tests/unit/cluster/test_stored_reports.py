"""A report over runs that other checkouts have done, from the store alone."""

import json
from pathlib import Path

import pytest

from a2rl.cli.stored_runs import report as write_report
from a2rl.cluster.holding import Cluster, held, new_run
from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.results.suite.files import NOT_THERE, runs_of, write_suite_report
from a2rl.results.suite.run_summary import summary_of
from a2rl.run.directory import RunDir
from a2rl.run.events import RunInterrupted
from tests.run_maker import checkout, spec
from tests.simulated_runs import simulate_run


@pytest.fixture
def other(tmp_path: Path, settings: Settings) -> Settings:
    """A checkout with the same store as the first."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    made = checkout(folder)
    for each in (settings, made):
        each.environ["A2RL_STORE"] = f"file://{tmp_path}/store"
    return made


def do_runs(settings: Settings, *numbers: int) -> None:
    for number in numbers:
        run = simulate_run(settings, number, tokens=1000, gpus=2, grading_gpus=1)
        run.report.parent.mkdir()
        run.report.write_text("a page")
        with held(run, settings):
            pass


def report(settings: Settings) -> dict[str, object]:
    page = write_suite_report("all", runs_of(["sim-launch"], settings), settings)
    found: dict[str, object] = json.loads(page.with_name("report.json").read_text())
    return found


def test_a_checkout_without_the_runs_reports_the_same(settings: Settings, other: Settings) -> None:
    do_runs(settings, 1, 2, 3)
    assert report(other) == report(settings)
    assert not other.runs.exists()


def test_what_a_fetched_run_has_used_is_known(settings: Settings, other: Settings) -> None:
    do_runs(settings, 1)
    there, here = (summary_of(run) for at in (other, settings) for run in runs_of(["sim-launch"], at))
    assert there.gpu_hours == pytest.approx(3 * here.agent_s / 3600)
    assert there.tries[0].tokens is not None
    assert there.model_copy(update={"state": here.state}) == here


def test_runs_of_several_checkouts_are_in_one_report(settings: Settings, other: Settings) -> None:
    do_runs(settings, 1, 2)
    do_runs(other, 3)
    page = write_suite_report("all", runs_of(["sim-launch"], other), other).read_text()
    assert "../../.fetched/gsm8k-sim-00001/report/index.html" in page
    assert "../../runs/gsm8k-sim-00003/report/index.html" in page
    assert report(other) == report(settings)


def test_runs_that_nobody_has_begun_are_named_as_missing(
    settings: Settings, other: Settings, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    do_runs(other, 1)
    of_launch = [spec(run_id=name, suite="tests", launch="sim-launch") for name in ("b", "c")]
    others = [spec(run_id="d", suite="other", launch="other-launch")]
    Cluster.needed(settings).claims.register([new_run(each, "pool") for each in (*of_launch, *others)])
    monkeypatch.setattr(Settings, "load", lambda *_: settings)
    write_report(suite=["sim-launch"])
    said = capsys.readouterr()
    assert "Left out: 2 of 3 runs" in said.err
    found = json.loads(Path(said.out.strip()).with_name("report.json").read_text())
    assert found["unreadable"] == {"b": NOT_THERE, "c": NOT_THERE}


def test_a_run_that_went_on_elsewhere_is_fetched_again(settings: Settings, other: Settings) -> None:
    do_runs(settings, 1)
    [first] = runs_of(["sim-launch"], other)
    known, run = len(first.ledger.rows()), RunDir(settings.runs / first.id)
    with held(run, settings):
        run.ledger.append(RunInterrupted(stage="execute"))
    [again] = runs_of(["sim-launch"], other)
    assert len(again.ledger.rows()) == known + 1


def test_a_copy_that_lacks_an_object_is_an_error(settings: Settings, other: Settings) -> None:
    """It does not make a shorter report."""
    do_runs(settings, 1)
    store = Cluster.needed(settings).store.local_folder
    assert store is not None
    next(iter((store / "runs/gsm8k-sim-00001/ledger").glob("*.json"))).unlink()
    with pytest.raises(InfrastructureError, match="read the ledger"):
        runs_of(["sim-launch"], other)
