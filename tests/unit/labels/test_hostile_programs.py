"""Tests that no program and no transcript of an agent changes a result, or takes long or much memory."""

from pathlib import Path

import pytest

from tests.hostile_programs import MAX_BYTES, MAX_SECONDS, Hostile, hostile, memory_bytes, show
from tests.run_maker import checkout

SAMPLE = (
    *("elif, 900", "sum, 900", "integers, 900", "doubling, 400", "calls of calls, 400", "itself", "scripts"),
    *("transcript, deep arguments", "transcript, page", "trace, types"),
)
WITHOUT_PAGE = ("transcript, empty lists",)
"""Reading it takes more memory than the page's process has. a2rl itself writes no such transcript."""


def assert_harmless(cases: list[Hostile], folder: Path) -> None:
    settings = checkout(folder)
    most = max(MAX_BYTES, memory_bytes())  # other tests of this process may have used more
    for number, each in enumerate(cases, start=1):
        shown = show(each, settings, number)
        assert shown.is_same, each.name
        assert shown.has_page or each.name in WITHOUT_PAGE, each.name
        assert shown.seconds < MAX_SECONDS, each.name
        assert memory_bytes() <= most, each.name


@pytest.mark.heavy
def test_hostile_programs_change_no_result(tmp_path: Path) -> None:
    assert_harmless([each for each in hostile() if each.name in SAMPLE], tmp_path)


@pytest.mark.slow
def test_no_hostile_program_or_transcript_changes_a_result(tmp_path: Path) -> None:
    cases = list(hostile())
    assert len(cases) >= 200
    assert_harmless(cases, tmp_path)
