"""Checkpoints of known origin: trained, merged, noisy, rearranged, quantised or foreign copies of a base model.

origin = Origin(base, texts)
state = origin.tuned(rate=1e-4, steps=50, seed=0)
origin.save(state, folder)
"""

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

State = dict[str, torch.Tensor]
LENGTH, BATCH = 48, 4


def stored_state(folder: Path) -> State:
    """Returns the stored weights of a checkpoint in float32."""
    found: State = {}
    for path in sorted(folder.glob("*.safetensors")):
        if not path.name.startswith("consolidated"):
            found |= load_file(path)
    return {name: weight.float() for name, weight in found.items() if "inv_freq" not in name}


@dataclass(frozen=True)
class Origin:
    """A base model and texts to train it on."""

    base: Path
    texts: tuple[str, ...]
    dtype: torch.dtype = torch.float32
    """The type in which checkpoints are stored."""

    def save(self, state: Mapping[str, torch.Tensor], folder: Path, dtype: torch.dtype | None = None) -> Path:
        """Writes a checkpoint with the base model's other files."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        shutil.copyfile(self.base / "config.json", folder / "config.json")
        stored = {name: weight.to(dtype or self.dtype).contiguous() for name, weight in state.items()}
        save_file(stored, folder / "model.safetensors", {"format": "pt"})
        return folder

    def model(self, state: Mapping[str, torch.Tensor] | None = None) -> Any:
        """Loads the base model, or another state of it."""
        model = AutoModelForCausalLM.from_pretrained(self.base, dtype=torch.float32)
        if state is not None:
            model.load_state_dict(dict(state), strict=False)
        return model.train()

    def state_of(self, model: Any) -> State:
        """Returns a model's weights under the names that the base model stores."""
        names = stored_state(self.base)
        return {name: value.detach().clone() for name, value in model.state_dict().items() if name in names}

    def batches(self, steps: int, seed: int, size: int = BATCH) -> Iterator[torch.Tensor]:
        """Yields token ids, cut to one length."""
        tokenizer = AutoTokenizer.from_pretrained(self.base)
        tokens = [token for text in self.texts for token in tokenizer(f"{text}\n")["input_ids"]]
        data = torch.tensor(tokens[: len(tokens) // LENGTH * LENGTH]).view(-1, LENGTH)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            yield data[torch.randint(0, len(data), (size,), generator=generator)]

    def tuned(
        self, rate: float, steps: int, seed: int, start: Mapping[str, torch.Tensor] | None = None, size: int = BATCH
    ) -> State:
        """Returns the state after fine-tuning of all weights with AdamW."""
        model = self.model(start)
        self._train(model, model.parameters(), rate, self.batches(steps, seed, size))
        return self.state_of(model)

    def orthogonalised(self, rate: float, steps: int, seed: int) -> State:
        """Returns the state after fine-tuning with Muon, and with AdamW for embeddings and norms."""
        model = self.model()
        named = [(name, each, each.dim() == 2 and "embed" not in name) for name, each in model.named_parameters()]
        optimizers = [
            torch.optim.Muon([each for _, each, is_inner in named if is_inner], lr=4 * rate, weight_decay=0.0),
            torch.optim.AdamW([each for _, each, is_inner in named if not is_inner], lr=rate, weight_decay=0.0),
        ]
        for batch in self.batches(steps, seed):
            model.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            for optimizer in optimizers:
                optimizer.step()
        return self.state_of(model)

    def adapted(self, rate: float, steps: int, seed: int, rank: int) -> State:
        """Returns the state with a LoRA adapter merged into it."""
        from peft import LoraConfig, get_peft_model

        torch.manual_seed(seed)
        model = get_peft_model(self.model(), LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))
        self._train(model, (each for each in model.parameters() if each.requires_grad), rate, self.batches(steps, seed))
        return self.state_of(model.merge_and_unload())

    def reinforced(self, rate: float, steps: int, seed: int) -> State:
        """Returns the state after steps of GRPO: sampled answers, weighted by their reward in a group."""
        model, vocabulary = self.model(), AutoConfig.from_pretrained(self.base).vocab_size
        optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
        torch.manual_seed(seed)
        for batch in self.batches(steps, seed, 1):
            prompts = batch[:, : LENGTH // 2].repeat(BATCH, 1)
            with torch.no_grad():
                tokens = model.generate(prompts, max_new_tokens=8, do_sample=True, pad_token_id=0)
            answers = tokens[:, prompts.shape[1] :]
            rewards = (answers < vocabulary // 4).float().mean(dim=1)
            gains = (rewards - rewards.mean()) / (rewards.std() + 1e-4)
            logits = model(tokens).logits[:, prompts.shape[1] - 1 : -1]
            chosen = logits.log_softmax(-1).gather(-1, answers.unsqueeze(-1)).squeeze(-1)
            optimizer.zero_grad()
            (-(gains[:, None] * chosen).mean()).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        return self.state_of(model)

    @staticmethod
    def _train(model: Any, parameters: Iterable[Any], rate: float, batches: Iterator[torch.Tensor]) -> None:
        chosen = list(parameters)
        optimizer = torch.optim.AdamW(chosen, lr=rate, weight_decay=0.01)
        for batch in batches:
            optimizer.zero_grad()
            model(input_ids=batch, labels=batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(chosen, 1.0)
            optimizer.step()

    def foreign(self, seed: int, steps: int = 0) -> State:
        """Returns another model of the same architecture, trained for some steps from random weights."""
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(self.base), dtype=torch.float32)
        self._train(model, model.parameters(), 1e-3, self.batches(steps, seed))
        return self.state_of(model.train())


def matrices(state: Mapping[str, torch.Tensor], part: str = "") -> list[str]:
    """Returns the names of the matrices whose names contain `part`."""
    return [name for name, weight in state.items() if weight.dim() >= 2 and part in name]


def noisy(state: Mapping[str, torch.Tensor], size: float, seed: int) -> State:
    """Adds white noise to every matrix, relative to its size."""
    torch.manual_seed(seed)
    return {
        name: weight + size * weight.std() * torch.randn_like(weight) if weight.dim() >= 2 else weight
        for name, weight in state.items()
    }


def reinitialised(state: Mapping[str, torch.Tensor], names: Iterable[str], seed: int) -> State:
    """Replaces some matrices by random ones of the same size."""
    torch.manual_seed(seed)
    return {**state, **{name: state[name].std() * torch.randn_like(state[name]) for name in names}}


def rounded(state: Mapping[str, torch.Tensor], bits: int, group: int = 16) -> State:
    """Quantises every matrix in groups of columns, and back."""
    return {name: _rounded(weight, bits, group) if weight.dim() >= 2 else weight for name, weight in state.items()}


def _rounded(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    parts = weight.reshape(-1, group) if weight.numel() % group == 0 else weight.reshape(1, -1)
    scale = parts.abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / (2 ** (bits - 1) - 1)
    found: torch.Tensor = ((parts / scale).round() * scale).reshape(weight.shape)
    return found


def mixed(parts: Iterable[tuple[float, Mapping[str, torch.Tensor]]]) -> State:
    """Returns the weighted sum of states."""
    pairs = list(parts)
    return {name: sum((share * state[name] for share, state in pairs), torch.zeros(())) for name in pairs[0][1]}


def neurons_permuted(state: Mapping[str, torch.Tensor], seed: int, share: float = 1.0) -> State:
    """Permutes a share of the inner neurons of each MLP, which changes no output."""
    torch.manual_seed(seed)
    found = dict(state)
    for down in matrices(state, "down_proj"):
        chosen = torch.randperm(state[down].shape[1])[: int(share * state[down].shape[1])]
        order = torch.arange(state[down].shape[1])
        order[chosen.sort().values] = chosen
        found[down] = state[down][:, order]
        for name in ("gate_proj", "up_proj"):
            found[down.replace("down_proj", name)] = state[down.replace("down_proj", name)][order]
    return found


def hidden_permuted(state: Mapping[str, torch.Tensor], seed: int) -> State:
    """Permutes the hidden dimensions of a model in the layout of Llama or Qwen, which changes no output."""
    torch.manual_seed(seed)
    embedding = next(name for name in state if "embed_tokens" in name)
    order = torch.randperm(state[embedding].shape[1])
    written = ("o_proj", "down_proj")
    found: State = {}
    for name, weight in state.items():
        if any(part in name for part in written):
            found[name] = weight[order]
        elif weight.dim() == 2:
            found[name] = weight[:, order]
        else:
            found[name] = weight[order] if len(weight) == len(order) and "self_attn" not in name else weight
    return found


def scaled(state: Mapping[str, torch.Tensor], seed: int) -> State:
    """Multiplies the inner neurons of each MLP, and divides what reads them, which changes no output."""
    torch.manual_seed(seed)
    found = dict(state)
    for down in matrices(state, "down_proj"):
        factors = torch.rand(state[down].shape[1]) * 3 + 0.25
        found[down] = state[down] / factors
        up = down.replace("down_proj", "up_proj")
        found[up] = state[up] * factors[:, None]
    return found


def norms_folded(state: Mapping[str, torch.Tensor], seed: int) -> State:
    """Multiplies the columns of what follows a norm and divides the norm, which changes no output."""
    torch.manual_seed(seed)
    found = dict(state)
    readers = {
        "input_layernorm": [f"self_attn.{part}_proj" for part in "qkv"],
        "post_attention_layernorm": ["mlp.gate_proj", "mlp.up_proj"],
    }
    for norm, kind in [(name, kind) for name in state for kind in readers if kind in name]:
        factors = torch.rand(len(state[norm])) + 0.5
        found[norm] = state[norm] / factors
        for reader in readers[kind]:
            name = norm.replace(kind, reader)
            found[name] = state[name] * factors
    return found
