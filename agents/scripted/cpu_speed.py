"""What makes training a small model on a CPU several times as fast; an agent on a GPU can do without this module.

- `FastSFTTrainer` and `FastGRPOTrainer` have TRL's losses, but compute logits for the tokens to learn only.
- `FastGRPOTrainer` also leaves out episodes without an advantage, and padding; this is of use on a GPU as well.
- `MuonAndAdam` is an optimizer with which a small model learns in fewer steps.

The trainers override private methods of TRL; its version is pinned in requirements.lock. For one process only.
"""

from typing import Any

import torch
from routes import IGNORED_LABEL, ON_GPU
from trl import SFTTrainer
from turn_advantages import TurnAdvantageGRPOTrainer


def next_token_logprobs(
    positions: torch.Tensor, model: Any, temperature: float = 1.0, **inputs: torch.Tensor
) -> torch.Tensor:
    """Computes the model's log-probabilities of the next token at some positions only.

    TRL computes them at every position, and once more for the gradient, which takes most of a step on a CPU.

    Args:
        positions: [rows, tokens], True for n positions.
        inputs: arguments of the model, [rows, tokens] each.

    Returns:
        [n, vocabulary]
    """
    hidden = model.base_model(**inputs, use_cache=False).last_hidden_state
    logits = model.get_output_embeddings()(hidden[positions])
    logprobs: torch.Tensor = (logits / temperature).log_softmax(-1)
    return logprobs


class FastSFTTrainer(SFTTrainer):  # type: ignore[misc]
    """Computes TRL's default loss from the tokens to learn only, and no metrics."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Returns the sum of the negative log-likelihoods, divided by the number of tokens to learn."""
        labels = inputs["labels"].roll(-1, 1)
        labels[:, -1] = IGNORED_LABEL
        learned = labels != IGNORED_LABEL
        text = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        logprobs = next_token_logprobs(learned, model, **text)
        loss = torch.nn.functional.nll_loss(logprobs, labels[learned], reduction="sum")
        return loss / (learned.sum() if num_items_in_batch is None else num_items_in_batch)


class FastGRPOTrainer(TurnAdvantageGRPOTrainer):
    """Leaves out of the model's pass whatever has no gradient.

    These are episodes without an advantage (more than half of a batch once most games are won), most of the padding,
    and on a CPU the logits after tokens that the model did not write. The loss stays the same: its divisor,
    `num_items_in_batch`, counts the tokens of all episodes (TRL's default `loss_type`).
    """

    _buffered_inputs: Any

    def _prepare_inputs(self, generation_batch: Any) -> dict[str, Any]:
        before = self._buffered_inputs
        inputs: dict[str, Any] = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is before:
            return inputs
        self._buffered_inputs = drop_rows_without_advantage(self._buffered_inputs)
        first: dict[str, Any] = self._buffered_inputs[self._step % self.args.steps_per_generation]
        return first

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        mask = inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        self.written = mask.bool()
        return super()._compute_loss(model, inputs)

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int, **more: Any
    ) -> Any:
        if ON_GPU:
            arguments = (model, input_ids, attention_mask, logits_to_keep)
            return super()._get_per_token_logps_and_entropies(*arguments, **more)
        before_written = torch.zeros_like(input_ids, dtype=torch.bool)
        before_written[:, -logits_to_keep - 1 : -1] = self.written
        text = {"input_ids": input_ids, "attention_mask": attention_mask}
        logprobs = next_token_logprobs(before_written, model, self.temperature, **text)
        written_ids = input_ids[:, -logits_to_keep:][self.written]
        written_logprobs = logprobs.gather(1, written_ids[:, None]).squeeze(1)
        entropies = torch.special.entr(logprobs.detach().exp()).sum(1)
        blank = logprobs.new_zeros(self.written.shape)
        return (
            blank.masked_scatter(self.written, written_logprobs),
            blank.masked_scatter(self.written, entropies),
            None,
        )


def drop_rows_without_advantage(batches: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns as many batches with the rows that have an advantage, sorted by length so that little padding is left."""
    merged = {}
    for name, first in batches[0].items():
        merged[name] = torch.cat([batch[name] for batch in batches]) if first.dim() else first
    idle = ~merged["advantages"].view(len(merged["advantages"]), -1).any(1)
    count = max(len(batches), int((~idle).sum()))  # a batch must not be empty, so it may keep a row without advantage
    rows = idle.int().argsort(stable=True)[:count]
    tokens = merged["prompt_mask"].sum(1) + merged["completion_mask"].sum(1)
    rows = rows[tokens[rows].argsort()]
    return [
        without_padding({name: each[some] if each.dim() else each for name, each in merged.items()})
        for some in rows.tensor_split(len(batches))
    ]


def without_padding(batch: dict[str, Any]) -> dict[str, Any]:
    """Drops the columns that are padding in every row: on the left of prompts, on the right of completions."""
    prompt = int(batch["prompt_mask"].sum(1).max())
    completion = int(batch["completion_mask"].sum(1).max())
    trimmed = {}
    for name, each in batch.items():
        if each.dim() < 2:
            trimmed[name] = each
        elif name.startswith("prompt"):
            trimmed[name] = each[:, -prompt:]
        else:
            trimmed[name] = each[:, :completion]
    return trimmed


class MuonAndAdam(torch.optim.AdamW):
    """Muon (kellerjordan.github.io/posts/muon) for the weight matrices, AdamW for embeddings and norms.

    A small model learns several times as fast with it. `torch.optim.Muon` orthogonalizes one matrix at a time, in
    bfloat16, which takes longer on most processors than the model's own pass.
    """

    SPEEDUP = 4
    """Muon's learning rate divided by AdamW's: its updates are of another size."""

    def __init__(self, model: torch.nn.Module, rate: float) -> None:
        named = list(model.named_parameters())
        self.matrices = [weights for name, weights in named if weights.dim() == 2 and "embed" not in name]
        self.momenta = [torch.zeros_like(weights) for weights in self.matrices]
        rest = [weights for name, weights in named if weights.dim() != 2 or "embed" in name]
        super().__init__(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Updates all parameters; matrices of the same shape are orthogonalized together."""
        super().step()
        by_shape: dict[torch.Size, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for weights, momentum in zip(self.matrices, self.momenta, strict=True):
            if weights.grad is not None:
                momentum.lerp_(weights.grad, 0.05)
                by_shape.setdefault(weights.shape, []).append((weights, weights.grad.lerp(momentum, 0.95)))
        for (rows, columns), pairs in by_shape.items():
            rate = self.SPEEDUP * self.param_groups[0]["lr"] * max(1.0, rows / columns) ** 0.5
            updates = orthogonalize(torch.stack([update for _, update in pairs]))
            for (matrix, _), update in zip(pairs, updates, strict=True):
                matrix.sub_(update, alpha=rate)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters."""
        super().zero_grad(set_to_none)
        for matrix in self.matrices:
            matrix.grad = None


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Returns approximately the nearest orthogonal matrix of each [n, rows, columns], by five Newton-Schulz steps."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: torch.Tensor = x.mT if tall else x
    return result
