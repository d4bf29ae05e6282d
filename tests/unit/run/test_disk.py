"""Tests that a run whose checkpoints would not fit is refused before it begins, with the numbers and a way out."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.models.checkpoint import unpacked_bytes
from a2rl.run.disk import MARGIN, check_disk, disk_need, disk_of_runs, disk_of_suite, suite_shortage
from a2rl.run.rules import MAX_WAITING, TYPICAL_SUBMISSIONS
from a2rl.run.spec import Keep, RunSettings

GB = 1_000_000_000


@pytest.mark.parametrize(
    ("keep", "submissions", "kept"),
    [("all", None, TYPICAL_SUBMISSIONS), ("all", 20, 20), ("best", 20, 1 + MAX_WAITING),
     ("none", 20, 1 + MAX_WAITING), ("best", 2, 2)],
)  # fmt: skip
def test_a_run_takes_what_it_keeps_and_two_more(keep: Keep, submissions: int | None, kept: int) -> None:
    settings = RunSettings(keep=keep, max_submissions=submissions)
    assert disk_need(settings, GB) == (kept, (kept + 2) * GB + MARGIN)


def test_a_run_that_fits_begins_and_one_that_does_not_is_refused(
    base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, size = RunSettings(max_submissions=20), unpacked_bytes(base_model)
    free = [22 * size + MARGIN]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    check_disk(settings, size, tmp_path)
    free[0] -= 1
    with pytest.raises(
        UsageError, match=r"20 submissions.*are free\. Free some space.*--keep best.*--max-submissions 19"
    ):
        check_disk(settings, size, tmp_path)
    check_disk(settings.model_copy(update={"keep": "best"}), size, tmp_path)
    check_disk(settings.model_copy(update={"max_submissions": 19}), size, tmp_path)
    free[0] = MARGIN
    with pytest.raises(UsageError) as refused:
        check_disk(settings.model_copy(update={"keep": "none"}), size, tmp_path)
    assert "--keep" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_suite_that_does_not_fit_is_said_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each run keeps and its agent leaves counts, and what only those that are at work take."""
    run, free = RunSettings(max_submissions=20), [220 * GB]
    best, none = (run.model_copy(update={"keep": keep}) for keep in ("best", "none"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    assert disk_of_suite([(run, GB)], 1) == 20 * GB + disk_need(run, GB).bytes
    assert disk_of_suite([(run, GB)] * 6, 2) == (6 * (20 + 20) + 2 * 2) * GB + MARGIN
    assert disk_of_suite([(best, GB)] * 6, 1) == (5 + 6 * 20) * GB + disk_need(best, GB).bytes
    assert disk_of_suite([(none, GB)] * 6, 1) == 6 * 20 * GB + disk_need(none, GB).bytes
    assert suite_shortage([(run, GB)] * 5, 1, tmp_path) == ""
    said = suite_shortage([(run, GB)] * 6, 1, tmp_path)
    assert "these 6 runs take up to 242.5 GB" in said
    assert "and 220.0 GB are free" in said
    assert "or use --keep best (132.5 GB)" in said
    free[0] = GB
    assert "--keep" not in suite_shortage([(best, GB)] * 6, 1, tmp_path)


def test_the_space_is_that_of_the_disk_with_the_runs(settings: Settings, tmp_path: Path) -> None:
    assert disk_of_runs(settings) == settings.root
    (tmp_path / "large").mkdir()
    (settings.root / "runs").symlink_to(tmp_path / "large")
    assert disk_of_runs(settings) == tmp_path / "large"
