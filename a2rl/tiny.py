"""`tiny`: the base model of every mini task, a Qwen3-type transformer that this repo builds and pretrains itself.

Contract: the same documents and params on the same machine give the same weights, bit for bit (a fixed number of
steps, fixed threads, deterministic kernels). The folder written is an ordinary checkpoint: safetensors in fp32, a
fast tokenizer with a pad and an end token, no chat template. Architecture: Qwen3 (arXiv 2505.09388).

    build_tiny(documents=["7+5=12", "Tom has 3 apples."], out=Path("models/tiny"), params=TinyParams())
"""

import csv
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    import torch

END_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]|\s+(?!\S)|\s+"
"""Qwen's way to cut text before BPE: a word, a single digit or a run of signs, each with the space before it.

Unlike Qwen's, a number's first digit takes the space with it: shorter texts, and a number can be looked up by the
word before it in one hop of attention.
"""


class TinyParams(BaseModel):
    """How `tiny` is built. All of it decides the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    """Of the initial weights."""
    hidden_size: int = Field(default=128, gt=0)
    """Width of the residual stream."""
    intermediate_size: int = Field(default=640, gt=0)
    """Width of the gated MLP."""
    layers: int = Field(default=3, gt=0)
    """Transformer blocks."""
    heads: int = Field(default=4, gt=0)
    """Query heads in a block."""
    kv_heads: int = Field(default=2, gt=0)
    """Key-value heads that the query heads share."""
    vocab_size: int = Field(default=768, ge=300)
    """Tokens at most; BPE stops earlier where the documents repeat no more pairs."""
    max_positions: int = Field(default=2048, gt=0)
    """`max_position_embeddings` of the config: the longest text that a grader may feed."""
    context_length: int = Field(default=256, gt=1)
    """Tokens in one pretraining window; a longer document is cut."""
    batch_size: int = Field(default=8, gt=0)
    """Windows in one step."""
    steps: int = Field(default=450, gt=0)
    """Optimizer steps: a number, never a time, so that the weights do not depend on the machine's load."""
    learning_rate: float = Field(default=6e-3, gt=0)
    """Peak for embeddings and norms, which AdamW trains: linear warm-up, then linear decay to zero."""
    matrix_learning_rate: float = Field(default=0.03, gt=0)
    """Peak for the weight matrices, which Muon trains."""
    warmup_steps: int = Field(default=30, ge=0)
    """Steps until the peak."""
    threads: int = Field(default=2, gt=0)
    """CPU threads of torch; another number gives (slightly) other weights."""


@dataclass(frozen=True)
class TinyReport:
    """What a build came to."""

    parameters: int
    tokens: int
    """Tokens trained on, repeats counted."""
    final_loss: float
    """Mean cross-entropy in nats per token over the last 20 steps."""
    seconds: float


def build_tiny(documents: Iterable[str], out: Path, params: TinyParams, loss_csv: Path | None = None) -> TinyReport:
    """Train tokenizer and model on `documents` and save both into `out`.

    The losses go to `loss_csv`, by default `<out>.loss.csv` beside the folder.
    """
    import torch

    started = time.monotonic()
    texts = list(documents)
    tokenizer = _train_tokenizer(texts, params)
    with _deterministic_torch(params):
        windows = _windows(texts, tokenizer, params)
        model = _new_model(tokenizer, params)
        losses = list(_pretrain(model, windows, params))
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    _write_losses(losses, loss_csv or out.parent / f"{out.name}.loss.csv")
    last = losses[-20:]
    return TinyReport(
        parameters=sum(weights.numel() for weights in model.parameters()),
        tokens=params.steps * params.batch_size * params.context_length,
        final_loss=sum(last) / len(last),
        seconds=time.monotonic() - started,
    )


def _train_tokenizer(texts: list[str], params: TinyParams) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    bpe.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=params.vocab_size,
        special_tokens=[END_TOKEN, PAD_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        eos_token=END_TOKEN,
        pad_token=PAD_TOKEN,
        padding_side="left",
        model_max_length=params.max_positions,
    )


@contextmanager
def _deterministic_torch(params: TinyParams) -> Iterator[None]:
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


def _windows(texts: list[str], tokenizer: Any, params: TinyParams) -> "torch.Tensor":
    """Token ids and positions [n, 2, context_length]: whole documents, as many as fit, then padding.

    Positions start anew with each document, from which transformers infers that none may look into another.
    """
    import torch

    ids: list[int] = []
    positions: list[int] = []
    for document in tokenizer(texts, return_attention_mask=False)["input_ids"]:
        document = [*document, tokenizer.eos_token_id][: params.context_length]
        padding = -len(ids) % params.context_length
        if len(document) > padding:
            ids += [tokenizer.pad_token_id] * padding
            positions += range(padding)
        ids += document
        positions += range(len(document))
    padding = -len(ids) % params.context_length
    ids += [tokenizer.pad_token_id] * padding
    positions += range(padding)
    return torch.stack([torch.tensor(row).view(-1, params.context_length) for row in (ids, positions)], dim=1)


def _new_model(tokenizer: Any, params: TinyParams) -> Any:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=params.hidden_size,
        intermediate_size=params.intermediate_size,
        num_hidden_layers=params.layers,
        num_attention_heads=params.heads,
        num_key_value_heads=params.kv_heads,
        head_dim=params.hidden_size // params.heads,
        max_position_embeddings=params.max_positions,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config)


def _pretrain(model: Any, windows: "torch.Tensor", params: TinyParams) -> Iterator[float]:
    """The loss of every step, as it happens."""
    import torch

    matrices = [weights for name, weights in model.named_parameters() if weights.dim() == 2 and "embed" not in name]
    rest = [weights for name, weights in model.named_parameters() if weights.dim() != 2 or "embed" in name]
    adamw = torch.optim.AdamW(rest, lr=params.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    momenta = [torch.zeros_like(weights) for weights in matrices]
    model.train()
    for step, batch in enumerate(_progress(_batches(windows, params), params.steps)):
        ids, positions = batch.unbind(dim=1)
        labels = ids.masked_fill(ids == model.config.pad_token_id, -100)
        loss = model(input_ids=ids, position_ids=positions, labels=labels).loss
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

    At this size it needs about a third of AdamW's tokens. torch.optim.Muon computes in bfloat16 and one matrix at a
    time, which on a CPU without bfloat16 units takes longer than the model itself.
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
    return x.mT if tall else x


def _rate(step: int, params: TinyParams) -> float:
    """The share of the peak learning rate at `step`."""
    if step < params.warmup_steps:
        return (step + 1) / params.warmup_steps
    return (params.steps - step) / max(1, params.steps - params.warmup_steps)


def _batches(windows: "torch.Tensor", params: TinyParams) -> Iterator["torch.Tensor"]:
    """`params.steps` batches in the order of the documents (easy ones may come first), again from the start if need be."""
    for step in range(params.steps):
        first = step * params.batch_size
        yield windows[[index % len(windows) for index in range(first, first + params.batch_size)]]


def _progress(batches: Iterator["torch.Tensor"], steps: int) -> Iterator["torch.Tensor"]:
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


def _write_losses(losses: list[float], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss"])
        writer.writerows((step, f"{loss:.4f}") for step, loss in enumerate(losses, start=1))
