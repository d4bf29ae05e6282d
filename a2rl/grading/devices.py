"""The devices that grade: GPUs by their UUID, which stays right when another GPU disappears, or else the processor.

Also what an agent is told about its own GPUs: their memory, and how much of it a grader on the same GPU keeps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import BaseModel

from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.linux.gpu_locks import hold_gpus
from a2rl.linux.gpus import CPU, Gpu, Inventory, find_gpus, require_answer, usable_gpus
from a2rl.linux.resources import GIB
from a2rl.models.base_model import TINY
from a2rl.run.gpu_share import GpuShare, require_gpus_for_one
from a2rl.run.spec import RunSpec


def devices_of(gpus: Sequence[Gpu], for_one: int = 1) -> list[str]:
    """Returns the devices for a `GraderPool` on some GPUs; the processor if there are none.

    Args:
        gpus: The GPUs.
        for_one: How many GPUs compute one model. Each so many are one device, and what is left over is not used.

    Raises:
        UsageError: There are fewer GPUs than one model needs.
    """
    require_gpus_for_one(for_one, len(gpus))
    groups = [gpus[start : start + for_one] for start in range(0, len(gpus) - for_one + 1, for_one)]
    return [",".join(gpu.uuid for gpu in group) for group in groups] or [CPU]


def devices_here(settings: Settings) -> list[str]:
    """Returns the devices for grading: the GPUs in $CUDA_VISIBLE_DEVICES (all if it is not set), or else the CPU."""
    return devices_of(usable_gpus(settings).gpus)


@contextmanager
def held_device(model: str, settings: Settings, for_one: int = 1) -> Iterator[str]:
    """Holds a device for grading outside of runs, after waiting for it; `tiny` is graded on the processor, as in runs.

    Args:
        model: The name of the model.
        settings: The settings of this checkout.
        for_one: How many GPUs compute one model.

    Raises:
        UsageError: There are fewer GPUs here than one model needs.
        InterruptedByUserError: The user stopped the pipeline while it waited.
        InfrastructureError: The GPUs did not become free.
    """
    here = usable_gpus(settings) if model != TINY else Inventory()
    require_answer(here)
    require_gpus_for_one(for_one, len(here.gpus))
    with hold_gpus(here.gpus, min(for_one, len(here.gpus)), settings.gpu_locks, "a grade without a run") as gpus:
        yield devices_of(gpus, for_one)[0]


class DeviceLostError(InfrastructureError):
    """A GPU has disappeared from the machine. What it had to grade is graded elsewhere, or later."""


def lost_gpu(device: str, settings: Settings) -> str:
    """Returns what happened to the GPUs of a device that are no longer there; empty if all of them answer."""
    uuids = [each for each in device.split(",") if each.startswith(("GPU-", "MIG-"))]
    if not uuids:
        return ""
    here = find_gpus(settings)
    gone = sorted(set(uuids) - {gpu.uuid for gpu in here.gpus})
    return f"GPU {', '.join(gone)} has disappeared{f' ({here.problem})' if here.problem else ''}" if gone else ""


class AgentGpu(BaseModel):
    """A GPU that the agent may use."""

    name: str
    """As in CUDA_VISIBLE_DEVICES."""
    model: str
    memory_gib: float | None
    """None if the driver does not say."""
    grades: bool
    """Whether it also grades."""
    grader_gib: float | None
    """How much of the memory the grader keeps for itself while it grades: 0 if it grades elsewhere, None if it takes
    what is free at that time."""


def describe_gpus(share: GpuShare, kept: float | None = None) -> tuple[AgentGpu, ...]:
    """Returns what an agent is told about its GPUs.

    Args:
        share: The GPUs of the run.
        kept: The share of a GPU's memory that the grader keeps; None: what is free when it grades.
    """
    shared = {gpu.uuid for gpu in share.graders}
    return tuple(
        AgentGpu(
            name=gpu.uuid,
            model=gpu.name,
            memory_gib=_gib(gpu.total_bytes),
            grades=gpu.uuid in shared,
            grader_gib=_gib(gpu.total_bytes, kept) if gpu.uuid in shared else 0.0,
        )
        for gpu in share.agent
    )


def kept_share(spec: RunSpec) -> float | None:
    """Returns the share of a GPU's memory that the graders of a run keep; None: what is free when they grade."""
    return spec.vllm.gpu_memory_utilization if spec.backend == "vllm" else None


def _gib(size: int | None, share: float | None = 1.0) -> float | None:
    return None if size is None or share is None else round(size * share / GIB, 1)
