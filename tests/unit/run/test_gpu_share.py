"""Tests how many GPUs a run gets and which of them its agent sees."""

from collections.abc import Callable

import pytest

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.grading.devices import devices_of
from a2rl.linux.gpus import Inventory
from a2rl.run.directory import RunDir
from a2rl.run.gpu_share import allocated_gpus, check_gpus, count_gpus, require_gpus_for_one, share_of
from a2rl.run.spec import RunSettings
from tests.fake_gpus import FakeGpus, fake_gpu

NewRun = Callable[..., RunDir]
MIG = Inventory((fake_gpu(0), fake_gpu(1), fake_gpu(2, uuid="MIG-a"), fake_gpu(2, uuid="MIG-b")))


def here(count: int) -> Inventory:
    return Inventory(tuple(fake_gpu(index) for index in range(count)))


@pytest.mark.parametrize(
    ("asked", "gpus", "side_by_side", "counts"),
    [
        ({}, 8, 1, (8, 0)), ({}, 8, 3, (2, 0)), ({}, 2, 4, (1, 0)), ({}, 0, 4, (0, 0)),
        ({"model": "tiny"}, 8, 1, (0, 0)), ({"model": "tiny", "gpus_per_run": 1}, 8, 1, (1, 0)),
        ({"gpus_per_run": 0}, 8, 1, (0, 0)), ({"gpus_per_run": 2}, 8, 8, (2, 0)),
        ({"grading_gpus": 1}, 8, 1, (7, 1)), ({"grading_gpus": 1}, 8, 8, (1, 1)), ({"grading_gpus": 2}, 8, 3, (2, 2)),
        ({"gpus_per_run": 0, "grading_gpus": 1}, 1, 1, (0, 1)), ({"gpus_per_run": 6, "grading_gpus": 2}, 8, 2, (6, 2)),
    ],
)  # fmt: skip
def test_a_run_gets_what_it_asks_for_or_an_even_share(
    asked: dict[str, object], gpus: int, side_by_side: int, counts: tuple[int, int]
) -> None:
    spec = RunSettings.model_validate({"model": "Qwen/Qwen2.5-7B"} | asked)
    assert count_gpus(spec, here(gpus), side_by_side) == counts


