"""Tests the trial of a base model: what it finds before the agent's hours, and that it is not repeated."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from a2rl.core.errors import UsageError
from a2rl.core.settings import Settings
from a2rl.grading import base_trial, model_process
from a2rl.grading.base_trial import try_base_model
from a2rl.grading.model_process import run_model_process
from a2rl.linux.gpu_locks import hold_for_grade
from a2rl.models.checkpoint import tensors_of
from tests.run_maker import checkout
from tests.small_model import Weight, edit_json, read_weights, write_safetensors


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "checkout").mkdir()
    return checkout(tmp_path / "checkout")


@pytest.fixture
def base(base_model: Path, tmp_path: Path) -> Path:
    return shutil.copytree(base_model, tmp_path / "base")


@pytest.mark.heavy
def test_a_base_model_is_tried_once_and_its_config_completed(
    base: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = try_base_model(base, "digest", settings)
    assert not trial.not_tried
    assert trial.complete_config["model_type"] == "qwen3"
    assert trial.complete_config["attention_dropout"] == 0.0  # not in config.json
    assert not list(settings.base_trials.glob(".trial-*"))
    monkeypatch.setattr(base_trial, "run_model_process", None)  # it would fail if it were called
    assert try_base_model(base, "digest", settings) == trial


def _stored_head(base: Path) -> None:
    weights = read_weights(base)
    embedding = weights["model.embed_tokens.weight"]
    write_safetensors(
        base / "model.safetensors", weights | {"lm_head.weight": embedding._replace(data=bytes(len(embedding.data)))}
    )


def _missing_weights(base: Path) -> None:
    weights = read_weights(base)
    del weights["model.norm.weight"]
    write_safetensors(base / "model.safetensors", weights)


def _foreign_weights(base: Path) -> None:
    write_safetensors(base / "model.safetensors", read_weights(base) | {"extra.weight": Weight("F32", (1,), bytes(4))})


def _not_finite(base: Path) -> None:
    weights = read_weights(base)
    norm = weights["model.norm.weight"]
    write_safetensors(
        base / "model.safetensors", weights | {"model.norm.weight": norm._replace(data=b"\xff" * len(norm.data))}
    )


def _unknown_family(base: Path) -> None:
    edit_json(base / "config.json", model_type="of_the_future")


BAD = {
    "another head than the embedding": (_stored_head, "stores lm_head.weight with other weights.*set the key to false"),
    "missing weights": (_missing_weights, "lacks weights.*model.norm.weight"),
    "weights that its class does not know": (_foreign_weights, "missing, such as extra.weight"),
    "weights that are not finite": (_not_finite, "not finite"),
    "an unknown family": (_unknown_family, "transformers cannot load or save it.*of_the_future"),
}


@pytest.mark.slow
@pytest.mark.parametrize("flaw", BAD)
def test_a_base_model_without_a_valid_copy_is_always_refused(base: Path, settings: Settings, flaw: str) -> None:
    """No copy of it could be submitted."""
    spoil, says = BAD[flaw]
    spoil(base)
    for _ in range(2):
        with pytest.raises(UsageError, match=f"no trained copy.*could be submitted.*{says}") as refused:
            try_base_model(base, "digest", settings)
        assert "\n" not in str(refused.value)


def test_a_machine_without_the_memory_says_so_and_may_try_again(
    base: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_process, "SHARE_OF_MEMORY", 0.0)
    assert "of memory, which are not free" in try_base_model(base, "digest", settings).not_tried
    assert not list(settings.base_trials.iterdir())


def test_a_process_that_takes_too_long_is_ended(base: Path, settings: Settings, tmp_path: Path) -> None:
    failure = run_model_process(base_trial.__name__, [str(base), str(tmp_path)], tmp_path / "log", 0.0, settings)
    assert failure == "it took longer than 0 s"


def test_a_process_that_fails_leaves_its_last_words(settings: Settings, tmp_path: Path) -> None:
    failure = run_model_process(base_trial.__name__, [], tmp_path / "log", 60.0, settings)
    assert failure.startswith("its process ended with exit code 1: IndexError")


def test_a_process_waits_for_its_turn_on_a_gpu_that_runs_share(settings: Settings, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with ThreadPoolExecutor(1) as threads:
        with hold_for_grade(["GPU-0"], settings.gpu_locks, "the grade of another run"):
            waiting = threads.submit(run_model_process, base_trial.__name__, [], log, 60.0, settings, "GPU-0")
            with pytest.raises(TimeoutError):
                waiting.result(1.0)
            assert not log.exists()
        assert "IndexError" in waiting.result()


@pytest.mark.slow
def test_tiny_passes_the_trial_that_setup_spares_it(settings: Settings) -> None:
    tiny = Settings.load().models / "tiny"
    if not tiny.is_dir():
        pytest.skip("`make data` builds tiny")
    assert tensors_of(tiny)
    assert not try_base_model(tiny, "digest", settings).not_tried
