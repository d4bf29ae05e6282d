"""The devices that grade: GPUs by their UUID, which stays right when another GPU disappears, or else the processor."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from a2rl.core.errors import InfrastructureError
from a2rl.core.settings import Settings
from a2rl.linux.gpu_locks import hold_gpus
from a2rl.linux.gpus import Gpu, Inventory, find_gpus, require_answer, usable_gpus
from a2rl.models.base_model import TINY

CPU = "cpu"


def devices_of(gpus: Sequence[Gpu]) -> list[str]:
    """Returns the devices for a `GraderPool` on some GPUs; the processor if there are none."""
    return [gpu.uuid for gpu in gpus] or [CPU]


def devices_here(settings: Settings) -> list[str]:
    """Returns the devices for grading: the GPUs in $CUDA_VISIBLE_DEVICES (all if it is not set), or else the CPU."""
    return devices_of(usable_gpus(settings).gpus)


@contextmanager
def held_device(model: str, settings: Settings) -> Iterator[str]:
    """Holds a GPU for grading outside of runs, after waiting for one; `tiny` is graded on the processor, as in runs.

    Raises:
        InterruptedByUserError: The user stopped the pipeline while it waited.
        InfrastructureError: The GPUs did not become free.
    """
    here = usable_gpus(settings) if model != TINY else Inventory()
    require_answer(here)
    with hold_gpus(here.gpus, min(1, len(here.gpus)), settings.gpu_locks, "a grade without a run") as gpus:
        yield devices_of(gpus)[0]


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
