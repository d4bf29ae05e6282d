"""Tests `a2rl watch`: what it says of runs in each phase, and that it reads only what is new."""

import io
import subprocess
from functools import partial
from pathlib import Path

import pytest
from rich.live import Live

from a2rl.cli.console import PlainConsole
from a2rl.cli.watching import LiveRun, Watcher, live_table, sparkline, table_below
from a2rl.core.errors import UsageError
from a2rl.core.files import read_model, write_model
from a2rl.core.settings import Settings
from a2rl.run.directory import RunDir
from a2rl.run.events import AgentEnded, AgentStarted, BaselineKnown
from a2rl.run.failure import mark_refused
from a2rl.run.ledger import Ledger
from a2rl.run.owner import LOCK, Owner, create_run, owned
from a2rl.scoring.score import TaskScore
from tests.run_maker import checkout, spec
from tests.simulated_runs import simulate_run
from tests.written_ledger import tried


def every_run(_: RunDir) -> bool:
    return True


def score(points: float) -> TaskScore:
    return TaskScore(score=points, total=10, correct=1, wrong=9, truncated=0, errored=0)


def shown(runs: list[LiveRun], height: int | None = None) -> str:
    console = PlainConsole(file=io.StringIO(), width=160)
    console.print(live_table(runs, height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return checkout(tmp_path)


def submit(run: RunDir, number: int, points: float) -> None:
    for event in tried(number, number, score(points)):
        run.ledger.append(event)


def test_a_run_is_followed_from_waiting_to_its_end(settings: Settings) -> None:
    run = RunDir.create(settings.runs, spec())
    watcher = Watcher(settings.runs, every_run)
    [state] = watcher.look()
    assert (state.phase, state.best, state.submissions) == ("waiting", None, 0)
    run.ledger.append(BaselineKnown(key="k", public=score(10.0), private=score(10.0), items_digest="i"))
    run.ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    submit(run, 1, 30.0)
    submit(run, 2, 20.0)
    [state] = watcher.look()
    assert (state.phase, state.baseline, state.scores, state.best) == ("running", 10.0, (30.0, 20.0), 30.0)
    run.ledger.append(AgentEnded(attempt=1, elapsed_s=5, reason="finished", exit_code=0))
    assert watcher.look()[0].phase == "grading"
    assert not state.has_ended


def test_a_run_on_which_nobody_works_is_interrupted(settings: Settings) -> None:
    run = RunDir.create(settings.runs, spec())
    run.ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    watcher = Watcher(settings.runs, every_run)
    with owned(run):
        assert watcher.look()[0].phase == "running"
    [state] = watcher.look()
    assert state.phase == "interrupted"
    assert state.has_ended
    with owned(run):
        assert watcher.look()[0].phase == "running"


def test_a_run_whose_folder_was_removed_is_not_shown(settings: Settings) -> None:
    """Otherwise it would seem to be at work for ever. One that is put back is followed again."""
    run = RunDir.create(settings.runs, spec())
    run.ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    with owned(run):
        pass
    watcher = Watcher(settings.runs, every_run)
    assert [each.phase for each in watcher.look()] == ["interrupted"]
    run.root.rename(settings.root / "aside")
    assert watcher.look() == []
    (settings.root / "aside").rename(run.root)
    assert [each.phase for each in watcher.look()] == ["interrupted"]


def test_runs_that_a_stopped_bench_never_began_have_ended(settings: Settings) -> None:
    create_run(spec(), settings)
    watcher = Watcher(settings.runs, every_run)
    [state] = watcher.look()
    assert (state.phase, state.has_ended) == ("waiting", False)
    ended = subprocess.Popen(["true"])
    ended.wait()
    owner = read_model(settings.runs / spec().run_id / LOCK, Owner)
    write_model(settings.runs / spec().run_id / LOCK, owner.model_copy(update={"pid": ended.pid}))
    [state] = watcher.look()
    assert (state.phase, state.has_ended) == ("interrupted", True)


def test_a_run_of_another_machine_is_not_taken_for_interrupted(settings: Settings) -> None:
    run = RunDir.create(settings.runs, spec())
    run.ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    write_model(run.root / LOCK, Owner(pid=1, host="another", since=""))
    assert Watcher(settings.runs, every_run).look()[0].phase == "running"


def test_runs_at_work_come_first_and_the_overflow_is_counted(settings: Settings) -> None:
    for number in range(1, 6):
        simulate_run(settings, number)
    RunDir.create(settings.runs, spec(run_id="zzz")).ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    runs = Watcher(settings.runs, every_run).look()
    assert runs[0].spec.run_id == "zzz"
    text = shown(runs, height=10)
    assert "5 of 6 runs have ended; 4 more are not shown" in text
    assert "$2.50" in shown(runs)


def test_only_the_runs_that_are_meant_are_shown(settings: Settings) -> None:
    simulate_run(settings, 1, suite="one")
    simulate_run(settings, 2, suite="two", launch="two-x")
    for name in ("two", "two-x", "gsm8k-sim-00002"):
        found = Watcher(settings.runs, partial(RunDir.goes_by, names=[name])).look()
        assert [run.spec.suite for run in found] == ["two"]


def test_a_refused_and_a_damaged_run_are_shown_as_such(settings: Settings) -> None:
    mark_refused(RunDir.create(settings.runs, spec(run_id="a")), UsageError("no such model"))
    RunDir.create(settings.runs, spec(run_id="b")).ledger.path.write_text("this is no database, but long enough" * 9)
    runs = Watcher(settings.runs, every_run).look()
    assert {run.spec.run_id: run.phase for run in runs} == {"a": "refused", "b": "damaged"}


def test_a_run_that_is_damaged_for_a_moment_is_followed_on(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    RunDir.create(settings.runs, spec(run_id="half-written")).root.joinpath("spec.json").write_text("{")
    RunDir.create(settings.runs, spec()).ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    watcher = Watcher(settings.runs, every_run)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "entries", lambda *_, **__: (_ for _ in ()).throw(OSError("the disk hangs")))
        assert [run.phase for run in watcher.look()] == ["damaged"]
    assert [run.phase for run in watcher.look()] == ["running"]


def test_a_table_that_fails_stops_no_run_and_hides_no_end() -> None:
    def look() -> list[LiveRun]:
        raise ValueError("not to be shown")

    console = PlainConsole(file=io.StringIO(), width=160, height=30, force_terminal=True)
    with pytest.raises(UsageError, match="of the runs"), table_below(look, console):
        raise UsageError("of the runs")


def test_an_id_cannot_draw_on_the_terminal(settings: Settings) -> None:
    RunDir.create(settings.runs, spec(agent="x")).ledger.append(AgentStarted(attempt=1, elapsed_s=0))
    [run] = Watcher(settings.runs, every_run).look()
    hostile = run._replace(spec=run.spec.model_copy(update={"run_id": "a\x1b[2J[red]b"}))
    assert "\x1b" not in shown([hostile])
    assert "[red]" in shown([hostile])


def test_the_small_chart_scales_the_last_scores_from_low_to_high() -> None:
    assert sparkline((), None) == ""
    assert sparkline((10.0, 20.0), 0.0) == "▅█"
    assert sparkline((5.0, 5.0), 5.0) == "▁▁"
    assert len(sparkline([float(each) for each in range(50)], 0.0)) == 16


def test_the_table_fits_the_terminal_and_is_gone_at_the_end(settings: Settings) -> None:
    simulate_run(settings, 1)
    watcher = Watcher(settings.runs, every_run)
    console = PlainConsole(file=io.StringIO(), width=160, height=30, force_terminal=True)
    with table_below(watcher.look, console) as live:
        assert isinstance(live, Live)
        live.refresh()
        console.print("a line above")
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "1 of 1 runs have ended" in text
    assert "a line above" in text
    assert text.endswith("\x1b[2K"), "the table is erased"


def test_without_a_terminal_nothing_is_drawn(settings: Settings) -> None:
    console = PlainConsole(file=io.StringIO(), width=160)
    with table_below(Watcher(settings.runs, every_run).look, console):
        pass
    assert isinstance(console.file, io.StringIO)
    assert console.file.getvalue() == ""
