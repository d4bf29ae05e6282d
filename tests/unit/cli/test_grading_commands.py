"""Tests what `a2rl grade`, `score`, `prepare`, `tasks check` and `export harbor` say before they begin."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2rl.cli.catalogs import check
from a2rl.cli.grading import grade, prepare, score
from a2rl.cli.sharing import harbor_task
from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings


class Context:
    """What typer gives a command that takes further options."""

    args: tuple[str, ...] = ()


def without_downloads(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails a test in which a model is downloaded."""
    monkeypatch.setattr(Settings, "load", lambda: settings)
    for place in ("models.pretrained_store.PretrainedStore.get", "models.base_model._download"):
        monkeypatch.setattr(f"a2rl.{place}", lambda *_: pytest.fail("the model was downloaded"))


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


@pytest.mark.parametrize("model", ["gemma3-270m", "Qwen/Qwen2.5-7B"])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task": "gsm9k"}, "gsm8k"),
        ({"split": "privat"}, "private"),
        ({"backend": "vlm"}, "vllm"),
        ({"dtype": "fp16"}, "float16"),
        ({"generation": "temprature=1"}, "temprature"),
        ({"judge": "gpt-9", "task": "alpacaeval", "variant": "full"}, "gpt-9"),
        ({"source": Path("/missing"), "variant": "full"}, "/missing"),
        ({"outputs": Path("/missing/answers.jsonl")}, "--outputs"),
    ],
)
def test_nothing_is_downloaded_for_a_grade_that_cannot_be(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, model: str, given: dict[str, Any], says: str
) -> None:
    without_downloads(settings, monkeypatch)
    asked: dict[str, Any] = {"task": "gsm8k", "model": model, **given}
    with pytest.raises(UsageError, match=says):
        grade(Context(), **asked)  # type: ignore[arg-type]
    mistyped = Context()
    mistyped.args = ("--promts", "none")
    with pytest.raises(UsageError, match="promts"):
        grade(mistyped, "alfworld", model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"task": "gsm9k"}, "gsm8k"),
        ({"variant": "ful"}, "full"),
        ({"budget": "soon"}, "soon"),
        ({"solution": Path("/missing")}, "--solution"),
        ({"output": Path("/")}, "/ exists"),
    ],
)
def test_nothing_is_downloaded_for_an_export_that_cannot_be(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], says: str
) -> None:
    without_downloads(settings, monkeypatch)
    asked: dict[str, Any] = {"task": "gsm8k", "output": tmp_path / "out", "model": "gemma3-270m", **given}
    with pytest.raises(UsageError, match=says):
        harbor_task(**asked)


def test_a_sample_of_more_items_than_there_are_is_refused(
    settings: Settings, base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No worker is started for it."""
    monkeypatch.setattr(Settings, "load", lambda: settings)
    monkeypatch.setattr("a2rl.cli.scoring.grade_now", lambda *_: pytest.fail("a worker was started"))
    with pytest.raises(UsageError, match="--limit 99,999 is more than the") as refused:
        grade(Context(), "gsm8k", str(base_model), limit=99_999)  # type: ignore[arg-type]
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("variant", "environ", "says"),
    [
        ("mini", {"ALL_PROXY": "socks5://h:1"}, "ALL_PROXY is not the URL of an HTTP proxy"),
        ("mini", {"SSL_CERT_FILE": "/missing.pem"}, "missing.pem, which has no certificates"),
        ("full", {}, "needs an API key: set OPENAI_API_KEY"),
    ],
)
def test_a_judge_that_cannot_be_asked_is_found_at_once(
    settings: Settings, base_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    variant: str, environ: dict[str, str], says: str,
) -> None:  # fmt: skip
    """No data is made, and no model is read. Without a judge, nobody needs the proxy."""
    here = Settings(settings.root, {**settings.environ, **environ})
    monkeypatch.setattr(Settings, "load", lambda: here)
    monkeypatch.setattr("a2rl.cli.scoring.ensure_data", lambda *_: pytest.fail("data was made"))
    with pytest.raises(UsageError, match=says):
        grade(Context(), "alpacaeval", str(base_model), variant=variant)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=says):
        score("alpacaeval", tmp_path / "answers.jsonl", variant=variant)
    with pytest.raises(pytest.fail.Exception, match="data was made"):
        grade(Context(), "gsm8k", str(base_model))  # type: ignore[arg-type]
