"""The NVIDIA GPUs of this machine, which of them this process may use, and the rest of its hardware.

    found = find_gpus(settings)            # all of them, from NVML
    mine = usable_gpus(settings)           # those of CUDA_VISIBLE_DEVICES, in its order
    mine.gpus[0].uuid, mine.gpus[0].total_bytes

A device is what CUDA can use: a GPU, or a MIG instance of one. Asking takes at most `ANSWER_TIMEOUT_S`, even if the
driver hangs. A machine without a driver is not asked at all.
"""

import json
import os
import platform
import re
import shutil
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import distributions
from pathlib import Path
from typing import NamedTuple

from a2rl.core.errors import InfrastructureError
from a2rl.core.files import StrictModel
from a2rl.core.processes import read_apart
from a2rl.core.settings import Settings
from a2rl.linux.resources import GPU_NODES

CPU = "cpu"
"""The device of what uses no GPU."""
ANSWER_TIMEOUT_S = 30.0
"""The driver needs a few seconds for its first answer on a large machine that does not keep it loaded."""
DRIVER_NODES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""The driver's own device files; the second one is that of WSL."""
SMI = "nvidia-smi"
NO_NVML = "NVML lists no GPU ({why}): in a container, allow `utility` in NVIDIA_DRIVER_CAPABILITIES"
NONE_MEANT = {"", "-1", "none", "void", "nodevfiles"}
"""Entries of CUDA_VISIBLE_DEVICES that mean no GPU. They are no mistake."""
CPUINFO, MEMINFO, DRIVER = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/proc/driver/nvidia/version")
CUDA_RUNTIME = re.compile(r"nvidia[-_]cuda[-_]runtime([-_]cu\d+)?$", re.IGNORECASE)


class Gpu(StrictModel):
    """A device that CUDA can use."""

    index: int
    """The number of the GPU, by its place on the PCI bus. The MIG instances of a GPU share it."""
    uuid: str
    """`GPU-...`, or `MIG-...` for a MIG instance."""
    name: str
    total_bytes: int | None = None
    """None if the driver does not say."""
    free_bytes: int | None = None
    nodes: tuple[str, ...] = ()
    """The device files without which it cannot be used, besides those of the driver."""

    @property
    def is_mig(self) -> bool:
        """Whether it is a MIG instance. A process can use only one of these."""
        return self.uuid.startswith("MIG-")

    @property
    def cuda_name(self) -> str:
        """Its name in CUDA_VISIBLE_DEVICES for a process that can see all GPUs, with CUDA_DEVICE_ORDER=PCI_BUS_ID."""
        return self.uuid if self.is_mig else str(self.index)

    def __str__(self) -> str:
        """The device as shown to people."""
        return f"{self.cuda_name} ({self.name})"


