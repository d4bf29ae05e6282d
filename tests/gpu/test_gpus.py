"""Tests the GPUs of this machine: what the driver says, and what an agent can use of them inside its sandbox."""

import sys
from pathlib import Path

import pytest

from a2rl.core.errors import A2rlError
from a2rl.core.settings import Settings
from a2rl.execution.preflight_probes import CUDA_PROBE, check_gpus_in_sandbox
from a2rl.execution.workspace import gpu_variables
from a2rl.grading.devices import lost_gpu
from a2rl.linux.gpu_locks import hold_gpus
from a2rl.linux.gpus import Inventory, driver_nodes, find_gpus
from a2rl.sandbox.isolation import Isolation, SandboxKind
from a2rl.sandbox.policy import can_have_cuda, python_folders
from a2rl.sandbox.selection import select_sandbox, try_in_sandbox

pytestmark = pytest.mark.gpu
SUM = "import torch; print(torch.cuda.device_count(), torch.ones(1000, device='cuda').sum().item())"


@pytest.fixture
def here(repository: Path) -> Settings:
    """The settings of this machine."""
    return Settings.load(repository)


@pytest.fixture
def found(here: Settings) -> Inventory:
    inventory = find_gpus(here)
    assert inventory.gpus, inventory.problem
    return inventory


@pytest.fixture(params=["landlock", "bwrap"])
def isolation(request: pytest.FixtureRequest, here: Settings) -> Isolation:
    kind: SandboxKind = request.param
    try:
        isolation = select_sandbox(kind, here)
    except A2rlError as error:
        pytest.skip(str(error))
    if not can_have_cuda(isolation):
        pytest.skip("an agent that is root has no CUDA here")
    return isolation


def test_every_device_has_a_uuid_memory_and_a_device_file(found: Inventory) -> None:
    for gpu in found.gpus:
        assert gpu.uuid.startswith(("GPU-", "MIG-"))
        assert gpu.total_bytes
        assert gpu.free_bytes is not None
        assert 0 <= gpu.free_bytes <= gpu.total_bytes
        assert all(Path(node).exists() for node in gpu.nodes)


def test_a_gpu_that_is_there_is_not_lost_and_one_that_is_not_is(found: Inventory, here: Settings) -> None:
    assert lost_gpu(found.gpus[0].uuid, here) == ""
    assert "has disappeared" in lost_gpu("GPU-00000000-0000-0000-0000-000000000000", here)


def test_a_gpu_is_held_by_one_at_a_time(found: Inventory, tmp_path: Path) -> None:
    with hold_gpus(found.gpus, 1, tmp_path, "a test") as mine:
        assert mine == found.gpus[:1]


def test_cuda_works_inside_the_sandbox_on_the_gpus_of_the_agent(
    found: Inventory, here: Settings, isolation: Isolation
) -> None:
    mine = found.gpus[:1]
    python = Path(sys.base_prefix) / "bin/python3"  # without torch, whose build does not matter here
    assert check_gpus_in_sandbox(mine, isolation, here, python, ()) == "the agent sees 1"


def test_without_a_gpu_of_its_own_an_agent_has_no_cuda(found: Inventory, here: Settings, isolation: Isolation) -> None:
    """This holds whatever it sets."""
    ended = try_in_sandbox(
        [sys.executable, "-I", "-S", "-c", CUDA_PROBE], isolation, here, {"CUDA_VISIBLE_DEVICES": "0"}
    )
    assert not ended.ok or ended.output.startswith("0"), ended.output


def test_torch_computes_inside_the_sandbox(found: Inventory, here: Settings, isolation: Isolation) -> None:
    import torch

    if torch.version.cuda is None:
        pytest.skip("this torch is a build without CUDA")
    mine = found.gpus[:1]
    command = [sys.executable, "-c", SUM]
    ended = try_in_sandbox(command, isolation, here, gpu_variables(mine), python_folders(here), gpus=driver_nodes(mine))
    assert ended.ok, ended.output
    assert ended.output.splitlines()[-1] == "1 1000.0"
