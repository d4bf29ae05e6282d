"""A fake NVIDIA driver for child processes: a module `pynvml` that reads a JSON file, and a program `nvidia-smi`.

    gpus = FakeGpus(settings.root, count=8)
    settings = gpus.seen_by(settings)            # its children find the fake instead of the real ones
    gpus.lose(3)                                 # GPU 3 falls off the bus

The module is found first because the checkout's folder comes first in PYTHONPATH.
"""

import dataclasses
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from a2rl.core.settings import Settings
from a2rl.linux.gpus import Gpu

GIB = 1 << 30

PYNVML = '''
"""A fake NVML, with the names of the real one."""
import json, time
from pathlib import Path

NVML_ERROR_NOT_SUPPORTED, NVML_ERROR_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 3, 6, 9
NVML_ERROR_FUNCTION_NOT_FOUND, NVML_ERROR_GPU_IS_LOST = 13, 15
NVML_ERROR_RESET_REQUIRED, NVML_ERROR_GPU_NOT_FOUND = 16, 28


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__({9: "Driver Not Loaded", 15: "GPU is lost"}.get(value, f"error {value}"))
        self.value = value


class Memory:
    def __init__(self, device):
        self.total, self.free = device["total_bytes"], device["free_bytes"]


def _state():
    return json.loads(Path(__file__).with_name("fake_gpus.json").read_text())


def nvmlInit():
    if _state()["hangs"]:
        time.sleep(600)
    if _state()["nvml_fails"]:
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)


def nvmlShutdown():
    pass


def nvmlDeviceGetCount():
    return len(_state()["gpus"])


def _there(device):
    if device.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    return device


def nvmlDeviceGetHandleByIndex(index):
    return _there(_state()["gpus"][index])


def nvmlDeviceGetHandleByUUID(uuid):
    return _there(next(each for each in _state()["gpus"] if each["uuid"] == uuid))


def nvmlDeviceGetMinorNumber(device):
    return device["minor"]


def nvmlDeviceGetMigMode(device):
    if "mig" not in device:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return [1, 1]


def nvmlDeviceGetMaxMigDeviceCount(device):
    return 7


def nvmlDeviceGetMigDeviceHandleByIndex(device, place):
    if place >= len(device["mig"]):
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return device["mig"][place]


def nvmlDeviceGetGpuInstanceId(device):
    return device["instance"]


def nvmlDeviceGetComputeInstanceId(device):
    return 0


def nvmlDeviceGetUUID(device):
    return device["uuid"]


def nvmlDeviceGetName(device):
    return device["name"].encode()


def nvmlDeviceGetMemoryInfo(device):
    if device["total_bytes"] is None:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return Memory(device)


def nvmlDeviceGetProcessUtilization(device, since):
    raise NVMLError(NVML_ERROR_NOT_FOUND)
'''

LIBCUDA = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int cuInit(unsigned flags) { return getenv("FAKE_CUDA_ERROR") ? atoi(getenv("FAKE_CUDA_ERROR")) : 0; }
int cuDeviceGetCount(int *count) {
    const char *named = getenv("CUDA_VISIBLE_DEVICES");
    *count = 0;
    if (named && *named) for (*count = 1; *named; named++) *count += *named == ',';
    return 0;
}
"""


class FakeGpus:
    """A driver with some GPUs of 80 GiB, of which 1 GiB is in use."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._file = folder, folder / "fake_gpus.json"
        self._state: dict[str, Any] = {
            "hangs": False,
            "nvml_fails": False,
            "gpus": [_device(f"GPU-{index}f3a0000-0000-4000-8000-00000000000{index}", index) for index in range(count)],
        }
        (folder / "pynvml.py").write_text(PYNVML)
        bin_folder = folder / "fake-bin"
        bin_folder.mkdir()
        (bin_folder / "nvidia-smi").write_text("#!/bin/sh\n")
        (bin_folder / "nvidia-smi").chmod(0o755)
        self._write()

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process finds the fake driver, and locks that no other process uses."""
        path = f"{self._folder / 'fake-bin'}{os.pathsep}{os.environ['PATH']}"
        return {"PATH": path, "A2RL_GPU_LOCKS": str(self._folder / "gpu-locks")}

    def seen_by(self, settings: Settings, visible: str | None = None) -> Settings:
        """Returns settings whose children see the GPUs, with a value of CUDA_VISIBLE_DEVICES if one is given."""
        others = {name: text for name, text in settings.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        named = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
        return dataclasses.replace(settings, environ={**others, **self.environment, **named})

    def uuid(self, index: int) -> str:
        return str(self._state["gpus"][index]["uuid"])

    def change(self, **state: Any) -> None:
        """Changes how the driver behaves: `hangs`, `nvml_fails`."""
        self._state |= state
        self._write()

    def lose(self, index: int) -> None:
        self._state["gpus"][index]["lost"] = True
        self._write()

    def change_gpu(self, index: int, **fields: Any) -> None:
        self._state["gpus"][index] |= fields
        self._write()

    def split(self, index: int, instances: int) -> None:
        """Puts a GPU into MIG mode."""
        self._state["gpus"][index]["mig"] = [
            {**_device(f"MIG-{index}{place}-instance", index), "instance": place + 1} for place in range(instances)
        ]
        self._write()

    def _write(self) -> None:
        self._file.with_suffix(".new").write_text(json.dumps(self._state))
        self._file.with_suffix(".new").replace(self._file)


def fake_gpu(index: int, **fields: Any) -> Gpu:
    """Returns a device without a driver behind it."""
    named: dict[str, Any] = {"index": index, "uuid": f"GPU-{index}{index}aa-bb", "name": "Fake"}
    return Gpu(**named | fields)


def make_libcuda(folder: Path) -> Path:
    """Makes a fake of the driver's library in a folder, for LD_LIBRARY_PATH; a test is skipped without a compiler."""
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    (folder / "cuda.c").write_text(LIBCUDA)
    command = ["cc", "-shared", "-fPIC", "-o", str(folder / "libcuda.so.1"), str(folder / "cuda.c")]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("there is no C compiler")
    return folder


def _device(uuid: str, minor: int) -> dict[str, Any]:
    return {"uuid": uuid, "name": "NVIDIA H100", "total_bytes": 80 * GIB, "free_bytes": 79 * GIB, "minor": minor}
