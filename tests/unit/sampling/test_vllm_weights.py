"""Tests that weights inside an engine are told apart from those in the files, in whatever form an engine keeps them."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from a2rl.sampling import vllm_weights
from a2rl.sampling.vllm_weights import WeightsDifferError, forget_packing, pack_again, require_equal

TYPES = [torch.float32, torch.bfloat16, torch.float16]


class Fused(nn.Module):
    """A layer of an engine: one matrix for two of the checkpoint's, with rows of padding."""

    def __init__(self, first: Tensor, second: Tensor, bias: Tensor) -> None:
        super().__init__()
        padding = torch.zeros(3, first.shape[1], dtype=first.dtype)
        self.qk = nn.Linear(first.shape[1], 1, bias=False)
        self.qk.weight = nn.Parameter(torch.cat([first, second, padding]))
        self.norm = nn.Parameter(bias)


class Packed(nn.Module):
    """A module whose matrix can only be multiplied with, as vLLM packs it for processors."""

    def __init__(self, weight: Tensor, keep: bool) -> None:
        super().__init__()
        self.input_size = weight.shape[1]
        self.weight = nn.Parameter(weight if keep else torch.empty(0))
        self.quant_method = self
        self.cpu_linear: Callable[..., Tensor]
        self._pack(weight)

    def process_weights_after_loading(self, module: nn.Module) -> None:
        assert module is self
        self._pack(self.weight.detach())

    def _pack(self, weight: Tensor) -> None:
        packed = weight.clone()
        self.cpu_linear = lambda rows, _weight, bias: nn.functional.linear(rows, packed, bias)


class Engine(nn.Module):
    def __init__(self, *layers: nn.Module, head: nn.Module | None = None) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        if head is not None:
            self.lm_head = head


def layer(seed: int, dtype: torch.dtype) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(seed)
    shapes = {"q.weight": (4, 6), "k.weight": (2, 6), "norm": (6,)}
    return {name: torch.randn(shape, generator=random).to(dtype) for name, shape in shapes.items()}


def engine_of(*layers: dict[str, Tensor]) -> Engine:
    return Engine(*(Fused(each["q.weight"], each["k.weight"], each["norm"]) for each in layers))


def write(folder: Path, *layers: dict[str, Tensor], **more: Tensor) -> str:
    folder.mkdir()
    tensors = {f"layers.{place}.{name}": tensor for place, each in enumerate(layers) for name, tensor in each.items()}
    save_file({name: tensor.contiguous() for name, tensor in (tensors | more).items()}, folder / "model.safetensors")
    return str(folder)


@pytest.mark.parametrize("dtype", TYPES)
def test_an_engine_with_the_weights_of_the_files_is_accepted(tmp_path: Path, dtype: torch.dtype) -> None:
    """It does not matter how it stores them."""
    first, second = layer(1, dtype), layer(2, dtype)
    inverse = {"layers.0.rotary_emb.inv_freq": torch.ones(4), "lm_head.weight": torch.ones(2, 2)}
    folder = write(tmp_path / "a", first, second, **inverse)
    require_equal(folder, engine_of(first, second), dtype)


@pytest.mark.parametrize("dtype", TYPES)
def test_a_single_number_of_an_earlier_checkpoint_is_found(tmp_path: Path, dtype: torch.dtype) -> None:
    first, second = layer(1, dtype), layer(2, dtype)
    folder = write(tmp_path / "a", first, second)
    stale = {name: tensor.clone() for name, tensor in second.items()}
    stale["k.weight"][1, 3] += 0.5
    with pytest.raises(WeightsDifferError, match="layer 1"):
        require_equal(folder, engine_of(first, stale), dtype)


def test_layers_in_another_order_and_a_missing_tensor_are_found(tmp_path: Path) -> None:
    first, second = layer(1, torch.float32), layer(2, torch.float32)
    folder = write(tmp_path / "a", first, second)
    with pytest.raises(WeightsDifferError, match="layer 0, layer 1"):
        require_equal(folder, engine_of(second, first), torch.float32)
    with pytest.raises(WeightsDifferError, match="layer 1"):
        require_equal(folder, engine_of(first), torch.float32)
    with pytest.raises(WeightsDifferError, match="outside of the layers"):
        require_equal(write(tmp_path / "b", first, more=torch.ones(2, 2)), engine_of(first), torch.float32)


