"""`tiny`: the base model of every mini task, a Qwen3-type transformer that this repo builds and pretrains itself.

Contract: the same documents and params on the same machine give the same weights, bit for bit (a fixed number of
steps, fixed threads, deterministic kernels). The folder written is an ordinary checkpoint: safetensors in fp32, a
fast tokenizer with a pad and an end token, no chat template. Architecture: Qwen3 (arXiv 2505.09388).

    build_tiny(documents=["7+5=12", "Tom has 3 apples."], out=Path("models/tiny"), params=TinyParams())
"""

import csv
import math
import random
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


ROPE_THETA = 1e6
"""Qwen3's."""
EMBEDDING, KEEN, SHARPNESS, TELLING, SAYING = 0.1, 2.0, 1.5, 0.15, 1.5
"""Of the two heads that are set up by hand: sizes of embeddings, of the weights of queries and keys, of their norms,
and of the weights by which the heads write."""
FAST_PAIRS = 3
SLOW = 0.006
"""Radians a token."""
SORTED_TOGETHER = 800
"""Documents that are sorted by length before they are put into batches: enough for little padding."""


class TinyParams(BaseModel):
    """How `tiny` is built. All of it decides the weights."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    """Of the initial weights, of the order of the text, and of the text itself."""
    hidden_size: int = Field(default=128, gt=0)
    """Width of the residual stream."""
    intermediate_size: int = Field(default=320, gt=0)
    """Width of the gated MLP."""
    layers: int = Field(default=4, gt=0)
    """Transformer blocks."""
    heads: int = Field(default=4, gt=0)
    """Query heads in a block."""
    kv_heads: int = Field(default=2, gt=0)
    """Key-value heads that the query heads share."""
    vocab_size: int = Field(default=1152, ge=300)
    """Tokens at most; BPE stops earlier where the documents repeat no more pairs."""
    max_positions: int = Field(default=4096, gt=0)
    """`max_position_embeddings` of the config: the longest text that a grader may feed."""
    context_length: int = Field(default=512, gt=1)
    """Tokens of a document at most; the rest of a longer one is left out."""
    batch_tokens: int = Field(default=1300, gt=0)
    """Tokens in one step, padding included; a batch holds whole documents of about one length."""
    steps: int = Field(default=700, gt=0)
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
    """Tokens trained on at most, repeats and padding counted."""
    final_loss: float
    """Mean cross-entropy in nats per token over the last 20 steps."""
    seconds: float


def build_tiny(documents: Iterable[str], out: Path, params: TinyParams, loss_csv: Path | None = None) -> TinyReport:
    """Train tokenizer and model on `documents` and save both into `out`.

    The losses go to `loss_csv`, by default `<out>.loss.csv` beside the folder.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()
    started = time.monotonic()
    texts = list(documents)
    tokenizer = _train_tokenizer(texts, params)
    with _deterministic_torch(params):
        encoded = _encode(texts, tokenizer, params)
        model = _new_model(tokenizer, params)
        losses = list(_pretrain(model, encoded, params))
    out.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    _write_losses(losses, loss_csv or out.parent / f"{out.name}.loss.csv")
    last = losses[-20:]
    return TinyReport(
        parameters=sum(weights.numel() for weights in model.parameters()),
        tokens=params.steps * params.batch_tokens,
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


def _encode(texts: list[str], tokenizer: Any, params: TinyParams) -> list[list[int]]:
    """The token ids of every document, with the end token."""
    encoded = tokenizer(texts, return_attention_mask=False)["input_ids"]
    return [[*document, tokenizer.eos_token_id][: params.context_length] for document in encoded]


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
        rope_parameters={"rope_type": "default", "rope_theta": ROPE_THETA},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        dtype="float32",
    )
    model = Qwen3ForCausalLM(config)
    if params.layers > 1:
        _give_induction_heads(model)
    return model


def _give_induction_heads(model: Any) -> None:
    """Sets two heads up so that the model can look things up: what came after this word when it last occurred?

    One, in the first layer, tells each token what stands before it. The other, in the second layer, finds the token
    that was told of the present one, and says what it is (Olsson et al. 2022, arXiv 2209.11895). Copying is half of
    every task here, and a model of this size takes thousands of steps to find out how; it has some hundreds. Nothing
    is frozen: training goes on from here.
    """
    import torch

    size, head = model.config.hidden_size, model.config.head_dim
    half = head // 2
    angles = [ROPE_THETA ** (-pair / half) for pair in range(half)]
    """By which a step to the next token turns each pair of a head's dimensions."""
    first, second = (layer.self_attn for layer in model.model.layers[:2])

    def directions() -> torch.Tensor:
        """As many as a head has dimensions, at right angles; none has a part in the constant, dimension 0."""
        basis, _ = torch.linalg.qr(torch.randn(size - 1, head))
        return torch.cat([torch.zeros(head, 1), basis.T], dim=1)

    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        embeddings.normal_(0, EMBEDDING)
        embeddings[:, 0] = 3 * EMBEDDING
        # The head before: queries and keys are the same for all tokens, a turn apart, and match one step back.
        content, told = directions(), directions()
        query, key = torch.zeros(head, size), torch.zeros(head, size)
        for pair in range(FAST_PAIRS):
            query[pair, 0] = KEEN
            key[pair, 0], key[pair + half, 0] = KEEN * math.cos(angles[pair]), KEEN * math.sin(angles[pair])
        fast = [*range(FAST_PAIRS), *range(half, half + FAST_PAIRS)]
        _set_head(first, query, key, content, TELLING * told.T, fast)
        # The head that looks up: matches by content, in the dimensions that hardly turn over the length of a text.
        slow = [pair + part for part in (0, half) for pair in range(half) if angles[pair] < SLOW]
        query, key = torch.zeros(head, size), torch.zeros(head, size)
        query[slow], key[slow] = KEEN * content[: len(slow)], KEEN * told[: len(slow)]
        found = directions()
        _set_head(second, query, key, found, SAYING * found.T, slow)


def _set_head(
    attention: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    out: "torch.Tensor",
    used: list[int],
) -> None:
    """Of an attention layer's heads the first; `used`: the dimensions of queries and keys that decide."""
    head = len(query)
    attention.q_proj.weight[:head], attention.k_proj.weight[:head] = query, key
    attention.v_proj.weight[:head], attention.o_proj.weight[:, :head] = value, out
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight[used] = SHARPNESS


def _pretrain(model: Any, documents: list[list[int]], params: TinyParams) -> Iterator[float]:
    """The loss of every step, as it happens."""
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
    """`params.steps` batches of whole documents, again from the start when the text is through.

    Documents are not cut into windows: half of them would lose the beginning that makes sense of the rest.
    """
    rng, made = random.Random(params.seed), 0
    while made < params.steps:
        shuffled = rng.sample(documents, k=len(documents))
        for first in range(0, len(shuffled), SORTED_TOGETHER):
            batches = list(_of_one_length(shuffled[first : first + SORTED_TOGETHER], params.batch_tokens))
            rng.shuffle(batches)
            yield from batches[: params.steps - made]
            made += len(batches)
            if made >= params.steps:
                return


def _of_one_length(documents: list[list[int]], batch_tokens: int) -> Iterator[list[list[int]]]:
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


def _write_losses(losses: list[float], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss"])
        writer.writerows((step, f"{loss:.4f}") for step, loss in enumerate(losses, start=1))
