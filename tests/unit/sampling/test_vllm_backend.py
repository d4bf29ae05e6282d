"""Tests the back end vllm with programs that speak like its worker."""

import json
import sys
from pathlib import Path

import pytest
import torch

from a2rl.core.errors import InfrastructureError
from a2rl.sampling import SamplingParams, open_sampler, vllm_worker


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


def test_vllm_that_is_not_installed_is_an_infrastructure_error(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A2RL_VLLM_PYTHON", "/nowhere/python")
    with pytest.raises(InfrastructureError, match=r"run `scripts/setup_environment\.sh"), open_sampler(model, "vllm"):
        pass


def test_a_dead_vllm_worker_is_an_infrastructure_error(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error has the end of the worker's log."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho first >&2\necho the engine broke >&2\nexit 3\n")
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_VLLM_PYTHON", str(python))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # the log of a dead worker is kept
    with (
        pytest.raises(InfrastructureError, match=r"exit code 3.*the engine broke") as died,
        open_sampler(model, "vllm"),
    ):
        pass
    assert "first" in died.value.__notes__[0]


FAKE_VLLM = """#!{python}
import json
import sys, time
def say(**message):
    print(json.dumps(message), flush=True)
say(alive=True)
say(ready=True, has_chat_template=False, cache_tokens=None)
for line in sys.stdin:
    {then}
"""


@pytest.mark.parametrize(
    ("then", "says"),
    [
        ("time.sleep(600)", "no sign of life"),
        ("print('{\"id\": 0, \"compl', end='', flush=True); sys.exit(3)", "exit code 3"),
        ("sys.exit(4)", "exit code 4"),
    ],
)
def test_nobody_waits_for_a_stuck_or_broken_vllm_worker(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, says: str
) -> None:
    python = tmp_path / "python"
    python.write_text(FAKE_VLLM.format(python=sys.executable, then=then))
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_VLLM_PYTHON", str(python))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("a2rl.sampling.vllm_process.SILENCE_S", 0.5)
    with open_sampler(model, "vllm") as sampler:
        with pytest.raises(InfrastructureError, match=says):
            sampler.generate(["a"], SamplingParams(max_new_tokens=4))
        with pytest.raises(InfrastructureError):  # not an earlier answer
            sampler.generate(["b"], SamplingParams(max_new_tokens=4))


def test_signs_of_life_of_a_vllm_worker_are_no_answers(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    answer = "say(alive=True); say(alive=True); say(room=7)"
    python.write_text(FAKE_VLLM.format(python=sys.executable, then=answer))
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_VLLM_PYTHON", str(python))
    with open_sampler(model, "vllm") as sampler:
        assert [sampler.room_after("a"), sampler.room_after("b")] == [7, 7]


def test_a_vllm_worker_is_told_how_to_sample_and_fill_templates(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    completion = {"text": "b", "finish": "stop", "prompt_tokens": 1, "tokens": 1}
    note = f"open({str(tmp_path / 'asked')!r}, 'a').write(line)"
    answer = f"{note}; say(id=0, completion={completion}, cached_tokens=0, room=7)"
    python.write_text(FAKE_VLLM.format(python=sys.executable, then=answer))
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_VLLM_PYTHON", str(python))
    kwargs = {"enable_thinking": True}
    with open_sampler(model, "vllm") as sampler:
        sampler.room_after("a", kwargs)
        sampler.generate(["a"], SamplingParams(4, temperature=0.6, top_p=0.95, top_k=20, chat_template_kwargs=kwargs))
    count, asked = map(json.loads, (tmp_path / "asked").read_text().splitlines())
    assert count == {"count": "a", "chat_template_kwargs": kwargs}
    assert (asked["temperature"], asked["top_p"], asked["top_k"]) == (0.6, 0.95, 20)
    assert asked["chat_template_kwargs"] == kwargs


def test_a_machine_that_cannot_do_it_is_no_mistake_of_the_user(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"machine": "vLLM was given the GPU 7"}\'\n')
    python.chmod(0o755)
    monkeypatch.setenv("A2RL_VLLM_PYTHON", str(python))
    with pytest.raises(InfrastructureError, match=r"^vLLM was given the GPU 7$"), open_sampler(model, "vllm"):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_given_gpu_that_is_not_seen_is_not_replaced_by_the_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-5a")
    with pytest.raises(vllm_worker.MachineError, match="was given the GPU GPU-5a, but its torch"):
        vllm_worker.finds_gpu()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert not vllm_worker.finds_gpu()
