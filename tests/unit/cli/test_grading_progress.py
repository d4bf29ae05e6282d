"""Tests what the terminal says while a grade takes long."""

import io

import pytest

from a2rl.cli import progress as module
from a2rl.cli.console import PlainConsole
from a2rl.cli.flow_runner import Follower
from a2rl.cli.progress import EVERY_S, GradingProgress, progress_bar
from a2rl.grading.outputs import Progress
from a2rl.run.directory import RunDir
from a2rl.run.events import GradingFailed
from tests.written_ledger import accepted

DIGEST = "d" * 64


def test_a_long_grade_is_mentioned_now_and_then_with_an_estimate(run: RunDir) -> None:
    now = [0.0]
    progress, names = GradingProgress(lambda: now[0]), {DIGEST[:16]: "submission 2"}
    file = run.grades / f"{DIGEST[:16]}-public.progress"
    said = []
    for second in range(0, 100, 10):
        now[0] = second
        file.write_text(f"{second} 400 {second} 400")
        said += progress.lines(run, names)
    assert said == [
        "still grading submission 2: 30 of 400 items, about 6m10s left",
        "still grading submission 2: 60 of 400 items, about 5m40s left",
        "still grading submission 2: 90 of 400 items, about 5m10s left",
    ]
    now[0] += EVERY_S
    file.unlink()
    assert progress.lines(run, names) == []
    file.write_text("0 400 0 400")
    assert progress.lines(run, names) == [], "a new grade begins anew"


def test_a_grade_without_progress_has_no_estimate(run: RunDir) -> None:
    now = [0.0]
    progress = GradingProgress(lambda: now[0])
    best = f"{DIGEST[:16]}-private"
    for name, text in (("baseline-graded", "0 9 200 450"), (best, "4 9 4 9"), ("broken-public", "x")):
        (run.grades / f"{name}.progress").write_text(text)
    assert progress.lines(run, {}) == []
    now[0] = 90
    assert sorted(progress.lines(run, {})) == [
        "still grading the base model: 0 of 9 items, 200 answers",
        "still grading the best submission on the held-out items: 4 of 9 items, none of them in the last 1m30s",
    ]


def said_of_baseline(run: RunDir, *progress: tuple[float, str]) -> list[str]:
    """Returns what is said of a grade whose file has these texts, each from a time on."""
    now, said = [0.0], []
    watching = GradingProgress(lambda: now[0])
    for second, text in progress:
        now[0] = second
        (run.grades / "baseline-graded.progress").write_text(text)
        said += watching.lines(run, {})
    return said


def test_the_first_items_of_many_are_no_estimate(run: RunDir) -> None:
    said = said_of_baseline(run, *((at, f"{done} 1319 {done} 1319") for at, done in ((0, 0), (90, 1), (180, 100))))
    assert said == [
        "still grading the base model: 1 of 1319 items",
        "still grading the base model: 100 of 1319 items, about 36m34s left",
    ]


def test_episodes_side_by_side_are_estimated_by_their_step_limit(run: RunDir) -> None:
    known = ((0, 0, 0), (90, 0, 300), (180, 9, 700), (900, 9, 6000), (990, 130, 6900))
    said = said_of_baseline(run, *((at, f"{done} 140 {answers} 7000") for at, done, answers in known))
    assert said == [
        "still grading the base model: 0 of 140 items, 300 answers",
        "still grading the base model: 9 of 140 items, 700 answers, about 27m left",
        "still grading the base model: 9 of 140 items, 6,000 answers, about 2m30s left",
        "still grading the base model: 130 of 140 items, 6,900 answers, about 14s left",
    ]


def test_the_terminal_says_how_far_a_grade_is(run: RunDir) -> None:
    screen, now = io.StringIO(), [0.0]
    follower = Follower([run], PlainConsole(file=screen, width=200))
    follower._progress = GradingProgress(lambda: now[0])
    run.ledger.append(accepted(1, 1.0, DIGEST))
    (run.grades / f"{DIGEST[:16]}-public.progress").write_text("1 8 1 8")
    follower._look()
    now[0] = EVERY_S
    follower._look()
    assert "still grading submission 1: 1 of 8 items" in screen.getvalue()


def test_a_grade_after_a_resume_belongs_to_an_earlier_submission(run: RunDir) -> None:
    run.ledger.append(accepted(3, 1.0, DIGEST))
    screen = io.StringIO()
    follower = Follower([run], PlainConsole(file=screen, width=200))
    run.ledger.append(GradingFailed(weights_digest=DIGEST, elapsed_s=2.0, reason="a GPU was lost"))
    follower._look()
    assert "submission 3 has no grade yet: a GPU was lost" in screen.getvalue()
    assert "output/v3" not in screen.getvalue()


def test_without_a_terminal_there_are_lines_instead_of_a_bar(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress_bar("grading tiny on gsm8k (mini)") as on_progress:
        on_progress(Progress(1, 400, 1, 2400))  # too early to say anything
        monkeypatch.setattr(module, "EVERY_S", 0.0)
        on_progress(Progress(2, 400, 50, 2400))
    assert capsys.readouterr().err == "still grading tiny on gsm8k (mini): 2 of 400 items, 50 answers\n"
