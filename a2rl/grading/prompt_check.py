"""Checks before a run or a grade that a model can take a task's prompts: their length with the answers, and chats.

The task's own grader makes the prompts, for a sampler that counts their tokens and answers nothing.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from a2rl.core.errors import A2rlError, InvalidSubmissionError, TaskDefinitionError, UsageError
from a2rl.grading.job import GradeJob, selected_ids
from a2rl.models.caps import MAX_CONFIG_BYTES, read_json
from a2rl.run.spec import RunSpec
from a2rl.sampling import NO_KWARGS, Conversation, Prompt, Sampler, SamplingParams, T, engine_params
from a2rl.task_api.catalog import load_grader, load_task
from a2rl.task_api.contract import EPISODES, JudgedGrader, Limits, code_of_task

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENIZER, TEMPLATE = "tokenizer.json", "chat_template.jinja"


class _PromptsKnownError(A2rlError):
    """The prompts have been seen; nothing is generated."""


class CountingSampler(Sampler):
    """A sampler without a model, which keeps the prompts and counts their tokens; see `a2rl.sampling.Sampler`."""

    def __init__(self, tokenizer: "Tokenizer", context: int, has_chat_template: bool) -> None:
        self._tokenizer, self._context = tokenizer, context
        self._has_chat_template = has_chat_template
        self.prompts: list[Prompt] = []

    @property
    def has_chat_template(self) -> bool:
        """See `Sampler`."""
        return self._has_chat_template

    def room_after(self, prompt: Prompt, chat_template_kwargs: Mapping[str, Any] = NO_KWARGS) -> int:
        """See `Sampler`."""
        return self._context - len(self._tokens(prompt))

    def converse(self, conversations: Sequence[Conversation[T]], params: SamplingParams) -> list[T]:
        """Keeps the first prompts, and ends the grading."""
        first = [next(each) for each in conversations]
        self.prompts = [each for each in first if not isinstance(each, Future)]
        raise _PromptsKnownError

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt, without those that a chat template adds."""
        return max((len(self._tokens(each)) for each in self.prompts), default=0)

    def _tokens(self, prompt: Prompt) -> list[int]:
        texts = [prompt] if isinstance(prompt, str) else [message.content for message in prompt]
        return [token for text in texts for token in self._tokenizer.encode(text, add_special_tokens=False).ids]


def check_prompts(spec: RunSpec | GradeJob, name: str, model: Path, hidden: Path, root: Path) -> str:
    """Checks that a model can take the prompts of a task.

    Args:
        spec: The run whose base model it is, or the job that grades it.
        name: What the user calls the model.

    Returns:
        What was found, as a phrase; empty if it cannot be told here.

    Raises:
        UsageError: Its context is too short, or its tokenizer lacks a chat template that is needed.
        TaskDefinitionError: The task's own code failed.
    """
    task, limits = load_task(spec.task, root), limits_of(spec, root)
    answer = limits.max_new_tokens
    context, has_template = context_of(spec, model, answer), has_chat_template(model)
    if not has_template:
        _require_no_arguments(spec, name)
    if context is None:
        return ""
    longest, has_chats = 0, False
    if task.level != EPISODES:
        sampler = _asked(spec, limits, model, hidden, None)
        if sampler is None:
            return ""
        longest, has_chats = sampler.longest, any(not isinstance(each, str) for each in sampler.prompts)
    if has_chats and not has_template:
        raise UsageError(
            f"the tokenizer of {name} has no chat template, and {spec.task} asks in chats: take the model's "
            "instruct version, or add chat_template.jinja to its folder"
        )
    if longest + answer > context:
        raise UsageError(
            f"the context of {name} has {context:,} tokens, and {spec.task} needs {longest + answer:,}: "
            f"{longest:,} for its longest prompt and {answer:,} for the answer; take a model with a longer "
            "context, or shorter answers with --generation max_new_tokens=N"
        )
    return f"{longest + answer:,} of {context:,} tokens"


def _require_no_arguments(spec: RunSpec | GradeJob, name: str) -> None:
    if spec.generation.chat_template_kwargs:
        given = ", ".join(spec.generation.chat_template_kwargs)
        raise UsageError(
            f"the tokenizer of {name} has no chat template, which {given} (generation.chat_template_kwargs) is "
            "for: take the model's instruct version, or leave that setting out"
        )


def context_of(spec: RunSpec | GradeJob, model: Path, answer_tokens: int) -> int | None:
    """Returns how many tokens of context a model is given; None if its configuration does not say."""
    try:
        config = read_json(model / "config.json", "config.json", MAX_CONFIG_BYTES)
    except (OSError, InvalidSubmissionError):
        return None
    sections = engine_params.sections_of(config)
    return engine_params.context_of(sections, spec.vllm if spec.backend == "vllm" else None, answer_tokens)


def has_chat_template(model: Path) -> bool:
    """Whether the tokenizer in a model folder has a chat template."""
    if (model / TEMPLATE).is_file() or (model / "chat_templates").is_dir():
        return True
    for name in ("tokenizer_config.json", "chat_template.json"):
        try:
            if json.loads((model / name).read_bytes()).get("chat_template"):
                return True
        except (OSError, ValueError, AttributeError):
            continue
    return False


def limits_of(spec: RunSpec | GradeJob, root: Path) -> Limits:
    """Returns the limits of answers."""
    limits = load_task(spec.task, root).variant(spec.variant).limits
    most = spec.generation.max_new_tokens or limits.max_new_tokens
    return limits.model_copy(update={"max_new_tokens": most})


def asked_prompts(spec: RunSpec, model: Path, hidden: Path, ids: Sequence[str], root: Path) -> list[Prompt] | None:
    """Returns the prompts of items, each of which is answered by one text.

    Returns:
        None if the task has episodes, or if the prompts cannot be told here.
    """
    if load_task(spec.task, root).level == EPISODES:
        return None
    sampler = _asked(spec, limits_of(spec, root), model, hidden, ids)
    return sampler.prompts if sampler else None


def _asked(
    spec: RunSpec | GradeJob, limits: Limits, model: Path, hidden: Path, ids: Sequence[str] | None
) -> CountingSampler | None:
    """Has the task's grader ask for some items, or for all; None if no tokenizer or no data is there."""
    from tokenizers import Tokenizer

    context = context_of(spec, model, limits.max_new_tokens)
    if context is None or not (model / TOKENIZER).is_file() or not hidden.is_dir():
        return None
    try:
        tokenizer = Tokenizer.from_file(str(model / TOKENIZER))
    except Exception:  # noqa: BLE001 - that is what the library raises; the trial of the base model says more
        return None
    tokenizer.no_truncation()
    sampler = CountingSampler(tokenizer, context, has_chat_template(model))
    try:
        chosen = selected_ids(spec.task, hidden, "all", spec.split_seed) if ids is None else ids
        grader: Any = load_grader(spec.task)
        unused = [None] if isinstance(grader, JudgedGrader) else []  # nothing is answered, so that no judge is asked
        with code_of_task(spec.task):
            grader.grade(sampler, hidden, chosen, limits, spec.options, *unused)
    except _PromptsKnownError:
        return sampler
    except TaskDefinitionError:
        raise
    except (A2rlError, OSError):  # of the data, which has checks of its own
        return None
    return None
