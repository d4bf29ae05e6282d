"""`python -P -m a2rl.linux.nvml`: prints NVIDIA's GPUs as JSON, as the driver reports them through NVML.

It is a separate program because a call to a driver that has failed may never return: see a2rl/linux/gpus.py.
"""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml

CAPABILITIES = Path("/proc/driver/nvidia/capabilities")
MINOR = "DeviceFileMinor:"


def list_devices(nvml: Any = pynvml, capabilities: Path = CAPABILITIES) -> Iterator[dict[str, Any]]:
    """Yields the fields of `a2rl.linux.gpus.Gpu` for each device: a GPU, or each of its MIG instances.

    A GPU that cannot be asked is yielded with the key `problem` instead.

    Args:
        nvml: The NVML bindings, initialised; tests pass a fake.
        capabilities: The driver's folder with the device files of MIG instances.
    """
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            device = nvml.nvmlDeviceGetHandleByIndex(index)
            minor = _or_none(nvml, nvml.nvmlDeviceGetMinorNumber, device)
            nodes = [f"/dev/nvidia{index if minor is None else minor}"]
            if (_or_none(nvml, nvml.nvmlDeviceGetMigMode, device) or [0])[0]:
                yield from _instances(nvml, index, device, nodes, capabilities / f"gpu{minor}" / "mig")
            else:
                yield {"index": index, "nodes": nodes, **_facts(nvml, device)}
        except nvml.NVMLError as error:
            yield {"problem": f"GPU {index} does not answer: {error}"}


def _instances(nvml: Any, index: int, gpu: Any, nodes: list[str], capabilities: Path) -> Iterator[dict[str, Any]]:
    """Yields the MIG instances of a GPU."""
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            device = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, place)
        except nvml.NVMLError:
            continue  # there is none at this place
        instance = capabilities / f"gi{nvml.nvmlDeviceGetGpuInstanceId(device)}"
        compute = instance / f"ci{nvml.nvmlDeviceGetComputeInstanceId(device)}"
        yield {"index": index, "nodes": [*nodes, *_nodes_of(instance), *_nodes_of(compute)], **_facts(nvml, device)}


def _facts(nvml: Any, device: Any) -> dict[str, Any]:
    memory = _or_none(nvml, nvml.nvmlDeviceGetMemoryInfo, device)
    return {
        "uuid": _text(nvml.nvmlDeviceGetUUID(device)),
        "name": _text(_or_none(nvml, nvml.nvmlDeviceGetName, device) or "NVIDIA GPU"),
        "total_bytes": int(memory.total) if memory else None,
        "free_bytes": int(memory.free) if memory else None,
    }


def _nodes_of(capability: Path) -> list[str]:
    """Returns the device file that gives access to a capability; none if the driver does not say which."""
    try:
        lines = (capability / "access").read_text().splitlines()
    except OSError:
        return []
    return [
        f"/dev/nvidia-caps/nvidia-cap{line.removeprefix(MINOR).strip()}" for line in lines if line.startswith(MINOR)
    ]


def _or_none(nvml: Any, ask: Callable[[Any], Any], device: Any) -> Any:
    """Returns an answer that not every device has, such as its memory; None if it has none."""
    try:
        return ask(device)
    except nvml.NVMLError as error:
        if error.value in (nvml.NVML_ERROR_NOT_SUPPORTED, nvml.NVML_ERROR_FUNCTION_NOT_FOUND):
            return None
        raise


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def main() -> None:
    """Prints the devices, or why there are none."""
    try:
        pynvml.nvmlInit()
        found: dict[str, Any] = {"devices": list(list_devices())}
    except (pynvml.NVMLError, OSError) as error:
        found = {"why_none": str(error)}
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