@pytest.mark.parametrize(
    ("asked", "gpus", "says"),
    [
        ({"gpus_per_run": 1}, 0, "--gpus-per-run 1 needs 1 GPU, but there are none here"),
        ({"gpus_per_run": 3}, 2, "there are 2 here"),
        ({"grading_gpus": 1}, 1, "a run and --grading-gpus 1 need 2 GPUs, but there is 1 here"),
        ({"gpus_per_run": 2, "grading_gpus": 7}, 8, "need 9 GPUs"),
        ({"grading_gpus": 1}, 0, "none here"),
    ],
)
def test_a_run_that_asks_for_more_than_there_are_is_refused(asked: dict[str, object], gpus: int, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        count_gpus(RunSettings.model_validate({"model": "m"} | asked), here(gpus))


@pytest.mark.parametrize(("grading", "for_one"), [(0, 1), (0, 4), (1, 1), (4, 4), (8, 2)])
def test_a_model_may_take_all_gpus_that_grade(grading: int, for_one: int) -> None:
    require_gpus_for_one(for_one, grading)


def test_a_model_that_needs_more_gpus_than_grade_is_refused() -> None:
    with pytest.raises(UsageError, match=r"tensor_parallel_size 4 needs 4 GPUs for one model, but 1 grades: .*or set"):
        require_gpus_for_one(4, 1)


@pytest.mark.parametrize(
    ("gpus", "for_one", "devices"),
    [
        (0, 2, ["cpu"]),
        (3, 1, ["GPU-0", "GPU-1", "GPU-2"]),
        (4, 2, ["GPU-0,GPU-1", "GPU-2,GPU-3"]),
        (3, 2, ["GPU-0,GPU-1"]),
    ],
)
def test_gpus_that_compute_one_model_together_are_one_device(gpus: int, for_one: int, devices: list[str]) -> None:
    named = [fake_gpu(index, uuid=f"GPU-{index}") for index in range(gpus)]
    assert devices_of(named, for_one) == devices


def test_a_run_uses_at_most_one_mig_instance_per_process() -> None:
    assert count_gpus(RunSettings(model="m", gpus_per_run=1, grading_gpus=1), MIG) == (1, 1)
    assert count_gpus(RunSettings(model="m"), MIG).agent == 2
    assert count_gpus(RunSettings(model="m"), Inventory(MIG.gpus[2:])).agent == 1
    with pytest.raises(UsageError, match="only one MIG instance"):
        count_gpus(RunSettings(model="m", gpus_per_run=3), MIG)


def test_the_gpu_that_grades_is_never_one_of_the_agents(new_run: NewRun, settings: Settings) -> None:
    fake = FakeGpus(settings.root, 3)
    run = new_run(model="m", gpus_per_run=1, grading_gpus=1)
    with allocated_gpus(run, fake.seen_by(settings)) as share:
        assert [gpu.index for gpu in share.agent] == [0]
        assert [gpu.index for gpu in share.graders] == [2]
        assert [gpu.index for gpu in share.all] == [2, 0]
        assert share_of(run, settings) == share


def test_runs_share_a_gpu_that_only_grades(new_run: NewRun, settings: Settings) -> None:
    seen = FakeGpus(settings.root, 3).seen_by(settings)
    one, other = (
        new_run(run_id=f"gsm8k-test-{name}", model="m", gpus_per_run=1, grading_gpus=1) for name in ("a", "b")
    )
    with allocated_gpus(one, seen) as first, allocated_gpus(other, seen) as second:
        assert [gpu.index for gpu in (*first.agent, *second.agent)] == [0, 1]
        assert [gpu.index for gpu in (*first.graders, *second.graders)] == [2, 2]


def test_two_runs_at_once_share_no_gpu(new_run: NewRun, settings: Settings) -> None:
    seen = FakeGpus(settings.root, 2).seen_by(settings)
    one, other = (new_run(run_id=f"gsm8k-test-{name}", model="m", gpus_per_run=1) for name in ("a", "b"))
    with allocated_gpus(one, seen) as first, allocated_gpus(other, seen) as second:
        assert not set(first.all) & set(second.all)


def test_a_run_of_tiny_needs_no_gpu_and_waits_for_none(new_run: NewRun, settings: Settings) -> None:
    seen = FakeGpus(settings.root, 1).seen_by(settings)
    with (
        allocated_gpus(new_run(model="m"), seen),
        allocated_gpus(new_run(run_id="gsm8k-test-2", model="tiny"), seen) as share,
    ):
        assert share.all == ()


def test_a_driver_that_fails_is_no_reason_to_use_the_processor(new_run: NewRun, settings: Settings) -> None:
    fake = FakeGpus(settings.root, 1)
    fake.change(nvml_fails=True)
    run = new_run(model="m")
    with pytest.raises(InfrastructureError, match="set CUDA_VISIBLE_DEVICES to nothing"):
        allocated_gpus(run, fake.seen_by(settings)).__enter__()
    with allocated_gpus(run, fake.seen_by(settings, "")) as share:
        assert share.all == ()


def test_a_gpu_that_has_disappeared_is_an_error_that_names_it(new_run: NewRun, settings: Settings) -> None:
    fake = FakeGpus(settings.root, 2)
    run, seen = new_run(model="m"), fake.seen_by(settings)
    with allocated_gpus(run, seen) as share:
        assert check_gpus(run, seen) == share
        fake.lose(1)
        with pytest.raises(
            InfrastructureError, match=r"GPU 1 \(NVIDIA H100\) has disappeared .*GPU is lost.*a2rl resume"
        ):
            check_gpus(run, seen)


def test_without_gpus_nothing_is_asked_and_nothing_changes(run: RunDir, settings: Settings) -> None:
    with allocated_gpus(run, settings) as share:
        assert share.all == ()
    assert check_gpus(run, settings).graders == ()
