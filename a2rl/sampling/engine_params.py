"""What params.yaml says about the engines that generate, and what an engine of vLLM takes of a GPU's memory.

The memory is known before a run from the base model's configuration and the task. Each part is fixed, so the base model
and all submissions are graded with the same context and the same cache, whatever else is on the GPU, and an agent that
shares the GPU can be told how much of it to leave.

    memory = EngineMemory.of(folder, unpacked_bytes(folder), VllmParams(), "bfloat16", answer_tokens=512, turns=1)
    memory.total_bytes, str(memory)
"""

import json
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from a2rl.core.errors import UsageError
from a2rl.core.files import StrictModel

Dtype = Literal["float32", "bfloat16", "float16"]
"""The type of the numbers that a model is computed with."""
DtypeSetting = Literal["auto", "float32", "bfloat16", "float16"]
HALF = ("bfloat16", "float16")
CPUINFO = Path("/proc/cpuinfo")
FAST_IN_BFLOAT16 = {"avx512_bf16", "amx_bf16"}
"""What CPUs that multiply matrices in bfloat16 say of themselves. There it is 2 to 5 times as fast as float32."""


class VllmParams(StrictModel):
    """The section `grading.vllm` of params.yaml: options of vLLM, under vLLM's own names."""

    dtype: DtypeSetting = "auto"
    """`auto`: as `grading.dtype`."""
    tensor_parallel_size: int = Field(default=1, ge=1)
    """Number of GPUs for one model."""
    max_model_len: int | None = Field(default=None, ge=1)
    """Tokens of context; as many as the model has and the task may need unless given."""
    kv_cache_memory_bytes: int | None = Field(default=None, ge=1)
    """Size of the cache of keys and values on each GPU; by the model and the task unless given."""
    enforce_eager: bool | None = None
    """Whether to skip compilation; only on a CPU unless given."""

    def engine_options(self) -> dict[str, int | float | bool]:
        """Returns the options that are given, without the dtype."""
        return self.model_dump(exclude={"dtype"}, exclude_none=True)


def computing_type(setting: DtypeSetting, base_model: Path) -> Dtype | None:
    """Returns the dtype for a base model and everything trained from it.

    `auto` depends on the base model, not on the submission, so that both are graded alike: bfloat16 if the base model
    is stored in 16 bits and the CPU is fast in bfloat16.

    Returns:
        The type; None for the usual one of the device: float32 on a CPU, bfloat16 on a GPU.
    """
    if setting != "auto":
        return setting
    return "bfloat16" if stored_type(base_model) in HALF and cpu_is_fast_in_bfloat16() else None


def stored_type(model: Path) -> str:
    """Returns the dtype that a checkpoint's configuration names; empty if it names none."""
    try:
        config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    named = [section.get(key) for section in sections_of(config) for key in ("dtype", "torch_dtype")]
    return next((str(each) for each in named if each in get_args(Dtype)), "")


def cpu_is_fast_in_bfloat16(cpuinfo: Path = CPUINFO) -> bool:
    """Says whether this machine's CPU has instructions for matrices in bfloat16."""
    return bool(FAST_IN_BFLOAT16 & cpu_flags(cpuinfo))


