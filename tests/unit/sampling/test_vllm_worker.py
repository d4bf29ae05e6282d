"""Tests how the process of vLLM deals with the memory of a GPU that others use as well, with a fake of that memory."""

import subprocess
import sys
from subprocess import PIPE
from types import SimpleNamespace
from typing import Any

import pytest

from a2rl.sampling import vllm_worker
from a2rl.sampling.vllm_worker import Engine, OutOfMemoryError, lacks_memory

GIB = 1 << 30


class FakeGpu:
    """A GPU with an engine of vLLM on it, which takes memory when it wakes up."""

    def __init__(self) -> None:
        self.free = 80 * GIB
        self.taken_meanwhile = False
        self.calls: list[str] = []
        self.llm_engine = SimpleNamespace(
            model_config=SimpleNamespace(max_model_len=512), has_unfinished_requests=lambda: False
        )

    def sleep(self, level: int) -> None:
        self.calls.append("sleep")

    def wake_up(self, tags: list[str]) -> None:
        self.calls += tags
        if self.taken_meanwhile:
            raise RuntimeError("CUDA Error: out of memory at cumem_allocator.cpp:139")

    def collective_rpc(self, name: str, kwargs: dict[str, str]) -> None:
        self.calls.append(kwargs["weights_path"])

    def apply_model(self, change: Any) -> None: ...

    def reset_prefix_cache(self) -> bool:
        return True


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    gpu = FakeGpu()
    monkeypatch.setattr(vllm_worker, "free_gpu_bytes", lambda: gpu.free)
    monkeypatch.setattr(Engine, "_require_weights_of", lambda engine, model: None)
    return gpu


@pytest.fixture
def engine(gpu: FakeGpu) -> Engine:
    engine = Engine(gpu, tokenizer=None, sleeps=True, waking_bytes=20 * GIB)
    engine.rest()
    return engine


def test_an_engine_without_enough_memory_goes_on_resting(engine: Engine, gpu: FakeGpu) -> None:
    gpu.free = 17 * GIB
    with pytest.raises(OutOfMemoryError, match=r"needs 20.0 GiB .* 17.0 GiB are free: 3.0 GiB are missing"):
        engine.load("v1")
    assert gpu.calls == ["sleep"]
    gpu.free = 20 * GIB
    assert engine.load("v1") == ""
    assert gpu.calls == ["sleep", "weights", "v1", "kv_cache"]


def test_running_out_of_memory_is_no_refusal_of_weights(engine: Engine, gpu: FakeGpu) -> None:
    """The engine can be used no more, but nothing is wrong with the checkpoint or with taking weights."""
    gpu.taken_meanwhile = True
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.load("v1")


def test_an_engine_starts_only_if_its_memory_is_free(gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {}
    monkeypatch.setattr(vllm_worker, "finds_gpu", lambda: True)
    monkeypatch.setattr(vllm_worker, "load_tokenizer", lambda model: None)
    monkeypatch.setattr(vllm_worker, "load_engine", lambda model, exact, given: options.update(given) or gpu)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    told = {
        "exact": False, "engine": {"max_model_len": 512, "kv_cache_memory_bytes": 7}, "on_gpu": {"max_num_seqs": 256},
        "start_bytes": 22 * GIB, "waking_bytes": 20 * GIB,
    }  # fmt: skip
    gpu.free = 21 * GIB
    with pytest.raises(OutOfMemoryError, match=r"1.0 GiB are missing"):
        Engine.start("v1", told)
    assert not options
    gpu.free = 22 * GIB
    Engine.start("v1", told)
    assert (options["max_model_len"], options["kv_cache_memory_bytes"], options["max_num_seqs"]) == (512, 7, 256)
    assert options["gpu_memory_utilization"] < 0.05, "vLLM itself must not ask for a share of the whole memory"


@pytest.mark.parametrize(
    "error",
    [
        AssertionError("Error in memory profiling. Initial free memory 20.1 GiB, current free memory 30.2 GiB."),
        AssertionError("Memory usage increased after sleeping."),
        ValueError(
            "Free memory on device cuda:0 (3.1/79.2 GiB) on startup is less than desired GPU memory utilization"
        ),
        ValueError("Available memory on node 0 (1/8 GiB) on kv cache allocation is less than requested memory for kv"),
        RuntimeError("CUDA out of memory. Tried to allocate 1.05 GiB."),
    ],
)
def test_what_vllm_says_when_free_memory_changes_is_known(error: Exception) -> None:
    assert lacks_memory(repr(error))


def test_an_engine_that_memory_is_taken_from_says_so_and_ends() -> None:
    fails = """
from a2rl.sampling import vllm_worker
def start(model, told):
    raise AssertionError("Error in memory profiling. Initial free memory 1 GiB, current free memory 2 GiB.")
vllm_worker.Engine.start = start
vllm_worker.main()
"""
    command = [sys.executable, "-c", fails, "v1", "{}"]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True) as ended:
        assert ended.stdout is not None
        assert ended.stderr is not None
        said, log = ended.stdout.read(), ended.stderr.read()
    assert ended.returncode == vllm_worker.OUT_OF_MEMORY
    assert '{"memory": "others took memory that it needed (Error in memory profiling.' in said
    assert "Traceback" in log
