"""The section `tiny` of params.yaml: how the base model `tiny` is built."""

from pydantic import Field

from a2rl.core.files import StrictModel


class TinyParams(StrictModel):
    """How `tiny` is built. Every parameter affects the weights."""

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
    """Optimizer steps; not limited by time, so that the weights do not depend on the machine's load."""
    learning_rate: float = Field(default=6e-3, gt=0)
    """Peak for embeddings and norms, which AdamW trains: linear warm-up, then linear decay to zero."""
    matrix_learning_rate: float = Field(default=0.03, gt=0)
    """Peak for the weight matrices, which Muon trains."""
    warmup_steps: int = Field(default=30, ge=0)
    """Steps until the peak."""
    threads: int = Field(default=2, gt=0)
    """CPU threads of torch; another number gives slightly different weights."""
