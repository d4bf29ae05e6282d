"""Trained copies of a base model as the tools of the field save them.

    save = WAYS["fsdp"]
    save(Trained.copy_of(base), workspace / "output" / "v1", torch.bfloat16)

Where a tool needs no GPU, the tool itself saves. DeepSpeed is not installed; its files are written here as
`zero_to_fp32.py --safe_serialization` leaves them: the names of the module's state, tied weights twice, no config.json.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file, save_model
from transformers import AutoModelForCausalLM, AutoTokenizer

NOISE = 0.02
SMALL_SHARD = "20KB"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True)
class Trained:
    """A base model whose weights were changed, in memory."""

    model: Any
    base: Path

    @classmethod
    def copy_of(cls, base: Path, seed: int = 1) -> "Trained":
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(NOISE * torch.randn(parameter.shape, generator=generator))
        return cls(model, base)

    def state(self, dtype: torch.dtype, prefix: str = "", shared: bool = False) -> dict[str, torch.Tensor]:
        """Returns the weights; with `shared`, tied ones under both names."""
        state = {prefix + name: value.to(dtype).clone() for name, value in self.model.state_dict().items()}
        tied = () if shared else self.model.all_tied_weights_keys
        return {name: value for name, value in state.items() if name.removeprefix(prefix) not in tied}

    def add_config(self, folder: Path) -> None:
        """Copies what the recipes tell an agent to copy from the base model."""
        for name in ("config.json", *TOKENIZER):
            shutil.copyfile(self.base / name, folder / name)


Save = Callable[[Trained, Path, torch.dtype], None]


def by_transformers(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    trained.model.to(dtype).save_pretrained(folder)
    AutoTokenizer.from_pretrained(trained.base).save_pretrained(folder)


def by_transformers_in_shards(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    trained.model.to(dtype).save_pretrained(folder, max_shard_size=SMALL_SHARD)


def by_trl(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    """A step of SFTTrainer with a learning rate of 0, then `save_model`."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    work = folder.with_name(f"{folder.name}-trainer")
    settings = SFTConfig(
        output_dir=str(work), max_steps=1, learning_rate=0.0, per_device_train_batch_size=1, use_cpu=True, bf16=False,
        report_to=[], save_strategy="no", max_length=16, disable_tqdm=True, gradient_checkpointing=False,
    )  # fmt: skip
    tokenizer = AutoTokenizer.from_pretrained(trained.base)
    tokenizer.pad_token = tokenizer.eos_token
    data = Dataset.from_list([{"text": "Question: 1 + 1? Answer: 2"}] * 2)
    trainer = SFTTrainer(trained.model.float(), settings, train_dataset=data, processing_class=tokenizer)
    trainer.train()
    trainer.model.to(dtype)
    trainer.save_model(str(folder))


def by_fsdp(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    """A sharded state as FSDP saves it, consolidated by `accelerate merge-weights`."""
    from accelerate.utils import merge_fsdp_weights
    from torch.distributed.checkpoint.state_dict_saver import save

    sharded = folder.with_name(f"{folder.name}-fsdp") / "pytorch_model_fsdp_0"
    save({"model": trained.state(dtype, shared=True)}, checkpoint_id=str(sharded), no_dist=True)
    merge_fsdp_weights(str(sharded), str(folder), safe_serialization=True)
    trained.add_config(folder)


def by_deepspeed(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    folder.mkdir(parents=True)
    save_file(trained.state(dtype, shared=True), folder / "model.safetensors", {"format": "pt"})
    trained.add_config(folder)


def by_deepspeed_in_shards(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    folder.mkdir(parents=True)
    state = trained.state(dtype, prefix="module.", shared=True)
    names, where = list(state), {}
    for number, name in enumerate(names, 1):
        file = f"model-{number:05}-of-{len(names):05}.safetensors"
        save_file({name: state[name]}, folder / file, {"format": "pt"})
        where[name] = file
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    trained.add_config(folder)


def by_torch_compile(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    folder.mkdir(parents=True)
    save_file(trained.state(dtype, prefix="_orig_mod."), folder / "model.safetensors", {"format": "pt"})
    trained.add_config(folder)


def by_safetensors(trained: Trained, folder: Path, dtype: torch.dtype) -> None:
    """Of a head that is tied to the embedding, only the head is saved."""
    folder.mkdir(parents=True)
    save_model(trained.model.to(dtype), str(folder / "model.safetensors"))
    trained.add_config(folder)


WAYS: dict[str, Save] = {
    "transformers": by_transformers,
    "transformers, sharded": by_transformers_in_shards,
    "trl": by_trl,
    "fsdp": by_fsdp,
    "deepspeed": by_deepspeed,
    "deepspeed, sharded": by_deepspeed_in_shards,
    "torch.compile": by_torch_compile,
    "safetensors": by_safetensors,
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
