"""`tiny`: the base model of every mini task, a Qwen3 transformer that is built and pretrained here.

The same documents and params on the same machine give the same weights, bit for bit (a fixed number of steps, fixed
threads, deterministic kernels). The folder written is an ordinary checkpoint: safetensors in fp32, a
fast tokenizer with a pad and an end token, no chat template. Architecture: Qwen3 (arXiv 2505.09388).

    build_tiny(documents=["7+5=12", "Tom has 3 apples."], out=Path("models/tiny"), params=TinyParams())
"""

import csv
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2rl.models.tiny_params import TinyParams
from a2rl.models.tiny_training import deterministic_torch, pretrain

if TYPE_CHECKING:
    import torch

END_TOKEN = "<|endoftext|>"
PAD_TOKEN = "<|pad|>"

_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]|\s+(?!\S)|\s+"
"""Qwen's pre-tokenization: a word, a single digit or a run of other characters, each with the space before it.

Unlike in Qwen's, the first digit of a number includes the space before it: texts are shorter, and a number can be
looked up by the word before it in one attention step.
"""


ROPE_THETA = 1e6
"""Qwen3's."""
EMBEDDING_STD = 0.1
QUERY_KEY_SCALE, QK_NORM_SCALE = 2.0, 1.5
"""Of the two attention heads that are initialised by hand: queries and keys, and the norms applied to them."""
PREVIOUS_TOKEN_OUTPUT_SCALE, INDUCTION_OUTPUT_SCALE = 0.15, 1.5
"""Of the output projections of the two heads."""
FAST_PAIRS = 3
"""The previous-token head uses so many of the fastest-turning pairs of dimensions."""
SLOW_RADIANS = 0.006
"""The induction head uses pairs that turn by less than this per token."""


@dataclass(frozen=True)
class TinyReport:
    """The outcome of a build."""

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
    with deterministic_torch(params):
        encoded = _encode(texts, tokenizer, params)
        model = _new_model(tokenizer, params)
        losses = list(pretrain(model, encoded, params))
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
        _initialise_induction_heads(model)
    return model


def _initialise_induction_heads(model: Any) -> None:
    """Initialises an induction circuit by hand: what followed this token when it last occurred?

    A head in the first layer writes the previous token into each position. A head in the second layer attends to the
    position whose previous token is the current one, and copies its token (Olsson et al. 2022, arXiv 2209.11895).
    Copying is half of every task here, and a model of this size would need thousands of steps to learn it; it has only
    hundreds. Nothing is frozen: training continues from this initialisation.
    """
    import torch

    size, head = model.config.hidden_size, model.config.head_dim
    half = head // 2
    angles = [ROPE_THETA ** (-pair / half) for pair in range(half)]
    """RoPE turns each pair of a head's dimensions by this angle per token."""
    first, second = (layer.self_attn for layer in model.model.layers[:2])

    def directions() -> torch.Tensor:
        """Orthonormal directions, as many as a head has dimensions; all are orthogonal to the constant dimension 0."""
        basis, _ = torch.linalg.qr(torch.randn(size - 1, head))
        return torch.cat([torch.zeros(head, 1), basis.T], dim=1)

    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        embeddings.normal_(0, EMBEDDING_STD)
        embeddings[:, 0] = 3 * EMBEDDING_STD
        # Previous-token head: queries and keys are the same for all tokens; their rotation differs by one position.
        content, told = directions(), directions()
        query, key = torch.zeros(head, size), torch.zeros(head, size)
        for pair in range(FAST_PAIRS):
            query[pair, 0] = QUERY_KEY_SCALE
            key[pair, 0], key[pair + half, 0] = (
                QUERY_KEY_SCALE * math.cos(angles[pair]),
                QUERY_KEY_SCALE * math.sin(angles[pair]),
            )
        fast = [*range(FAST_PAIRS), *range(half, half + FAST_PAIRS)]
        _set_head(first, query, key, content, PREVIOUS_TOKEN_OUTPUT_SCALE * told.T, fast)
        # Induction head: it matches by content, in dimensions that hardly turn over the length of a text.
        slow = [pair + part for part in (0, half) for pair in range(half) if angles[pair] < SLOW_RADIANS]
        query, key = torch.zeros(head, size), torch.zeros(head, size)
        query[slow], key[slow] = QUERY_KEY_SCALE * content[: len(slow)], QUERY_KEY_SCALE * told[: len(slow)]
        found = directions()
        _set_head(second, query, key, found, INDUCTION_OUTPUT_SCALE * found.T, slow)


def _set_head(
    attention: Any,
    query: "torch.Tensor",
    key: "torch.Tensor",
    value: "torch.Tensor",
    out: "torch.Tensor",
    used: list[int],
) -> None:
    """Sets the first head of an attention layer; `used` are the dimensions of queries and keys that matter."""
    head = len(query)
    attention.q_proj.weight[:head], attention.k_proj.weight[:head] = query, key
    attention.v_proj.weight[:head], attention.o_proj.weight[:, :head] = value, out
    for norm in (attention.q_norm, attention.k_norm):
        norm.weight[used] = QK_NORM_SCALE


def _write_losses(losses: list[float], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss"])
        writer.writerows((step, f"{loss:.4f}") for step, loss in enumerate(losses, start=1))