@cache
def cpu_flags(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Returns what this machine's CPU says it can do."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), [])
    return frozenset(flags)


NUMBER_BYTES: dict[str, int] = {"float32": 4, "bfloat16": 2, "float16": 2}
CONTEXT, PROMPT = 32_768, 8_192
"""The context is no longer than this, or than a prompt of this length and the answer: no task needs more."""
ANSWERS, PROMPT_OF_ANSWER = 64, 1_024
"""The cache holds so many answers, with prompts of this length..."""
MOST_CONTEXTS = 4
"""...but no more than this number of whole contexts."""
ON_GPU = {"max_num_seqs": 256, "max_num_batched_tokens": 8_192}
"""What vLLM would choose by the model of GPU. It decides how much memory a step takes."""
RESIDENT_BYTES = 2 << 30
"""An estimate: what CUDA, its kernels and its graphs take, also while the engine rests."""
GIB = 1 << 30


class EngineMemory(StrictModel):
    """What an engine takes of each of its GPUs."""

    context: int
    """Tokens of the context."""
    cache_tokens: int
    """Tokens that fit into the cache of keys and values."""
    answers: int
    """How many answers of full length are generated at a time."""
    weights_bytes: int
    cache_bytes: int
    step_bytes: int
    """An estimate: what one step over a batch takes."""

    @classmethod
    def of(
        cls, model: Path, unpacked: int, params: VllmParams, dtype: Dtype, answer_tokens: int, turns: int
    ) -> "EngineMemory":
        """Plans for a base model and everything trained from it.

        Args:
            unpacked: The bytes of its weights, if none of them were quantised.
            params: The options of vLLM.
            dtype: The dtype that the engine computes in.
            turns: How many answers the model gives to one item.

        Raises:
            UsageError: The configuration does not say what must be known.
        """
        config, size = _Config(model), NUMBER_BYTES[dtype]
        context = context_of(config.sections, params, answer_tokens)
        if context is None:
            raise UsageError(f"{model}/config.json has no max_position_embeddings: set grading.vllm.max_model_len")
        each = min(context, answer_tokens * turns + PROMPT_OF_ANSWER)
        # vLLM wants room for one whole context, and keeps a block of the cache for itself.
        tokens = max(context * 5 // 4 + 256, min(ANSWERS * each, MOST_CONTEXTS * context))
        per_token = size * config.numbers_per_token(params.tensor_parallel_size)
        if params.kv_cache_memory_bytes:
            tokens = params.kv_cache_memory_bytes // per_token
        stored = size / NUMBER_BYTES.get(stored_type(model), size)
        return cls(
            context=context,
            cache_tokens=tokens,
            answers=max(1, min(tokens // each, ON_GPU["max_num_seqs"])),
            weights_bytes=int(unpacked * stored) // params.tensor_parallel_size,
            cache_bytes=tokens * per_token,
            step_bytes=config.step_bytes(size),
        )

    @property
    def waking_bytes(self) -> int:
        """What an engine that rests must find free."""
        return self.weights_bytes + self.cache_bytes + self.step_bytes

    @property
    def total_bytes(self) -> int:
        """What an engine must find free at its start."""
        return self.waking_bytes + RESIDENT_BYTES

    @property
    def total_gib(self) -> float:
        """The total, as an agent is told."""
        return round(self.total_bytes / GIB, 1)

    def request(self) -> dict[str, Any]:
        """Returns what the engine's process is told; see `vllm_worker`."""
        return {
            "engine": {"max_model_len": self.context, "kv_cache_memory_bytes": self.cache_bytes},
            "on_gpu": ON_GPU,
            "start_bytes": self.total_bytes,
            "waking_bytes": self.waking_bytes,
        }

    def __str__(self) -> str:
        """The plan as people read it."""
        parts = {
            "weights": self.weights_bytes,
            f"a cache of {self.cache_tokens:,} tokens ({self.answers} answers at a time)": self.cache_bytes,
            "steps": self.step_bytes,
            "CUDA": RESIDENT_BYTES,
        }
        listed = ", ".join(f"{part} {size / GIB:.1f}" for part, size in parts.items())
        return f"{self.total_gib} GiB of a GPU ({listed}), context {self.context:,} tokens"


def context_of(sections: list[dict[str, Any]], params: VllmParams | None, answer_tokens: int) -> int | None:
    """Returns how many tokens a model is given as its context; None if its configuration does not say.

    Args:
        sections: The configuration, after the section for its text model.
        params: The options of vLLM; None with another back end.
    """
    own = _number(sections, "max_position_embeddings", "n_positions")
    if params is None:
        return own
    most = params.max_model_len or (max(CONTEXT, PROMPT + answer_tokens) if own else None)
    return min((each for each in (own, most) if each), default=None)


LEFT_OUT: dict[str, dict[str, int]] = {
    "gemma3_text": {
        "max_position_embeddings": 131_072, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256,
        "vocab_size": 262_208,
    },
}  # fmt: skip
"""What a configuration may leave out, by its kind, because transformers has it as a default."""


def sections_of(config: Any) -> list[dict[str, Any]]:
    """Returns a model's configuration in the order in which it counts: its text model's part, all of it, defaults."""
    if not isinstance(config, dict):
        return []
    sections = [each for each in (config.get("text_config"), config) if isinstance(each, dict)]
    return [*sections, *(LEFT_OUT[kind] for each in sections if (kind := str(each.get("model_type"))) in LEFT_OUT)]


class _Config:
    """What the memory depends on in a configuration."""

    def __init__(self, model: Path) -> None:
        self._file = model / "config.json"
        try:
            config = json.loads(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"{self._file} cannot be read: {error}") from error
        self.sections = sections_of(config)

    def numbers_per_token(self, gpus: int) -> int:
        """Returns how many numbers the cache of each GPU has for a token."""
        layers = self._needed("num_hidden_layers", "n_layer")
        if latent := self._known("kv_lora_rank"):  # one compressed vector for all heads, on every GPU
            return layers * (latent + (self._known("qk_rope_head_dim") or 0))
        heads = self._needed("num_attention_heads", "n_head")
        width = self._known("head_dim") or self._needed("hidden_size", "n_embd") // heads
        return layers * 2 * max(1, (self._known("num_key_value_heads") or heads) // gpus) * width

    def step_bytes(self, size: int) -> int:
        """Estimates a step: the activations of one layer, and the logits with what sampling makes of them."""
        hidden = self._needed("hidden_size", "n_embd")
        inner = self._known("intermediate_size", "n_inner") or 4 * hidden
        activations = ON_GPU["max_num_batched_tokens"] * (4 * hidden + 3 * inner) * size
        return activations + ON_GPU["max_num_seqs"] * self._needed("vocab_size") * 4 * NUMBER_BYTES["float32"]

    def _known(self, *names: str) -> int | None:
        return _number(self.sections, *names)

    def _needed(self, *names: str) -> int:
        if (number := self._known(*names)) is None:
            raise UsageError(
                f"{self._file} has no {names[0]}, without which the memory for grading with vllm is not known: "
                "grade it with --backend transformers"
            )
        return number


def _number(sections: list[dict[str, Any]], *names: str) -> int | None:
    """Returns the first of some settings that is a positive number."""
    found = (section.get(name) for section in sections for name in names)
    return next((each for each in found if type(each) is int and each > 0), None)
