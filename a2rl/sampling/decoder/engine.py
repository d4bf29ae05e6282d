"""The decoder: chooses tokens for the rows of a batch, and takes conversations from turn to turn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from a2rl.sampling.decoder.attention import by_rows
from a2rl.sampling.decoder.batch import Batch
from a2rl.sampling.decoder.conversation import Conversation, Dialogue, Dialogues, Stops, mark_stopped

T = TypeVar("T")
DRAWN_IN = 512
"""Tokens in a block; one is drawn in two steps."""


class OutOfMemoryError(Exception):
    """Not even one conversation fits into memory."""


@dataclass(frozen=True, slots=True)
class Decoding:
    """How tokens are chosen. Temperature 0 means greedy decoding."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    """Only so many of the most likely tokens are drawn; 0 means all."""
    seed: int = 0
    """Conversation i is sampled with (seed, i), so its text does not depend on the others."""


class Decoder:
    """Runs conversations on a model, as many at a time as fit into memory."""

    def __init__(self, model: Any, eos: set[int], max_rows: int, memory_bytes: int, shares: bool = True) -> None:
        """Prepares decoding.

        Args:
            model: A causal model of transformers in evaluation mode, without `unsupported_layers`.
            eos: Tokens that end a turn.
            max_rows: The most conversations in the batch.
            memory_bytes: Approximate limit of the key-value cache.
            shares: Whether what several prompts begin with is read only once. Otherwise, and with one row, a text does
                not depend on the other prompts, not even in its last bit.
        """
        self._model = model
        self._eos = eos
        self._device = torch.device(model.device)
        self._max_rows = max_rows
        self._memory_bytes = memory_bytes
        self._shares = shares

    @torch.inference_mode()
    def run(
        self,
        conversations: Sequence[Conversation[T]],
        decoding: Decoding,
        stops: Stops | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> list[T]:
        """Runs all conversations to their end.

        Args:
            decoding: How tokens are chosen.
            stops: Says which rows are complete; only end tokens and limits end a turn if it is None.
            on_end: Called whenever a conversation has ended.

        Returns:
            What each conversation returns, in order.

        Raises:
            OutOfMemoryError: Not even one conversation fits into memory.
        """
        dialogues = Dialogues(conversations, decoding.seed, on_end)
        with by_rows(self._model) as can:
            if not can:
                self._max_rows = 1
            batch = Batch(self._model, self._memory_bytes, dialogues.ready, self._shares)
            while batch.is_active or dialogues.waiting:
                batch.queue += dialogues.resumed(block=not batch.is_active)
                if batch.is_active:
                    self._step(batch, decoding, stops, dialogues)
        return dialogues.results()

    def _step(self, batch: Batch[T], decoding: Decoding, stops: Stops | None, dialogues: Dialogues[T]) -> None:
        """Makes one pass of the model and processes the new tokens."""
        try:
            batch.admit(self._max_rows)
            rows, logits_RV = batch.forward()
            self._choose(rows, logits_RV, decoding)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            rows = []
        # Not in the except clause, where the error still keeps the tensors of the pass alive.
        if not rows:
            self._max_rows = self._halved(batch.allocated)
            batch.evict()
            return
        mark_stopped(rows, self._eos, stops)
        for dialogue in rows:
            if dialogue.turn_ended and not dialogues.advance(dialogue, dialogue.turn):
                batch.remove(dialogue)

    def _choose(self, dialogues: Sequence[Dialogue[T]], logits_RV: torch.Tensor, decoding: Decoding) -> None:
        """Adds the next token to each row: the best one, or one sampled with the row's own random number."""
        if decoding.temperature == 0:
            for dialogue, token in zip(dialogues, logits_RV.argmax(-1).tolist(), strict=True):
                dialogue.tokens.append(token)
            return
        probability_RV = (logits_RV.float() / decoding.temperature).softmax(-1)
        uniforms = [dialogue.uniform.random() for dialogue in dialogues]
        token_R = draw(probability_RV, uniforms, decoding.top_p, decoding.top_k)
        drawn = probability_RV.gather(-1, token_R[:, None]).squeeze(-1).log().tolist()
        for dialogue, token, logprob in zip(dialogues, token_R.tolist(), drawn, strict=True):
            dialogue.tokens.append(token)
            dialogue.logprobs.append(logprob)

    def _halved(self, rows: int) -> int:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if rows == 1:
            raise OutOfMemoryError
        return rows // 2


def draw(probability_RV: torch.Tensor, uniforms: Sequence[float], top_p: float, top_k: int = 0) -> torch.Tensor:
    """Draws one token per row, [R]: the inverse of the distribution function at the row's uniform number."""
    if top_p < 1 or top_k:
        sorted_RV, order_RV = probability_RV.sort(-1, descending=True)
        if top_k:
            sorted_RV[:, top_k:] = 0
        beyond_RV = sorted_RV.cumsum(-1) - sorted_RV >= top_p * sorted_RV.sum(-1, keepdim=True)
        probability_RV = torch.zeros_like(sorted_RV).scatter(-1, order_RV, sorted_RV.masked_fill(beyond_RV, 0))
    # In the order of token ids, where rounding errors of the logits change the function only as little. First a block
    # of tokens is chosen and then one of its tokens: running sums over a whole vocabulary take long on a processor.
    uniform_R1 = torch.tensor(uniforms, dtype=torch.float64, device=probability_RV.device)[:, None]
    rows, count = probability_RV.shape
    block_RBK = torch.nn.functional.pad(probability_RV, (0, -count % DRAWN_IN)).reshape(rows, -1, DRAWN_IN)
    cumulative_RB = block_RBK.sum(-1).cumsum(-1, dtype=torch.float64)
    wanted_R1 = uniform_R1 * cumulative_RB[:, -1:]
    block_R1 = torch.searchsorted(cumulative_RB, wanted_R1, right=True).clamp(max=cumulative_RB.shape[-1] - 1)
    inside_RK = block_RBK.gather(1, block_R1[..., None].expand(-1, -1, DRAWN_IN))[:, 0].cumsum(-1, dtype=torch.float64)
    before_R1 = cumulative_RB.gather(1, block_R1) - inside_RK[:, -1:]
    wanted_R1 = (wanted_R1 - before_R1).clamp(min=0)  # sums of both kinds are rounded, each in its own way
    drawn_R1 = torch.searchsorted(inside_RK, wanted_R1, right=True).clamp(max=DRAWN_IN - 1)
    return (block_R1 * DRAWN_IN + drawn_R1).squeeze(-1).clamp(max=count - 1)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Says whether an error of torch is a lack of memory; the CPU allocator raises a plain RuntimeError."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
