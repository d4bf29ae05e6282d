"""Pretrains `tiny` on documents: batches, the Muon and AdamW optimizers, and deterministic torch.

with deterministic_torch(params):
    losses = list(pretrain(model, encoded, params))
"""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from a2rl.models.tiny_params import TinyParams

if TYPE_CHECKING:
    import torch

SORT_BLOCK = 800
"""So many documents are sorted by length before they are put into batches, which keeps padding small."""


@contextmanager
def deterministic_torch(params: TinyParams) -> Iterator[None]:
    """Sets seed, threads and deterministic kernels of torch until the context is left."""
    import torch

    threads, deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(params.threads)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(params.seed)
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(deterministic)


def pretrain(model: Any, documents: list[list[int]], params: TinyParams) -> Iterator[float]:
    """Trains the model and yields the loss of each step."""
    import torch

    matrices = [weights for name, weights in model.named_parameters() if weights.dim() == 2 and "embed" not in name]
    rest = [weights for name, weights in model.named_parameters() if weights.dim() != 2 or "embed" in name]
    adamw = torch.optim.AdamW(rest, lr=params.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    momenta = [torch.zeros_like(weights) for weights in matrices]
    model.train()
    padding = model.config.pad_token_id
    for step, rows in enumerate(_progress(_batches(documents, params), params.steps)):
        longest = max(len(row) for row in rows)
        batch = torch.tensor([row + [padding] * (longest - len(row)) for row in rows])
        loss = model(input_ids=batch, labels=batch.masked_fill(batch == padding, -100)).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.param_groups[0]["lr"] = params.learning_rate * _rate(step, params)
        adamw.step()
        _muon_step(matrices, momenta, params.matrix_learning_rate * _rate(step, params))
        model.zero_grad()
        yield loss.item()
    model.eval()


def _muon_step(matrices: "list[torch.Tensor]", momenta: "list[torch.Tensor]", learning_rate: float) -> None:
    """One step of Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    At this size it learns the same from far fewer tokens than AdamW. torch.optim.Muon computes in bfloat16 and one
    matrix at a time, which on a CPU without bfloat16 units takes longer than the model itself.
    """
    import torch

    with torch.no_grad():
        by_shape: dict[tuple[int, ...], list[tuple[torch.Tensor, torch.Tensor]]] = {}
        for weights, momentum in zip(matrices, momenta, strict=True):
            gradient = weights.grad
            assert gradient is not None
            momentum.lerp_(gradient, 0.05)
            by_shape.setdefault(tuple(weights.shape), []).append((weights, gradient.lerp(momentum, 0.95)))
        for (rows, columns), pairs in by_shape.items():
            updates = _orthogonal(torch.stack([update for _, update in pairs]))
            scale = max(1.0, rows / columns) ** 0.5
            for (weights, _), update in zip(pairs, updates, strict=True):
                weights.sub_(update, alpha=learning_rate * scale)


def _orthogonal(matrices: "torch.Tensor") -> "torch.Tensor":
    """The nearest orthogonal matrix of each [n, rows, columns], roughly: Newton-Schulz with Muon's coefficients."""
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    result: torch.Tensor = x.mT if tall else x
    return result


def _rate(step: int, params: TinyParams) -> float:
    """The share of the peak learning rate at `step`."""
    if step < params.warmup_steps:
        return (step + 1) / params.warmup_steps
    return (params.steps - step) / max(1, params.steps - params.warmup_steps)


def _batches(documents: list[list[int]], params: TinyParams) -> Iterator[list[list[int]]]:
    """Yields `params.steps` batches of whole documents, for as many epochs as needed.

    Documents are not cut into windows, since half of the windows would lack the beginning of their document.
    """
    rng, made = random.Random(params.seed), 0
    while made < params.steps:
        shuffled = rng.sample(documents, k=len(documents))
        for first in range(0, len(shuffled), SORT_BLOCK):
            batches = list(_of_similar_length(shuffled[first : first + SORT_BLOCK], params.batch_tokens))
            rng.shuffle(batches)
            yield from batches[: params.steps - made]
            made += len(batches)
            if made >= params.steps:
                return


def _of_similar_length(documents: list[list[int]], batch_tokens: int) -> Iterator[list[list[int]]]:
    batch: list[list[int]] = []
    for document in sorted(documents, key=len):
        if batch and (len(batch) + 1) * len(document) > batch_tokens:
            yield batch
            batch = []
        batch.append(document)
    yield batch


def _progress(batches: Iterator[list[list[int]]], steps: int) -> Iterator[list[list[int]]]:
    from rich.console import Console
    from rich.progress import track

    return iter(
        track(
            batches,
            description="pretraining tiny",
            total=steps,
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
    )
