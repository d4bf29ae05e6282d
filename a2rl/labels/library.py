"""What calls of libraries mean: which marks their results have, and which of them train, save or start programs."""

import re
from typing import NamedTuple

from a2rl.labels.routes import Route
from a2rl.labels.values import (
    CE,
    CLAMP,
    FILTERED,
    GENERATED,
    GROUP,
    INTERACTIVE,
    LOGP,
    LOGSIGMOID,
    MEAN,
    OUTPUT,
    RATIO,
    REPLY,
    SIGMOID,
    TEXT,
    VALUE,
    WEIGHTED,
    Value,
)  # fmt: skip

TRAINERS: dict[str, Route] = {
    "SFTTrainer": "SFT", "Trainer": "SFT", "Seq2SeqTrainer": "SFT", "GKDTrainer": "SFT", "UnslothTrainer": "SFT",
    "IterativeSFTTrainer": "SFT", "DPOTrainer": "DPO", "KTOTrainer": "DPO", "ORPOTrainer": "DPO", "CPOTrainer": "DPO",
    "BCOTrainer": "DPO", "OnlineDPOTrainer": "DPO", "XPOTrainer": "DPO", "NashMDTrainer": "DPO", "SimPOTrainer": "DPO",
    "GRPOTrainer": "GRPO", "RLOOTrainer": "GRPO", "AsyncGRPOTrainer": "GRPO", "PPOTrainer": "PPO",
    "PPOv2Trainer": "PPO", "RayPPOTrainer": "PPO",
}  # fmt: skip
"""The routes of the classes that train, by the last part of their name."""
TRAIN = frozenset({"train", "fit", "learn"})
LIBRARIES = frozenset({
    "builtins", "torch", "transformers", "trl", "vllm", "peft", "accelerate", "datasets", "numpy", "np",
    "json", "re", "os", "sys", "math", "random", "collections", "itertools", "functools", "pathlib",
    "shutil", "subprocess", "requests", "tqdm", "time", "safetensors", "unsloth", "bitsandbytes", "pandas",
    "sklearn", "scipy", "string", "ast", "copy", "logging", "wandb", "gc", "tokenizers", "sentencepiece",
    "deepspeed", "pytorch_lightning", "lightning", "jax", "flax", "nltk", "evaluate", "statistics", "io",
    "typing", "warnings", "glob", "gzip", "pickle", "tempfile", "uuid", "hashlib", "concurrent",
    "multiprocessing", "threading", "asyncio", "httpx", "urllib", "openai", "anthropic",
})  # fmt: skip
"""Packages whose objects are not environments."""
EMPTY = re.compile(r"(zeros|ones|empty|full|rand|randn|arange)(_like)?$|new_(zeros|ones|full|empty)$")
PASS_ON = frozenset({
    "cuda", "cpu", "to", "eval", "train", "half", "float", "bfloat16", "double", "requires_grad_",
    "deepcopy", "get_peft_model", "compile", "unwrap_model", "gradient_checkpointing_enable",
    "DataParallel", "DistributedDataParallel", "merge_and_unload", "prepare_model_for_kbit_training",
    "for_training", "for_inference", "share_memory", "strip", "lower", "list", "tuple", "iter", "enumerate",
    "tqdm", "reversed", "sorted", "copy", "clone", "detach", "contiguous", "squeeze", "unsqueeze", "tolist",
    "items", "values",
})  # fmt: skip
"""Calls that return what they are given, as far as it matters here."""
GENERATES = frozenset({"generate", "generate_text", "sample", "chat", "fast_generate", "batch_generate"})
MULTIPLIES = frozenset({"mul", "multiply", "einsum", "dot", "matmul", "mul_"})
CHOOSES = frozenset({"filter", "max", "sorted", "topk", "nlargest", "sort", "argmax"})


DECODES = frozenset({"decode", "batch_decode", "convert_tokens_to_string"})
OWN_MARKS: dict[str, tuple[str, ...]] = {
    "log_softmax": (LOGP,), "logsoftmax": (LOGP,), "log_prob": (LOGP,), "selective_log_softmax": (LOGP,),
    "cross_entropy": (CE, LOGP), "nll_loss": (CE, LOGP), "nllloss": (CE, LOGP), "logsigmoid": (LOGSIGMOID,),
    "softplus": (LOGSIGMOID,), "sigmoid": (SIGMOID,), "clamp": (CLAMP,), "clip": (CLAMP,), "clamp_": (CLAMP,),
    "mean": (MEAN,), "fmean": (MEAN,), "average": (MEAN,), "nanmean": (MEAN,), "sum": ("sum",),
}  # fmt: skip
"""What functions of these names add."""


