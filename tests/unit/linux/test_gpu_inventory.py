"""Tests which GPUs a machine has and which of them may be used, with a fake driver."""

import time
from pathlib import Path

import pytest

from a2rl.core.settings import Settings
from a2rl.linux import gpus, nvml
from a2rl.linux.gpus import driver_nodes, find_gpus, select, usable_gpus
from tests.fake_gpus import GIB, FakeGpus, fake_gpu

FOUR = tuple(fake_gpu(index) for index in range(4))
MIG = (fake_gpu(0, uuid="MIG-a"), fake_gpu(0, uuid="MIG-ab"), fake_gpu(1))


@pytest.mark.parametrize(
    ("named", "indices"),
    [
        ("0", [0]), ("2,1", [2, 1]), (" 3 , 0 ", [3, 0]), ("", []), ("-1", []), ("none", []), ("NoDevFiles", []),
        ("0,2,-1,1", [0, 2]), ("0,9,1", [0]), ("9", []), ("0,1,0", []), ("GPU-22aa-bb,GPU-0", [2, 0]), ("GPU-", []),
        ("GPU-22aa-bb,2", []), ("0,", [0]), ("cpu", []), ("00", [0]), ("1.0", []), ("²", []), ("gpu-0", []),
        ("MIG-", []),
    ],
)  # fmt: skip
def test_a_list_of_gpus_is_read_as_cuda_reads_it(named: str, indices: list[int]) -> None:
    assert [gpu.index for gpu in select(FOUR, named)[0]] == indices


@pytest.mark.parametrize(
    ("named", "uuids"),
    [("MIG-a", ["MIG-a"]), ("MIG-ab,1", ["MIG-ab", "GPU-11aa-bb"]), ("0", ["MIG-a", "MIG-ab"]), ("MIG", [])],
)
def test_mig_instances_are_named_by_uuid_or_by_their_gpus_index(named: str, uuids: list[str]) -> None:
    assert [gpu.uuid for gpu in select(MIG, named)[0]] == uuids


@pytest.mark.parametrize(
    ("named", "says"), [("0,9,1", "'9' names no GPU"), ("0,0", "twice"), ("x", "'x' names no GPU")]
)
def test_a_mistake_in_the_list_is_named_and_no_gpu_is_an_option(named: str, says: str) -> None:
    assert says in select(FOUR, named)[1]
    assert not select(FOUR, "0,-1,1")[1]


def test_the_driver_lists_gpus_with_memory_and_device_files(settings: Settings) -> None:
    fake = FakeGpus(settings.root, 2)
    fake.change_gpu(1, total_bytes=None, free_bytes=None, minor=7)
    first, second = find_gpus(fake.seen_by(settings)).gpus
    assert (first.index, first.uuid, first.name) == (0, fake.uuid(0), "NVIDIA H100")
    assert (first.total_bytes, first.free_bytes, first.nodes) == (80 * GIB, 79 * GIB, ("/dev/nvidia0",))
    assert (second.total_bytes, second.nodes) == (None, ("/dev/nvidia7",))


def test_a_gpu_in_mig_mode_is_replaced_by_its_instances(settings: Settings) -> None:
    fake = FakeGpus(settings.root, 2)
    fake.split(1, instances=2)
    found = find_gpus(fake.seen_by(settings)).gpus
    assert [(gpu.index, gpu.cuda_name) for gpu in found] == [(0, "0"), (1, "MIG-10-instance"), (1, "MIG-11-instance")]


def test_an_instance_has_the_device_files_of_its_capabilities(tmp_path: Path) -> None:
    for name, minor in (("gi3", 21), ("gi3/ci0", 22), ("gi4", 30)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    nodes = [*nvml._nodes_of(tmp_path / "gi3"), *nvml._nodes_of(tmp_path / "gi3/ci0"), *nvml._nodes_of(tmp_path / "no")]
    assert nodes == ["/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]


def test_a_lost_gpu_is_left_out_and_named_and_the_others_stay(settings: Settings) -> None:
    fake = FakeGpus(settings.root, 3)
    fake.lose(1)
    found = find_gpus(fake.seen_by(settings))
    assert [gpu.index for gpu in found.gpus] == [0, 2]
    assert found.problem == "GPU 1 does not answer: GPU is lost"


def test_a_driver_that_hangs_is_not_waited_for(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "ANSWER_TIMEOUT_S", 0.3)
    fake = FakeGpus(settings.root, 1)
    fake.change(hangs=True)
    began = time.monotonic()
    found = find_gpus(fake.seen_by(settings))
    assert time.monotonic() - began < 60
    assert not found.gpus
    assert "does not answer" in found.problem


def test_an_answer_that_breaks_off_is_a_problem(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER_NODES", (Path("/dev/null"),))
    (settings.root / "pynvml.py").write_text("import os\nos.kill(os.getpid(), 11)\n")
    assert "its process ended with status -11" in find_gpus(settings).problem


def test_without_a_loaded_driver_there_are_no_gpus_but_a_reason(settings: Settings) -> None:
    fake = FakeGpus(settings.root, 1)
    fake.change(nvml_fails=True)
    found = usable_gpus(fake.seen_by(settings))
    assert not found.gpus
    assert "Driver Not Loaded" in found.problem


@pytest.mark.parametrize(("visible", "indices"), [(None, [0, 1]), ("1", [1]), ("", []), ("-1,0", [])])
def test_runs_use_the_gpus_that_their_user_was_given(settings: Settings, visible: str, indices: list[int]) -> None:
    fake = FakeGpus(settings.root, 2)
    assert [gpu.index for gpu in usable_gpus(fake.seen_by(settings, visible)).gpus] == indices


def test_a_machine_without_a_driver_is_not_asked(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpus, "DRIVER_NODES", ())
    monkeypatch.setattr(gpus, "read_apart", None)
    assert usable_gpus(Settings(settings.root, {"PATH": str(settings.root)})) == gpus.Inventory()


def test_a_process_gets_the_device_files_of_its_gpus(tmp_path: Path) -> None:
    """It also gets those that all share, and that of WSL."""
    for name in ("nvidia0", "nvidia1", "nvidia12", "nvidiactl", "nvidia-uvm", "nvidia-caps", "dxg", "null"):
        (tmp_path / name).touch()
    own = fake_gpu(1, nodes=(f"{tmp_path}/nvidia1",))
    assert driver_nodes([own], tmp_path) == tuple(
        f"{tmp_path}/{name}" for name in ("dxg", "nvidia-uvm", "nvidiactl", "nvidia1")
    )
    assert driver_nodes([], tmp_path) == ()