def test_a_matrix_that_can_only_be_multiplied_with_is_read_too(tmp_path: Path) -> None:
    weight, other = torch.randn(300, 520), torch.randn(300, 520)
    folder = write(tmp_path / "a", {"up.weight": weight})
    packed, stale = (Engine(nn.ModuleDict({"up": Packed(each, keep=False)})) for each in (weight, other))
    require_equal(folder, packed, torch.float32)
    with pytest.raises(WeightsDifferError, match="layer 0"):
        require_equal(folder, stale, torch.float32)


def test_an_outdated_packed_copy_is_found_and_can_be_renewed(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", **{"lm_head.weight": (weight := torch.randn(8, 6))})
    engine = Engine(head=(head := Packed(torch.randn(8, 6), keep=True)))
    head.weight.data.copy_(weight)
    with pytest.raises(WeightsDifferError, match="packed for this processor: lm_head"):
        require_equal(folder, engine, torch.float32)
    pack_again(engine)
    require_equal(folder, engine, torch.float32)


def test_a_stored_head_counts_if_the_engine_has_one(tmp_path: Path) -> None:
    """Whatever the configuration says: Qwen3-0.6B ties its head to the embedding, and stores it all the same."""
    first, head = layer(1, torch.float32), nn.Linear(6, 8, bias=False)
    folder = write(tmp_path / "a", first, **{"lm_head.weight": head.weight.detach()})
    tied, own = engine_of(first), engine_of(first)
    own.lm_head = head
    require_equal(folder, tied, torch.float32)
    require_equal(folder, own, torch.float32)
    own.lm_head = nn.Linear(6, 8, bias=False)
    with pytest.raises(WeightsDifferError, match="outside of the layers"):
        require_equal(folder, own, torch.float32)


class Mixture(nn.Module):
    def __init__(self, device: str) -> None:
        super().__init__()
        self.w13_weight = nn.Parameter(torch.empty(2, 4, device=device))
        self.quant_method = SimpleNamespace(moe_kernel="packed once")


def test_experts_are_packed_for_the_processor_at_each_load(tmp_path: Path) -> None:
    """The numbers alone do not show whether they are packed. On a GPU, the graphs have the addresses of the kernel."""
    on_cpu, on_gpu = Mixture("cpu"), Mixture("meta")
    forget_packing(Engine(on_cpu, on_gpu, Packed(torch.ones(2, 2), keep=True)))
    assert on_cpu.quant_method.moe_kernel is None
    assert on_gpu.quant_method.moe_kernel == "packed once"


def test_only_files_of_the_index_count(tmp_path: Path) -> None:
    """Files that cannot be read are refused."""
    first = layer(1, torch.float32)
    folder = write(tmp_path / "a", first)
    save_file({"layers.0.norm": torch.ones(6)}, tmp_path / "a" / "leftover.safetensors")
    names = {"weight_map": {f"layers.0.{name}": "model.safetensors" for name in first}}
    (tmp_path / "a" / "model.safetensors.index.json").write_text(json.dumps(names))
    require_equal(folder, engine_of(first), torch.float32)
    (tmp_path / "a" / "model.safetensors").unlink()
    with pytest.raises(WeightsDifferError, match="cannot be compared"):
        require_equal(folder, engine_of(first), torch.float32)


def test_files_are_summed_where_the_engine_has_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, the processor would take minutes for a model of 7 billion parameters."""
    first = layer(1, torch.float32)
    folder, engine = write(tmp_path / "a", first), engine_of(first).to("meta")
    seen = []

    def noted(tensor: Tensor, number_type: torch.dtype, device: torch.device | None = None) -> int:
        seen.append((device or tensor.device).type)
        return 0

    monkeypatch.setattr(vllm_weights, "sum_of", noted)
    require_equal(folder, engine, torch.float32)
    assert seen == ["meta"] * 5  # three tensors in the file, two in the engine
