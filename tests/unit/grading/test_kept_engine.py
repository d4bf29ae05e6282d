"""Tests that a grader keeps one engine of vLLM, and never grades a checkpoint with the weights of another."""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from a2rl.core.settings import Settings
from a2rl.grading.job import GradeResult
from a2rl.grading.pool import GraderPool, GradingError
from a2rl.grading.worker import kind_of
from a2rl.sampling.engine_params import VllmParams
from tests.fake_engine import FakeEngine
from tests.run_maker import REPOSITORY, alive, grade_job_in, make_hidden, wait_for

SOON_S = 200
Grade = Callable[..., GradeResult]


@pytest.fixture
def fake(tmp_path: Path) -> FakeEngine:
    return FakeEngine(tmp_path / "fake")


@pytest.fixture
def pool(settings: Settings, fake: FakeEngine) -> Iterator[GraderPool]:
    (settings.root / "tests").symlink_to(REPOSITORY / "tests")
    environ = {**settings.environ, "A2RL_VLLM_PYTHON": str(fake.python)}
    with GraderPool(replace(settings, environ=environ), ["cpu"], worker="tests.light_worker") as pool:
        yield pool


@pytest.fixture
def grade(tmp_path: Path, settings: Settings, base_model: Path, pool: GraderPool) -> Grade:
    hidden = make_hidden(tmp_path / "hidden", items=2)
    number = iter(range(99))

    def grade(seed: int, **changes: object) -> GradeResult:
        model = checkpoint(tmp_path / f"model-{seed}", base_model, seed)
        own = {"root": settings.root, "hidden": hidden, "model": model, "result": tmp_path / f"{next(number)}.json"}
        return pool.submit(grade_job_in(tmp_path, backend="vllm", **own | changes)).result(SOON_S)

    return grade


def checkpoint(folder: Path, base_model: Path, seed: int) -> Path:
    if not folder.exists():
        shutil.copytree(base_model, folder)
        tensors = load_file(folder / "model.safetensors")
        random = torch.Generator().manual_seed(seed)
        noisy = {name: torch.randn(tensor.shape, generator=random) for name, tensor in tensors.items()}
        save_file(noisy, folder / "model.safetensors")
    return folder


def test_other_files_beside_the_base_model_start_no_engine(tmp_path: Path, base_model: Path) -> None:
    base, copy = tmp_path / "base", checkpoint(tmp_path / "copy", base_model, 1)
    shutil.copytree(base_model, base)
    (base / "pytorch_model.bin").write_bytes(b"much")
    kinds = [kind_of(grade_job_in(tmp_path, backend="vllm", model=model)) for model in (base, copy)]
    (copy / "tokenizer_config.json").write_text("{}")
    assert kinds[0] == kinds[1] != kind_of(grade_job_in(tmp_path, backend="vllm", model=copy))


def kind(result: GradeResult) -> str:
    assert result.engine_start is not None
    return result.engine_start.kind


def why(result: GradeResult) -> str:
    assert result.engine_start is not None
    return result.engine_start.why


def test_one_engine_grades_checkpoints_each_with_its_own_weights(grade: Grade, fake: FakeEngine) -> None:
    first, second, again = grade(1), grade(2), grade(1)
    assert [kind(each) for each in (first, second, again)] == ["cold", "warm", "warm"]
    assert len(fake.starts()) == 1
    assert first.items == again.items
    assert first.items[0].answer != second.items[0].answer


@pytest.mark.heavy
def test_an_engine_that_dies_is_replaced_within_the_grade(grade: Grade, fake: FakeEngine, base_model: Path) -> None:
    """The same holds for one that refuses weights."""
    grade(1)
    fake.die_once()
    after_death = grade(2)
    assert (kind(after_death), len(fake.starts())) == ("cold", 2)
    assert "given up: the vLLM worker ended" in why(after_death)
    expected = grade(3)
    assert kind(expected) == "warm"
    fake.refuse()
    refused = grade(2)
    assert (kind(refused), len(fake.starts())) == ("cold", 3)
    assert "could not take other weights: the weights differ" in why(refused)
    assert refused.items == after_death.items
    assert refused.items != expected.items
    assert kind(grade(3)) == "cold"
    assert kind(grade(2)) == "cold"
    assert why(grade(3)) == "it is not kept"  # after two refusals, nobody tries again


def test_an_engine_waits_for_memory_and_is_kept(grade: Grade, fake: FakeEngine) -> None:
    """A lack of memory is no refusal of weights, however often it happens."""
    fake.lack_memory(times=2)
    assert kind(grade(1, memory_wait_s=0.1)) == "cold"
    assert len(fake.starts()) == 3
    for seed in (2, 3, 4):
        fake.lack_memory(times=3)
        assert kind(grade(seed, memory_wait_s=0.1)) == "warm"
    assert len(fake.starts()) == 3


def test_a_lack_of_memory_that_does_not_end_is_said(grade: Grade, fake: FakeEngine) -> None:
    grade(1)
    fake.lack_memory(times=99)
    with pytest.raises(GradingError, match=r"3.0 GiB are missing; leave it more"):
        grade(2, memory_wait_s=0.1)
    fake.lack_memory(times=0)
    assert kind(grade(2)) == "warm"


def test_another_configuration_gets_an_engine_of_its_own(
    grade: Grade, fake: FakeEngine, tmp_path: Path, base_model: Path
) -> None:
    """Other options do, too."""
    assert kind(grade(1)) == "cold"
    other = checkpoint(tmp_path / "other", base_model, seed=1)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps(config | {"rope_theta": 5.0}))
    assert kind(changed := grade(1, model=other)) == "cold"
    assert "another configuration" in why(changed)
    assert kind(grade(1, model=other, vllm=VllmParams(max_model_len=64))) == "cold"
    assert len(fake.starts()) == 3


def test_a_killed_engine_costs_one_start_and_none_is_left(grade: Grade, fake: FakeEngine, pool: GraderPool) -> None:
    grade(1)
    psutil.Process(fake.starts()[0].pid).kill()
    assert kind(grade(2)) == "cold"
    pool.close()
    assert len(fake.starts()) == 2
    wait_for(lambda: not any(alive(start.pid) for start in fake.starts()))


@pytest.mark.heavy
def test_a_grade_that_takes_too_long_ends_its_engine_too(grade: Grade, fake: FakeEngine) -> None:
    fake.hang()
    with pytest.raises(GradingError, match="longer than its limit"):
        grade(2, time_limit_s=5.0)
    wait_for(lambda: not any(alive(start.pid) for start in fake.starts()))
