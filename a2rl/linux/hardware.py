"""What a run computes on: processor, memory, kernel, and the versions of NVIDIA's driver and of CUDA."""

import os
import platform
import re
from importlib.metadata import distributions
from pathlib import Path

from pydantic import BaseModel, ConfigDict

CPUINFO, MEMINFO, DRIVER = Path("/proc/cpuinfo"), Path("/proc/meminfo"), Path("/proc/driver/nvidia/version")
CUDA_RUNTIME = re.compile(r"nvidia[-_]cuda[-_]runtime([-_]cu\d+)?$", re.IGNORECASE)


class Hardware(BaseModel):
    """The machine of a run. GPUs are in the run's `gpus.json`. Texts are empty where the machine does not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

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
