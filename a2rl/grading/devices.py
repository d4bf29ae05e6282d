"""The devices that grade: GPUs by their UUID, which stays right when another GPU disappears, or else the processor.

Also what a grader takes of a GPU's memory, which is checked before a run and told to an agent that shares the GPU."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.settings import Settings
from a2rl.grading.job import EngineChoice, GradeJob
from a2rl.grading.prompt_check import limits_of
from a2rl.linux.gpu_locks import hold_gpus
from a2rl.linux.gpus import CPU, Gpu, Inventory, find_gpus, require_answer, usable_gpus
from a2rl.linux.resources import GIB
from a2rl.models.base_model import TINY
from a2rl.run.gpu_share import require_gpus_for_one
from a2rl.run.spec import RunSpec
from a2rl.sampling.engine_params import EngineMemory


def devices_of(gpus: Sequence[Gpu], for_one: int = 1) -> list[str]:
    """Returns the devices for a `GraderPool` on some GPUs; the processor if there are none.

    Args:
        for_one: How many GPUs compute one model. Each so many are one device, and what is left over is not used.

    Raises:
        UsageError: There are fewer GPUs than one model needs.
    """
    require_gpus_for_one(for_one, len(gpus))
    groups = [gpus[start : start + for_one] for start in range(0, len(gpus) - for_one + 1, for_one)]
    return [",".join(gpu.uuid for gpu in group) for group in groups] or [CPU]


@contextmanager
def held_device(model: str, settings: Settings, for_one: int = 1) -> Iterator[str]:
    """Holds a device for grading outside of runs, after waiting for it; `tiny` is graded on the processor, as in runs.

    Args:
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


def plan_memory(spec: RunSpec, base_model: Path, gpus: Sequence[Gpu], root: Path) -> EngineMemory | None:
    """Plans what the engine takes that grades a run; None with another back end than vLLM.

    Raises:
        UsageError: A GPU is too small for it, or the model's configuration does not say what must be known.
    """
    engine = EngineChoice.of(spec.backend, spec.dtype, spec.vllm, base_model)
    memory = engine.memory(base_model, limits_of(spec, root), bool(gpus))
    smallest = min((gpu.total_bytes for gpu in gpus if gpu.total_bytes), default=None)
    if memory and smallest and memory.total_bytes > smallest:
        raise UsageError(
            f"grading needs {memory}, which has {smallest / GIB:.1f}: take a smaller model, more GPUs for one model "
            "(grading.vllm.tensor_parallel_size), or a shorter context (grading.vllm.max_model_len)"
        )
    return memory


def planned_for(device: str, job: GradeJob, base_model: Path) -> GradeJob:
    """Returns a job outside of runs with a plan of what its engine takes of a device.

    Raises:
        UsageError: The configuration of the base model does not say what must be known.
    """
    engine = EngineChoice(backend=job.backend, dtype=job.dtype, vllm=job.vllm)
    memory = engine.memory(base_model, limits_of(job, job.root), on_gpu=device != CPU)
    return job.model_copy(update={"memory": memory})
