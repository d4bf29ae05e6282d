"""The GPUs of a run: how many it needs, which ones it has, and which of them its agent sees.

with allocated_gpus(run, settings) as share:      # waits until they are free
    share.agent, share.graders

`gpus.json` in the run directory names them for the run's other processes.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from a2rl.core.errors import InfrastructureError, UsageError
from a2rl.core.files import StrictModel, read_model, write_model
from a2rl.core.settings import Settings
from a2rl.linux.gpu_locks import hold_gpus
from a2rl.linux.gpus import Gpu, Inventory, find_gpus, require_answer, usable_gpus
from a2rl.models.base_model import TINY
from a2rl.run.directory import RunDir
from a2rl.run.spec import RunSettings

FILE = "gpus.json"


class GpuShare(StrictModel):
    """The GPUs of a run."""

    agent: tuple[Gpu, ...] = ()
    """The GPUs that the agent sees."""
    grading: tuple[Gpu, ...] = ()
    """Those that only grade, for this run and others in turn."""

    @property
    def graders(self) -> tuple[Gpu, ...]:
        """The GPUs that grade while the agent works: those reserved for it, or else the agent's."""
        return self.grading or self.agent

    @property
    def all(self) -> tuple[Gpu, ...]:
        """All GPUs of the run, which grade before the agent starts and after it has ended."""
        return (*self.grading, *self.agent)


class GpuCounts(NamedTuple):
    """How many GPUs a run takes: for its agent alone, and for grading, together with other runs."""

    agent: int
    grading: int


def count_gpus(spec: RunSettings, here: Inventory, side_by_side: int = 1) -> GpuCounts:
    """Returns how many GPUs a run takes.

    Args:
        side_by_side: The number of runs at a time. A run that does not say how many GPUs it needs gets an even share.

    Raises:
        UsageError: There are too few.
    """
    whole = [gpu for gpu in here.gpus if not gpu.is_mig]
    wanted = spec.gpus_per_run
    if wanted is None:
        even = (len(here.gpus) - spec.grading_gpus) // side_by_side
        most = max(1, len(whole) - spec.grading_gpus)
        wanted = 0 if spec.model == TINY or not here.gpus else min(max(1, even), most)
    needed = wanted + spec.grading_gpus
    if needed > len(here.gpus):
        gpus = "GPU" if needed == 1 else "GPUs"
        verb = "need" if spec.grading_gpus else "needs"
        raise UsageError(f"{_request(spec)} {verb} {needed} {gpus}, but {_here(here)}: ask for fewer")
    if wanted > 1 and needed > len(whole):
        raise UsageError(f"a process can use only one MIG instance: ask for --gpus-per-run 1 ({_here(here)})")
    return GpuCounts(wanted, spec.grading_gpus)


def require_gpus_for_one(for_one: int, grading: int) -> None:
    """Refuses to compute one model on more GPUs than grade. Where none grades, the processor does.

    Raises:
        UsageError: There are too few.
    """
    if 0 < grading < for_one:
        raise UsageError(
            f"grading.vllm.tensor_parallel_size {for_one} needs {for_one} GPUs for one model, but {grading} "
            f"{'grades' if grading == 1 else 'grade'}: give the run more (--grading-gpus {for_one}), or set it to "
            f"{grading}"
        )


def wants_no_gpu(spec: RunSettings) -> bool:
    """Whether a run uses no GPU, whatever this machine has."""
    asked = spec.gpus_per_run or 0
    return not (asked or spec.grading_gpus) and (spec.gpus_per_run == 0 or spec.model == TINY)


@contextmanager
def allocated_gpus(run: RunDir, settings: Settings) -> Iterator[GpuShare]:
    """Holds the GPUs of a run within the context, after waiting for runs that use them.

    Those that only grade are shared with other runs that have them for that, too; a `GraderPool` waits for its turn.

    Raises:
        UsageError: This machine has too few GPUs.
        InterruptedByUserError: The user stopped the pipeline while it waited.
        InfrastructureError: The GPUs did not become free, or the driver does not answer.
    """
    here = Inventory() if wants_no_gpu(run.spec) else usable_gpus(settings)
    require_answer(here)
    counts = count_gpus(run.spec, here, run.spec.side_by_side)
    candidates = [gpu for gpu in here.gpus if counts.agent < 2 or not gpu.is_mig]
    with hold_gpus(candidates, counts.agent, settings.gpu_locks, f"run {run.id}", shared=counts.grading) as gpus:
        share = GpuShare(agent=gpus[: counts.agent], grading=gpus[counts.agent :])
        write_model(run.root / FILE, share)
        yield share


def share_of(run: RunDir, settings: Settings) -> GpuShare:
    """Returns the GPUs that were allocated to a run. If none ever were, it has all those that runs may use."""
    return allocation_of(run) or GpuShare(agent=usable_gpus(settings).gpus)


def allocation_of(run: RunDir) -> GpuShare | None:
    """Returns the GPUs that were allocated to a run; None if none ever were."""
    try:
        return read_model(run.root / FILE, GpuShare)
    except FileNotFoundError:
        return None


def check_gpus(run: RunDir, settings: Settings) -> GpuShare:
    """Returns the GPUs of a run after checking that all of them still answer.

    Raises:
        InfrastructureError: One of them has disappeared.
    """
    share = share_of(run, settings)
    if not share.all:
        return share
    here = find_gpus(settings)
    if gone := [str(gpu) for gpu in share.all if gpu.uuid not in {each.uuid for each in here.gpus}]:
        raise InfrastructureError(
            f"GPU {', '.join(gone)} has disappeared{f' ({here.problem})' if here.problem else ''}: "
            f"`nvidia-smi` may say why; `a2rl resume {run.id}` continues on the GPUs that are left"
        )
    return share


def _request(spec: RunSettings) -> str:
    given = [f"--gpus-per-run {spec.gpus_per_run}"] if spec.gpus_per_run is not None else ["a run"]
    return " and ".join([*given, *([f"--grading-gpus {spec.grading_gpus}"] if spec.grading_gpus else [])])


def _here(here: Inventory) -> str:
    named = f" ({', '.join(map(str, here.gpus))})" if here.gpus else ""
    problem = f"; {here.problem}" if here.problem else ""
    return f"there {'is' if len(here.gpus) == 1 else 'are'} {len(here.gpus) or 'none'} here{named}{problem}"
