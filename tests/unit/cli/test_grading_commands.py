"""Tests what `a2rl grade`, `score`, `prepare`, `tasks check` and `export harbor` say before they begin."""

from collections.abc import Callable
from pathlib import Path

import pytest

from a2rl.cli.catalogs import check
from a2rl.cli.grading import grade, prepare, score
from a2rl.cli.sharing import harbor_task
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings


class Context:
    """What typer gives a command that takes further options."""

    args: tuple[str, ...] = ()


def test_a_copy_of_data_is_refused_where_none_is_used(
    settings: Settings, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mini data is generated, and the figures would be those of other data than the user means."""
    monkeypatch.setattr(Settings, "load", lambda: settings)
    model, file = str(base_model), tmp_path / "answers.jsonl"
    commands: tuple[Callable[[], object], ...] = (
        lambda: grade(Context(), "gsm8k", model, source=tmp_path),  # type: ignore[arg-type]
        lambda: score("gsm8k", file, source=tmp_path),
        lambda: prepare("gsm8k", source=tmp_path),
        lambda: check("gsm8k", source=tmp_path),
        lambda: harbor_task("gsm8k", output=tmp_path / "out", source=tmp_path, model=model),
    )
    for command in commands:
        with pytest.raises(UsageError, match="--source is for the full variant"):
            command()


def test_a_sample_of_more_items_than_there_are_is_refused(
    settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker is started for it."""
    monkeypatch.setattr(Settings, "load", lambda: settings)
    monkeypatch.setattr("a2rl.cli.scoring.grade_now", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(UsageError, match="--limit 99,999 is more than the") as refused:
        grade(Context(), "gsm8k", str(base_model), limit=99_999)  # type: ignore[arg-type]
    assert refused.value.exit_code == 2