class Inventory(NamedTuple):
    """The devices that were found."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    """What is wrong with the driver, a GPU or CUDA_VISIBLE_DEVICES; empty if nothing is."""


def find_gpus(settings: Settings) -> Inventory:
    """Returns the devices of this machine, whatever CUDA_VISIBLE_DEVICES says."""
    has_driver = any(node.exists() for node in DRIVER_NODES)
    if not has_driver and shutil.which(SMI, path=settings.environ.get("PATH")) is None:
        return Inventory()
    try:
        read = read_apart("a2rl.linux.nvml", (), settings, "", ANSWER_TIMEOUT_S)
    except OSError as error:
        return Inventory(problem=f"NVIDIA's driver cannot be asked: {error}")
    if read.problem:
        return Inventory(problem=f"NVIDIA's driver does not answer ({read.problem}): restart the machine")
    last = (read.output.decode("utf-8", "replace").strip().splitlines() or ["it says nothing"])[-1]
    with suppress(ValueError, KeyError, TypeError):
        told = json.loads(last)
        if "why_none" in told:
            return Inventory(problem=NO_NVML.format(why=told["why_none"]))
        problems = [each["problem"] for each in told["devices"] if "problem" in each]
        gpus = tuple(Gpu(**each) for each in told["devices"] if "problem" not in each)
        return Inventory(gpus, "; ".join(problems))
    return Inventory(problem=NO_NVML.format(why=last))


def require_answer(here: Inventory) -> None:
    """Refuses to take a machine whose GPUs cannot be asked for one without GPUs.

    Raises:
        InfrastructureError: There is something wrong, and no GPU was found.
    """
    if here.problem and not here.gpus:
        raise InfrastructureError(f"{here.problem}; to use the processor instead, set CUDA_VISIBLE_DEVICES to nothing")


def usable_gpus(settings: Settings) -> Inventory:
    """Returns the devices of this machine that CUDA_VISIBLE_DEVICES names; all of them if it is not set."""
    named = settings.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None and _means_none(named):
        return Inventory()  # the driver need not be asked
    found = find_gpus(settings)
    if named is None:
        return found
    gpus, mistake = select(found.gpus, named)
    return Inventory(gpus, "; ".join(filter(None, (found.problem, mistake if found.gpus else ""))))


def select(gpus: Sequence[Gpu], named: str) -> tuple[tuple[Gpu, ...], str]:
    """Returns the devices that a value of CUDA_VISIBLE_DEVICES names, in its order, as CUDA reads it.

    CUDA reads indices and UUIDs, whose end may be left out. It stops at the first entry that names no device, so that
    later ones are invisible too. If an entry is repeated, it uses no device at all.

    Returns:
        The devices, and what is wrong with the value; empty if it says what it means.
    """
    chosen: list[Gpu] = []
    for entry in (each.strip() for each in named.split(",")):
        named_here = _named_by(entry, gpus)
        if not named_here:
            why = f"CUDA_VISIBLE_DEVICES={named}: {entry!r} names no GPU here, so CUDA ignores it and what follows it"
            return tuple(chosen), "" if entry.lower() in NONE_MEANT else why
        if set(named_here) & set(chosen):
            return (), f"CUDA_VISIBLE_DEVICES={named} names a GPU twice, so that CUDA uses none: name each once"
        chosen += named_here
    return tuple(chosen), ""


def device_files(dev: Path = Path("/dev")) -> list[Path]:
    """Returns the device files of all GPUs and of their driver."""
    return [node for node in dev.glob("*") if node.name.startswith(GPU_NODES)]


def driver_nodes(gpus: Sequence[Gpu], dev: Path = Path("/dev")) -> tuple[str, ...]:
    """Returns the device files that a process needs to use these devices and no others; none if there are none."""
    if not gpus:
        return ()
    own = {node for gpu in gpus for node in gpu.nodes}
    shared = (node for node in device_files(dev) if not node.name.removeprefix("nvidia").isdigit())
    # The folder nvidia-caps has the device files of all MIG instances, so it is given only file by file.
    return (*sorted(str(node) for node in shared if node.name != "nvidia-caps"), *sorted(own))


def _named_by(entry: str, gpus: Sequence[Gpu]) -> list[Gpu]:
    """Returns the device that an entry of CUDA_VISIBLE_DEVICES names; an index, all MIG instances of a GPU."""
    if entry.isascii() and entry.isdecimal():
        return [gpu for gpu in gpus if gpu.index == int(entry)]
    if not entry.startswith(("GPU-", "MIG-")):
        return []
    found = [gpu for gpu in gpus if gpu.uuid == entry] or [gpu for gpu in gpus if gpu.uuid.startswith(entry)]
    return found if len(found) == 1 else []  # CUDA reads an abbreviation only if it is unique


def _means_none(named: str) -> bool:
    """Whether no device is named, so that nothing has to be known about the machine to say so."""
    return named.split(",", maxsplit=1)[0].strip().lower() in NONE_MEANT


class Hardware(StrictModel):
    """The machine of a run. GPUs are in the run's `gpus.json`. Texts are empty where the machine does not say."""

    processor: str
    cores: int
    """Cores that this process may use."""
    memory_bytes: int | None
    kernel: str
    gpu_driver: str = ""
    """The version of NVIDIA's kernel driver."""
    cuda: str = ""
    """The version of the CUDA runtime that is installed beside torch."""


def hardware(cpuinfo: Path = CPUINFO, meminfo: Path = MEMINFO, driver: Path = DRIVER) -> Hardware:
    """Describes this machine; nothing here asks a driver, so that it returns at once."""
    memory = _field(meminfo, r"MemTotal:\s*(\d+) kB")
    return Hardware(
        processor=_field(cpuinfo, r"model name\s*:\s*(.+)") or platform.machine(),
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=int(memory) * 1024 if memory else None,
        kernel=platform.release(),
        gpu_driver=_field(driver, r"Kernel Module(?: for \S+)?\s+(\d[\d.]*)"),
        cuda=_cuda(),
    )


def _field(path: Path, pattern: str) -> str:
    """Returns what a pattern finds first in a file; empty if there is no such file or text."""
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""
    return found[1].strip() if found else ""


def _cuda() -> str:
    names = ((each.metadata["Name"] or "", each.version) for each in distributions())
    return next((version for name, version in names if CUDA_RUNTIME.match(name)), "")
