"""What params.yaml says about the engines that generate: the type of their numbers, and the options of vLLM."""

import json
from functools import cache
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["float32", "bfloat16", "float16"]
"""The type of the numbers that a model is computed with."""
DtypeSetting = Literal["auto", "float32", "bfloat16", "float16"]
HALF = ("bfloat16", "float16")
CPUINFO = Path("/proc/cpuinfo")
FAST_IN_BFLOAT16 = {"avx512_bf16", "amx_bf16"}
"""What CPUs that multiply matrices in bfloat16 say of themselves. There it is 2 to 5 times as fast as float32."""


class VllmParams(BaseModel):
    """The section `grading.vllm` of params.yaml: options of vLLM, under vLLM's own names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: DtypeSetting = "auto"
    """`auto`: as `grading.dtype`."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of GPUs for one model."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Tokens of context; as many as the model has and the task may need unless given."""
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    """Size of the cache of keys and values on each GPU; by the model and the task unless given."""
    enforce_eager: bool | None = None
    """Whether to skip compilation; only on a CPU unless given."""

    def engine_options(self) -> dict[str, int | float | bool]:
        """Returns the options that are given, without the type of numbers."""
        return self.model_dump(exclude={"dtype"}, exclude_none=True)


def computing_type(setting: DtypeSetting, base_model: Path) -> Dtype | None:
    """Returns the type of numbers for a base model and everything trained from it.

    `auto` depends on the base model, not on the submission, so that both are graded alike: bfloat16 if the base model
    is stored in 16 bits and the CPU is fast in bfloat16.

    Returns:
        The type; None for the usual one of the device: float32 on a CPU, bfloat16 on a GPU.
    """
    if setting != "auto":
        return setting
    return "bfloat16" if stored_type(base_model) in HALF and cpu_is_fast_in_bfloat16() else None


def stored_type(model: Path) -> str:
    """Returns the type of numbers that a checkpoint's configuration names; empty if it names none."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    sections = [config, config.get("text_config") or {}] if isinstance(config, dict) else []
    named = [section.get(key) for section in sections for key in ("dtype", "torch_dtype")]
    return next((str(each) for each in named if each in get_args(Dtype)), "")


def cpu_is_fast_in_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Says whether this machine's CPU has instructions for matrices in bfloat16."""
    return bool(FAST_IN_BFLOAT16 & cpu_flags(cpuinfo))


@cache
def cpu_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Returns what this machine's CPU says it can do."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return frozenset(flags)