def trainer_route(name: str) -> Route | None:
    """Returns the route of a class that trains, by its full name; None if it is another class."""
    package, _, last = name.rpartition(".")
    if last == "Trainer" and package.split(".")[0] in {"pytorch_lightning", "lightning", "trainer"}:
        return None
    return TRAINERS.get(last) if package and not package.startswith("builtins") else None


def is_of_library(name: str) -> bool:
    """Says whether a full name belongs to a package whose objects are no environments."""
    return name.partition(".")[0] in LIBRARIES


def marks_of_call(name: str, receiver: Value | None, arguments: list[Value], named: dict[str, Value]) -> set[str]:
    """Returns the marks of a call's result.

    Args:
        name: The last part of the name of what is called.
        receiver: The object, of a method.
        arguments: The positional arguments.
        named: The others.
    """
    given = [*([receiver] if receiver else []), *arguments, *named.values()]
    marks = {mark for value in given for mark in value.everything()}
    if EMPTY.match(name):
        return set()
    if name in MULTIPLIES:
        marks |= _weighted([value.everything() for value in given])
    return marks | _own_marks(name, marks) | ({FILTERED} if name in CHOOSES and {GENERATED, TEXT} <= marks else set())


def _own_marks(name: str, marks: set[str]) -> set[str]:
    """Returns the marks that a function of this name adds to those of its arguments."""
    lower = name.lower()
    found = set(OWN_MARKS.get(lower, ()))
    if "logprob" in lower:
        found |= {LOGP}
    if "crossentropy" in lower:
        found |= {CE, LOGP}
    if lower == "log" and (SIGMOID in marks or OUTPUT in marks):
        found |= {LOGSIGMOID} if SIGMOID in marks else {LOGP}
    if lower in {"exp", "exp_"} and LOGP in marks:
        found |= {RATIO}
    if lower in DECODES and GENERATED in marks:
        found |= {TEXT}
    return found


def _weighted(factors: list[set[str]]) -> set[str]:
    reward = any(TEXT in factor and LOGP not in factor for factor in factors)
    return {WEIGHTED} if reward and any(LOGP in factor for factor in factors) else set()


def generated(prompt: set[str], is_text: bool) -> set[str]:
    """Returns the marks of what a model generates from a prompt."""
    marks = (prompt - {TEXT, FILTERED, REPLY, OUTPUT, LOGP, CE, MEAN, "sum"}) | {GENERATED}
    return marks | ({INTERACTIVE} if REPLY in prompt else set()) | ({TEXT} if is_text else set())


class LossKind(NamedTuple):
    """A kind of loss: the marks that it has and those that it lacks."""

    route: Route
    confidence: float
    why: str
    has: frozenset[str]
    lacks: frozenset[str] = frozenset()


LOSSES = (
    LossKind(
        "DPO",
        0.85,
        "the loss is the log-sigmoid of a difference of log-probabilities",
        frozenset({LOGSIGMOID, LOGP}),
        frozenset({WEIGHTED}),
    ),
    LossKind(
        "online RL",
        0.85,
        "the log-probabilities of actions are weighted with the rewards of episodes",
        frozenset({WEIGHTED, INTERACTIVE}),
    ),
    LossKind(
        "PPO",
        0.85,
        "log-probabilities are weighted with rewards and the output of a value head",
        frozenset({WEIGHTED, VALUE}),
    ),
    LossKind(
        "GRPO",
        0.85,
        "log-probabilities are weighted with rewards, relative to the mean of their group",
        frozenset({WEIGHTED, GROUP}),
    ),
    LossKind("PPO", 0.6, "log-probabilities are weighted with rewards, without groups", frozenset({WEIGHTED})),
    LossKind(
        "rejection sampling",
        0.85,
        "the loss is that of imitating the model's own answers that passed a check",
        frozenset({LOGP, GENERATED, FILTERED}),
    ),
    LossKind("SFT", 0.9, "the loss is the cross-entropy of given texts", frozenset({CE})),
    LossKind("SFT", 0.75, "the loss is the negative log-likelihood of given texts", frozenset({LOGP})),
    LossKind("unknown", 0.3, "the loss could not be traced to a known kind", frozenset()),
)
"""From the most to the least specific."""


def route_of_loss(marks: set[str]) -> LossKind:
    """Returns the kind of a loss."""
    return next(kind for kind in LOSSES if kind.has <= marks and not kind.lacks & marks)
