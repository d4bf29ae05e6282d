"""What an agent is told about its GPUs: their memory, and how much of it a grader on the same GPU keeps."""

from pydantic import BaseModel

from a2rl.linux.resources import GIB
from a2rl.run.gpu_share import GpuShare
from a2rl.run.spec import RunSpec


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
